"""Runners: claim rollouts, run agents on them, report what came out.

``rollout``, ``emit_reward``, the other ``emit_`` functions and ``operation`` are what an agent's file needs, and cost nothing; the rest is
imported when asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leyden.runners.agent import Agent, rollout
from leyden.runners.emit import emit_annotation, emit_exception, emit_message, emit_object
from leyden.runners.failures import InfrastructureFailure, ToolFailure
from leyden.runners.operation import operation
from leyden.runners.rewards import BadReward, emit_reward

if TYPE_CHECKING:
    from leyden.runners.dry_run import DevResult as DevResult
    from leyden.runners.dry_run import dev as dev
    from leyden.runners.loading import load_agent as load_agent
    from leyden.runners.pool import PoolConfig as PoolConfig
    from leyden.runners.pool import RunnerPool as RunnerPool
    from leyden.runners.pool import spawn_runners as spawn_runners
    from leyden.runners.runner import Runner as Runner
    from leyden.runners.runner import RunnerConfig as RunnerConfig

_LAZY = {
    "DevResult": "dry_run", "dev": "dry_run", "load_agent": "loading", "Runner": "runner", "RunnerConfig": "runner",
    "PoolConfig": "pool", "RunnerPool": "pool", "spawn_runners": "pool",
}  # fmt: skip

__all__ = [
    "Agent", "BadReward", "InfrastructureFailure", "ToolFailure", "emit_annotation", "emit_exception", "emit_message", "emit_object",
    "emit_reward", "operation", "rollout", *_LAZY,
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
