"""One directory for a run: what was asked, what happened, and what came out.

::

    runs/latest → runs/<id>/
        config.json        the resolved settings
        environment.json   versions of everything that took part
        metrics.jsonl      one line a measurement, in order of time
        summary.json       the result
        iteration_N/<step>.json   what the step was given, what it gave, how long it took
        models/            the checkpoint registry
        logs/              one file a process
        store.db           the store, where the run brought its own
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import sys
import time
from collections.abc import Mapping
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from leyden.errors import UsageError
from leyden.models.files import write_atomically

_REPORTED = (
    "leyden", "torch", "transformers", "trl", "peft", "datasets", "accelerate", "unsloth", "vllm", "openai-agents", "mcp", "SQLAlchemy",
)  # fmt: skip


def new_run_id() -> str:
    """Sorts by time, and two started in one second differ."""
    return f"{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


class RunDir:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = path.name
        self.models = path / "models"
        self.logs = path / "logs"

    @classmethod
    def create(cls, runs: Path, run_id: str, config: Mapping[str, Any]) -> RunDir:
        """Make ``runs/run_id`` and point ``runs/latest`` at it. Raises ``UsageError`` if it exists or cannot be written."""
        run = cls(runs / run_id)
        try:
            run.path.mkdir(parents=True)
            run.logs.mkdir()
            write_json(run.path / "config.json", config)
            write_json(run.path / "environment.json", describe_environment())
            _point(runs / "latest", run_id)
        except FileExistsError:
            raise UsageError(f"{run.path} already exists", "choose another run id, or leave it out") from None
        except OSError as error:
            raise UsageError(f"cannot write {run.path}: {error.strerror}", "choose another directory with --runs") from None
        return run

    def log(self, process: str) -> Path:
        return self.logs / f"{process}.log"

    def write_manifest(self, iteration: int, step: str, manifest: Mapping[str, Any]) -> Path:
        path = self.path / f"iteration_{iteration}" / f"{step}.json"
        path.parent.mkdir(exist_ok=True)
        write_json(path, manifest)
        return path

    def write_summary(self, summary: Mapping[str, Any]) -> Path:
        path = self.path / "summary.json"
        write_json(path, summary)
        return path

    def metric(self, **values: Any) -> None:
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"time": time.time_ns() // 1000, **values}) + "\n")


def describe_environment() -> dict[str, Any]:
    packages = {}
    for name in _REPORTED:
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "argv": sys.argv,
        "packages": packages,
    }


def write_json(path: Path, value: Any) -> None:
    """The file is there whole or not at all, also after a power cut."""
    write_atomically(path, json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def _point(link: Path, target: str) -> None:
    temporary = link.with_name(f".latest.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(link)
