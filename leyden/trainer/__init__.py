"""``Trainer``: one object that wires a store, a proxy, runners and an algorithm together.

It is imported when it is asked for: who wants only ``interruption`` does not pay for all that a trainer drives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leyden.trainer.interruption import Interrupted

if TYPE_CHECKING:
    from leyden.trainer.trainer import Trainer as Trainer

__all__ = ["Interrupted", "Trainer"]


def __getattr__(name: str) -> Any:
    if name != "Trainer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from leyden.trainer.trainer import Trainer

    return Trainer
