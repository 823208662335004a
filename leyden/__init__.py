"""Leyden: the training loop for agents.

Every name is resolved when it is first used (PEP 562): ``import leyden`` loads nothing heavy and touches no network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leyden.algorithm.algorithm import Algorithm
    from leyden.algorithm.baseline import Baseline
    from leyden.algorithm.sft.algorithm import SFT
    from leyden.errors import (
        Busy,
        Conflict,
        InvalidRequest,
        LeaseLost,
        LeydenError,
        MissingExtra,
        NotFound,
        TooLarge,
        Unavailable,
        UsageError,
    )
    from leyden.models.local import aserve_model, serve_model
    from leyden.proxy import LLMProxy
    from leyden.runners import (
        dev,
        emit_annotation,
        emit_exception,
        emit_message,
        emit_object,
        emit_reward,
        rollout,
        spawn_runners,
    )
    from leyden.runners.hooks import Hook
    from leyden.runners.operation import operation
    from leyden.runners.tracer import OtelTracer
    from leyden.server.client import StoreClient
    from leyden.server.sqlstore import SQLStore
    from leyden.trainer import Trainer
    from leyden.types import (
        LLM,
        Generation,
        Mode,
        NewRollout,
        PromptTemplate,
        Resources,
        Reward,
        Rollout,
        RolloutConfig,
        Span,
        Triplet,
    )

__all__ = [
    "LLM", "SFT", "Algorithm", "Baseline", "Busy", "Conflict", "Generation", "Hook", "InvalidRequest", "LLMProxy", "LeaseLost",
    "LeydenError", "MissingExtra", "Mode", "NewRollout", "NotFound", "OtelTracer", "PromptTemplate", "Resources", "Reward", "Rollout",
    "RolloutConfig", "SQLStore", "Span", "StoreClient", "TooLarge", "Trainer", "Triplet", "Unavailable", "UsageError",
    "aserve_model", "dev", "emit_annotation", "emit_exception", "emit_message", "emit_object", "emit_reward", "operation", "rollout",
    "serve_model", "spawn_runners",
]  # fmt: skip

_ROOMS = {
    "leyden.algorithm.algorithm": ("Algorithm",),
    "leyden.algorithm.baseline": ("Baseline",),
    "leyden.algorithm.sft.algorithm": ("SFT",),
    "leyden.models.local": ("aserve_model", "serve_model"),
    "leyden.runners": (
        "dev", "emit_annotation", "emit_exception", "emit_message", "emit_object", "emit_reward", "operation", "rollout", "spawn_runners",
    ),
    "leyden.runners.hooks": ("Hook",),
    "leyden.runners.tracer": ("OtelTracer",),
    "leyden.server.client": ("StoreClient",),
    "leyden.server.sqlstore": ("SQLStore",),
    "leyden.proxy": ("LLMProxy",),
    "leyden.trainer": ("Trainer",),
    "leyden.types": (
        "LLM", "Generation", "Mode", "NewRollout", "PromptTemplate", "Resources", "Reward", "Rollout", "RolloutConfig", "Span", "Triplet",
    ),
    "leyden.errors": (
        "Busy", "Conflict", "InvalidRequest", "LeaseLost", "LeydenError", "MissingExtra", "NotFound", "TooLarge", "Unavailable",
        "UsageError",
    ),
}  # fmt: skip
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _ROOM_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_ROOM_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
