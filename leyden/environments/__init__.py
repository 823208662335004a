"""Environments: tasks, an agent and a scorer; K attempts at each task; what came of them as numbers and as data.

Names are resolved when they are first used (PEP 562), as in ``leyden``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leyden.environments.attempt import AttemptResult, StopReason
    from leyden.environments.fingerprint import Fingerprint, FingerprintError, MismatchError
    from leyden.environments.output import RunOutput, RunStatus, ToolCall, ToolOutcome
    from leyden.environments.results import EnvironmentRunResult, TaskResult
    from leyden.environments.score import Score, Scorer
    from leyden.environments.task import Task

__all__ = [
    "AttemptResult", "EnvironmentRunResult", "Fingerprint", "FingerprintError", "MismatchError", "RunOutput", "RunStatus", "Score",
    "Scorer", "StopReason", "Task", "TaskResult", "ToolCall", "ToolOutcome",
]  # fmt: skip

_MODULES = {
    "attempt": ("AttemptResult", "StopReason"),
    "fingerprint": ("Fingerprint", "FingerprintError", "MismatchError"),
    "output": ("RunOutput", "RunStatus", "ToolCall", "ToolOutcome"),
    "results": ("EnvironmentRunResult", "TaskResult"),
    "score": ("Score", "Scorer"),
    "task": ("Task",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
