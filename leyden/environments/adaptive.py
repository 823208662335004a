"""How often to try a task: until its place is known, and no longer."""

from __future__ import annotations

from dataclasses import dataclass

from leyden.environments.zone import HIGH, LOW


@dataclass(frozen=True)
class AdaptiveK:
    """Stops trying a task when it is settled whether it lies in the learning zone.

    * One attempt passed and one failed: it passes sometimes, and no further attempt can change that.
    * All failed: enough, once a task that passes with probability ``low`` would have shown a pass by now with this confidence:
      (1 − low)ⁿ ≤ 1 − confidence. All passed: the same for ``high``, highⁿ ≤ 1 − confidence.

    With the defaults seven attempts of one kind are enough. Fewer than ``min_k`` scored attempts never are, ``max_k`` always.
    **It bends pass rates**: it stops at what comes out, so a task that passes one time in ten looks as if it passed one in six. Good for
    finding tasks to learn from; a gate takes results of a fixed k only.

    Raises ``ValueError`` for bounds that exclude each other.
    """

    max_k: int
    min_k: int = 2
    confidence: float = 0.9
    low: float = LOW
    high: float = HIGH

    def __post_init__(self) -> None:
        if not 1 <= self.min_k <= self.max_k:
            raise ValueError(f"min_k {self.min_k} must lie between 1 and max_k {self.max_k}")
        if not (0 < self.confidence < 1 and 0 < self.low <= self.high < 1):
            raise ValueError(f"confidence {self.confidence} and the zone {self.low} to {self.high} must lie between 0 and 1")

    def enough(self, passed: int, scored: int) -> bool:
        """Whether a task needs no further attempt, having passed so many of its scored ones."""
        if scored < self.min_k or scored >= self.max_k:
            return scored >= self.max_k
        if 0 < passed < scored:
            return True
        unlikely = self.high if passed else 1 - self.low
        return unlikely**scored <= 1 - self.confidence
