"""``Trainer``: one object that wires a store, a proxy, runners and an algorithm together."""

from leyden.trainer.interruption import Interrupted
from leyden.trainer.trainer import Trainer

__all__ = ["Interrupted", "Trainer"]
