"""Which interpreter trains, and with what: another environment's, where Unsloth or a GPU build of torch lives, or our own.

The other environment needs no ``leyden`` of its own: its interpreter is handed this package, and nothing else of ours.
"""

from __future__ import annotations

import asyncio
import json
import operator
import re
import sys
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import Literal

from leyden.algorithm.sft.config import TrainConfig
from leyden.errors import Unavailable, UsageError
from leyden.process import spawn
from leyden.types import Record

Backend = Literal["trl", "unsloth"]

MIN_PYTHON = (3, 11)
PROBE_TIMEOUT = 120.0  # seconds; importing torch from a cold disk takes its time

# The same as the extras of pyproject.toml (a test compares them), for interpreters that pip never told about Leyden.
_BOTH = {
    "torch": ">=2.13,<2.14", "transformers": ">=5.17,<5.18", "trl": ">=1.15,<1.16", "peft": ">=0.21,<0.22", "datasets": ">=4.8,<5",
    "accelerate": ">=1.15,<2", "safetensors": ">=0.6,<1", "pydantic": ">=2.10,<3", "psutil": ">=6,<8",
}  # fmt: skip
PINS: dict[Backend, dict[str, str]] = {"trl": _BOTH, "unsloth": _BOTH | {"unsloth": ">=2026.10.9,<2026.11"}}

# Imports this very package, wherever it lies, without opening the directory around it, which may be another environment's packages.
_HAND_OVER = """
import importlib.util, runpy, sys
spec = importlib.util.spec_from_file_location("leyden", sys.argv.pop(1))
sys.modules["leyden"] = package = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


class Interpreter(Record):
    """What ``probe.py`` found."""

    path: str
    python: tuple[int, int, int]
    versions: dict[str, str]
    cuda: bool | None  # None: without Unsloth nobody looked
    broken: dict[str, str]

    @property
    def best_backend(self) -> Backend:
        return "unsloth" if "unsloth" in self.versions and self.cuda else "trl"

    def problem(self, backend: Backend) -> UsageError | None:
        """What keeps this interpreter from training with that backend, all of it in one error, and the command that mends it."""
        if self.python < MIN_PYTHON:
            found = ".".join(map(str, self.python))
            return UsageError(f"{self.path} is Python {found}; a training needs 3.11 or newer", "name another one in train.python")
        wrong, install, remove = [], [], []
        for name, pin in PINS[backend].items():
            version = self.versions.get(name)
            if version is None or not satisfies(version, pin):
                wrong.append(f"{name} {version}, not {pin}" if version else f"no {name}")
                install.append(f"'{name}{pin}'")
        for name, reason in self.broken.items():
            wrong.append(f"a {name} that was built for another torch ({reason})")
            remove.append(name)
        if not wrong:
            return None
        pip = f"{self.path} -m pip"
        fixes = [f"{pip} install {' '.join(install)}"] * bool(install) + [f"{pip} uninstall -y {' '.join(remove)}"] * bool(remove)
        return UsageError(f"{self.path} cannot train with {backend}: it has {'; '.join(wrong)}", " && ".join(fixes))


async def resolve_backend(config: TrainConfig, *, marker: str) -> Backend:
    """The backend a training with this config uses.

    Raises ``UsageError`` where the interpreter that the config names lacks something, or has it in a version that clashes.
    """
    interpreter = await examine(config.python, marker=marker)
    backend = interpreter.best_backend if config.backend == "auto" else config.backend
    problem = interpreter.problem(backend)
    if problem is not None:
        raise problem
    return backend


async def examine(python: str | None, *, marker: str) -> Interpreter:
    """Ask an interpreter what it has. Raises ``UsageError`` for one that is none, ``Unavailable`` for one that does not answer."""
    path, probe = interpreter_path(python), str(Path(__file__).with_name("probe.py"))
    child = await spawn([path, probe], marker=marker, stdout_pipe=True)
    assert child.stdout is not None
    try:
        async with asyncio.timeout(PROBE_TIMEOUT):
            answer = await child.stdout.read()
    except TimeoutError:
        raise Unavailable(f"{path} did not say within {PROBE_TIMEOUT:g} s what it has", f"try it by hand: {path} {probe}") from None
    finally:
        await child.stop(grace=0.5)
    try:
        return Interpreter(path=path, **json.loads(answer.splitlines()[-1]))
    except (IndexError, TypeError, ValueError):
        hint = "train.python is the path of one, for example .venv-unsloth/bin/python"
        raise UsageError(f"{path} is no Python interpreter that works", hint) from None


def child_command(python: str | None, *arguments: str) -> list[str]:
    """The command that runs the training child under an interpreter."""
    module = "leyden.algorithm.sft.child"
    if python is None:
        return [sys.executable, "-m", module, *arguments]
    return [interpreter_path(python), "-P", "-c", _HAND_OVER, str(Path(__file__).parents[2] / "__init__.py"), module, *arguments]


def interpreter_path(python: str | None) -> str:
    """``python``, the home directory filled in; None is the interpreter that runs this."""
    return str(Path(python).expanduser()) if python else sys.executable


_COMPARISONS: dict[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {">=": operator.ge, "<": operator.lt}


def satisfies(version: str, pin: str) -> bool:
    """Whether the numbers that a version begins with lie within ``>=A,<B``; what follows them (``+cpu``, ``rc1``) is not looked at."""
    for part in pin.split(","):
        comparison, bound = re.fullmatch(r"(>=|<)([\d.]+)", part).groups()  # type: ignore[union-attr]
        pairs = list(zip_longest(_numbers(version), _numbers(bound), fillvalue=0))
        if not _COMPARISONS[comparison](tuple(a for a, _ in pairs), tuple(b for _, b in pairs)):
            return False
    return True


def _numbers(version: str) -> list[int]:
    found = re.match(r"\d+(\.\d+)*", version)
    return [int(number) for number in found[0].split(".")] if found else []
