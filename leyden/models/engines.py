"""Which engine serves a version, and why."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from leyden.errors import UsageError
from leyden.models.accelerator import read_gpus
from leyden.models.engine import EmbeddedEngine, Engine
from leyden.models.engine_config import EngineConfig
from leyden.models.version import Version
from leyden.models.vllm import VLLMEngine

API_SERVER = ("-m", "vllm.entrypoints.openai.api_server", "--model")
"""Not the ``vllm`` script: that of the CPU build asks for a distribution named ``vllm``, and fails."""


@dataclass(frozen=True)
class Choice:
    kind: Literal["embedded", "vllm"]
    why: str

    def __str__(self) -> str:
        return f"{'vLLM' if self.kind == 'vllm' else 'the embedded engine'}: {self.why}"


def choose(config: EngineConfig) -> Choice:
    """The engine that will serve. Raises ``UsageError`` where vLLM is asked for and cannot be had."""
    if config.kind == "embedded":
        return Choice("embedded", "as asked")
    prefix = find_vllm(config)
    named = config.python or config.command
    if prefix is None and (config.kind == "vllm" or named):
        raise UsageError(
            f"there is no vLLM {_where(config)}", "install it in an environment of its own and name its python; see docs/gpu.md"
        )
    gpus = read_gpus()
    device = gpus[0].name if gpus else "the CPU"
    if config.kind == "vllm":
        return Choice("vllm", f"as asked, on {device}")
    if prefix is not None and gpus:
        return Choice("vllm", f"on {device}")
    return Choice("embedded", "there is no GPU" if not gpus else f"there is {device}, but no vLLM {_where(config)}")


def make_engine(config: EngineConfig, version: Version, base: Version, *, log_path: Path | None, marker: str) -> Engine:
    """An engine for ``version``, not started. ``base``: what its line began with, which an engine with runtime LoRA loads instead."""
    if choose(config).kind == "embedded":
        return embedded_engine(config, version.name, version.path, log_path=log_path, marker=marker)
    prefix = find_vllm(config)
    assert prefix is not None  # or ``choose`` would have raised
    return VLLMEngine(version, base, config=config, prefix=prefix, log_path=log_path, marker=marker)


def embedded_engine(config: EngineConfig, name: str, directory: Path, *, log_path: Path | None, marker: str) -> EmbeddedEngine:
    """One that will serve what is in ``directory`` as ``name``, not started."""
    return EmbeddedEngine(
        directory,
        model_name=name,
        log_path=log_path,
        marker=marker,
        port=config.port,
        max_model_len=config.max_model_len,
        start_timeout=config.start_timeout,
        exact=config.exact,
    )


def find_vllm(config: EngineConfig) -> tuple[str, ...] | None:
    """What to put before the model's path to serve it with vLLM; None where there is no vLLM."""
    if config.command:
        return config.command if shutil.which(config.command[0]) else None
    if config.python:
        return (config.python, *API_SERVER) if _has_vllm(config.python) else None
    if script := shutil.which("vllm"):
        return (script, "serve")
    return (sys.executable, *API_SERVER) if importlib.util.find_spec("vllm") else None


@cache
def _has_vllm(python: str) -> bool:
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    try:
        return subprocess.run([python, "-c", look], capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"cannot run {python}: {error}", "name the interpreter of an environment that has vLLM") from error


def _where(config: EngineConfig) -> str:
    if config.command:
        return f"to start with {' '.join(config.command)}"
    return f"in {config.python}" if config.python else "on the PATH or in this environment"
