"""The kinds of agents that an environment can try."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leyden.environments.subjects.choosing import as_subject

if TYPE_CHECKING:
    from leyden.environments.subjects.agents_sdk import AgentsSDK as AgentsSDK
    from leyden.environments.subjects.endpoint import Endpoint as Endpoint
    from leyden.environments.subjects.function import Function as Function

_LAZY = {"AgentsSDK": "agents_sdk", "Endpoint": "endpoint", "Function": "function"}

__all__ = ["AgentsSDK", "Endpoint", "Function", "as_subject"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
