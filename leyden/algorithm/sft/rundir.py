"""One directory for a run: what was asked, what happened, and what came out.

::

    runs/latest → runs/<id>/
        config.json        the resolved settings
        environment.json   versions of everything that took part
        metrics.jsonl      one line a measurement, in order of time
        begin.json         the version it set out to improve
        summary.json       the result; only a run that came to its end has one
        ended.json         how it ended otherwise, and that it is not to go on
        driver.lock        held by the process that drives the run
        iteration_N/<step>.json   what the step was given, what it gave, how long it took
        models/            the checkpoint registry
        logs/              one file a process
        store.db           the store, where the run brought its own
"""

from __future__ import annotations

import difflib
import json
import os
import platform
import secrets
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from leyden.algorithm.sft.lock import DriverLock
from leyden.errors import NotFound, UsageError
from leyden.files import disk_errors, write_atomically
from leyden.process import end_leftovers

_REPORTED = (
    "leyden", "torch", "transformers", "trl", "peft", "datasets", "accelerate", "unsloth", "vllm", "openai-agents", "mcp", "SQLAlchemy",
)  # fmt: skip

HOW = frozenset({"runners", "concurrency", "engine"})
"""Settings that decide how a run is carried out, not what it is: they may differ when it goes on."""
ORIGIN = frozenset({"forked_from"})
"""Where a run began. Whoever names the run itself need not repeat it."""


def new_run_id() -> str:
    """Sorts by time, and two started in one second differ."""
    return f"{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


class RunDir:
    """``resumed``: whether an earlier process began this run."""

    def __init__(self, path: Path, resumed: bool = False) -> None:
        self.path = path
        self.id = path.name
        self.resumed = resumed
        self.models = path / "models"
        self.logs = path / "logs"
        self._lock = DriverLock(path / "driver.lock")

    # -- beginning, and going on -----------------------------------------------------------------------------------
    @classmethod
    def create(cls, runs: Path, run_id: str, config: Mapping[str, Any]) -> RunDir:
        """Make ``runs/run_id`` and point ``runs/latest`` at it. Raises ``UsageError`` if it exists or cannot be written."""
        run = cls(runs / run_id)
        try:
            run.path.mkdir(parents=True)
            run.logs.mkdir()
            write_json(run.path / "environment.json", describe_environment())
            write_json(run.path / "config.json", config)  # last: with it, the directory is a run
            _point(runs / "latest", run_id)
        except FileExistsError:
            raise UsageError(f"{run.path} already exists", "choose another run id, or leave it out") from None
        except OSError as error:
            raise UsageError(f"cannot write {run.path}: {error.strerror}", "choose another directory with --runs") from None
        return run

    @classmethod
    def resume(cls, runs: Path, wanted: str, config: Mapping[str, Any] | None = None) -> RunDir:
        """The unfinished run of that id (or unique prefix, or ``@latest``), to go on with.

        Raises ``NotFound``, and ``UsageError`` for a run that has ended or, where ``config`` is given, was asked for something else.
        """
        run = cls(cls.find(runs, wanted).path, resumed=True)
        afresh = f"start afresh with --new, or from its champion with --fork {run.id}"
        if run.summary is not None:
            raise UsageError(f"run {run.id} is finished", f"see leyden runs show {run.id}; {afresh}")
        if run.ended is not None:
            raise UsageError(f"run {run.id} has {run.ended['state']}: {run.ended['reason']}", afresh)
        if config is not None and (changed := run.differences(config, HOW | ORIGIN)):
            raise UsageError(f"run {run.id} was started with other settings: {'; '.join(changed)}", f"use those, or {afresh}")
        _point(runs / "latest", run.id)
        return run

    @classmethod
    def find_unfinished(cls, runs: Path, config: Mapping[str, Any]) -> RunDir | None:
        """The latest run of an equal config that has not ended and that nobody drives: what the same command goes on with."""
        found = (cls(run.path, resumed=True) for run in cls.interrupted(runs) if not run.differences(config, HOW))
        return next(found, None)

    def lock(self, marker: str = "") -> DriverLock:
        """Be this run's only driver until the lock is released (``with run.lock(...):``) or this process ends, however it does.

        ``marker``: of this driver's children. What is left of a former driver's is ended. Raises ``UsageError`` naming the process that
        drives the run.
        """
        former = self._lock.acquire(f"run {self.id} is being driven", marker)
        if former is not None:
            end_leftovers(former)
        self.metric(step="driver", pid=os.getpid())
        return self._lock

    def begin_with(self, champion: str) -> str:
        """The version that this run set out to improve: ``champion`` at the first call, and the same ever after."""
        begun = self._read("begin.json")
        if begun is None:
            begun = {"champion": champion}
            write_json(self.path / "begin.json", begun)
        return str(begun["champion"])

    def end(self, state: str, reason: str) -> None:
        """Say how a run ended that has no summary, or will never have one: it is not to go on."""
        write_json(self.path / "ended.json", {"state": state, "reason": reason})

    # -- looking ---------------------------------------------------------------------------------------------------
    @classmethod
    def in_directory(cls, runs: Path) -> list[RunDir]:
        """All runs, oldest first."""
        if not runs.is_dir():
            return []
        return [cls(path) for path in sorted(runs.iterdir()) if (path / "config.json").is_file() and not path.is_symlink()]

    @classmethod
    def interrupted(cls, runs: Path) -> Iterator[RunDir]:
        """Those that have not ended and that nobody drives, latest first."""
        return (run for run in reversed(cls.in_directory(runs)) if not run.has_ended and run.driver is None)

    @classmethod
    def find(cls, runs: Path, wanted: str) -> RunDir:
        """By id, unique prefix, or ``@latest``. Raises ``NotFound`` with the nearest id as a hint, ``UsageError`` for several."""
        link = runs / "latest"
        if wanted in ("@latest", "latest") and (link / "config.json").is_file():
            return cls(runs / link.resolve().name)
        names = [run.id for run in cls.in_directory(runs)]
        matching = [name for name in names if name == wanted] or [name for name in names if name.startswith(wanted)]
        if len(matching) == 1:
            return cls(runs / matching[0])
        if matching:
            raise UsageError(f"{wanted} could be {', '.join(matching)}", "give more of the id")
        near = difflib.get_close_matches(wanted, names, n=1)
        raise NotFound(f"no run {wanted!r} in {runs}", f"did you mean {near[0]}?" if near else "see what there is: leyden runs list")

    @property
    def config(self) -> dict[str, Any]:
        return self._read("config.json") or {}

    def differences(self, config: Mapping[str, Any], ignored: Collection[str]) -> list[str]:
        """What makes this another run than ``config`` asks for, one ``key was …, is …`` each. ``ignored``: keys at the top."""
        asked = json.loads(json.dumps(config, default=str))  # as it would be recorded
        return _differences(self.config, asked, ignored)

    @property
    def summary(self) -> dict[str, Any] | None:
        return self._read("summary.json")

    @property
    def ended(self) -> dict[str, Any] | None:
        """``state`` and ``reason`` of a run that was given up."""
        return self._read("ended.json")

    @property
    def has_ended(self) -> bool:
        return (self.path / "summary.json").exists() or (self.path / "ended.json").exists()

    @property
    def driver(self) -> int | None:
        """The id of the process that drives it now."""
        return self._lock.holder

    def manifests(self) -> list[dict[str, Any]]:
        """Of every finished step, in order of their starts."""
        paths = [path for path in self.path.glob("iteration_*/*.json") if not path.name.startswith(".")]
        found = [self._read(path.relative_to(self.path).as_posix()) for path in paths]
        return sorted(filter(None, found), key=lambda manifest: manifest["started_at"])

    def read_manifest(self, iteration: int, step: str) -> dict[str, Any] | None:
        return self._read(f"iteration_{iteration}/{step}.json")

    def metrics(self) -> Iterator[dict[str, Any]]:
        """Whatever was measured, in order of time. A line that a crash tore is left out."""
        try:
            lines = (self.path / "metrics.jsonl").read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return
        for line in lines:
            try:
                yield json.loads(line)
            except ValueError:
                continue

    # -- writing ---------------------------------------------------------------------------------------------------
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
        line = json.dumps({"time": time.time_ns() // 1000, **values}) + "\n"
        with disk_errors(self.path), (self.path / "metrics.jsonl").open("ab+") as file:
            size = file.seek(0, os.SEEK_END)
            torn = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"  # a crash can leave half a line
            file.write((("\n" if torn else "") + line).encode())

    def _read(self, name: str) -> dict[str, Any] | None:
        path = self.path / name
        try:
            return json.loads(path.read_text())  # type: ignore[no-any-return]
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise UsageError(f"{path} is not JSON: {error}", "it has been changed by hand: mend or remove it") from None


def _differences(recorded: Mapping[str, Any], asked: Mapping[str, Any], ignored: Collection[str] = (), prefix: str = "") -> list[str]:
    found: list[str] = []
    for key in sorted({*recorded, *asked} - {*ignored}):
        old, new = recorded.get(key), asked.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            found += _differences(old, new, prefix=f"{prefix}{key}.")
        elif old != new:
            long = isinstance(old, list | dict) or isinstance(new, list | dict)
            found.append(f"{prefix}{key}" if long else f"{prefix}{key} was {old}, is {new}")
    return found


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
    """The file is there whole or not at all, also after a power cut. Raises ``DiskError``."""
    with disk_errors(path.parent):
        write_atomically(path, json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def _point(link: Path, target: str) -> None:
    temporary = link.with_name(f".latest.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(link)
