"""``Adapter``: from what was captured to what is learnt from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from typing import Generic, TypeVar

from leyden.algorithm.refusals import Quarantined, Refusal, by_reason
from leyden.types import Reward

Captured = TypeVar("Captured")
Made = TypeVar("Made")


class Adapter(ABC, Generic[Captured, Made]):
    """What it leaves out it names, call by call, in ``quarantined``; ``refused`` counts them. Both are of its whole life."""

    def __init__(self) -> None:
        self.quarantined: list[Quarantined] = []

    @abstractmethod
    def adapt(self, captured: Iterable[Captured], rewards: Iterable[Reward] = ()) -> list[Made]:
        """``captured`` of any number of attempts. ``rewards``: those that the store holds for them."""

    @property
    def refused(self) -> Counter[Refusal]:
        """Calls, by reason."""
        return by_reason(self.quarantined)

    def refuse(self, rollout_id: str, attempt: int, call: str, reason: Refusal, detail: str | None = None) -> None:
        self.quarantined.append(Quarantined(rollout_id=rollout_id, attempt=attempt, generation_ids=(call,), reason=reason, detail=detail))
