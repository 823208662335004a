"""What a scorer says about one attempt, and what a scorer is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from leyden.environments.output import RunOutput

LONGEST_NAME = 100  # of a dimension: the store keeps it as a reward's name


@dataclass(frozen=True)
class Score:
    """``value`` within 0 to 1, and whether that passes. ``dimensions`` are named numbers beside it (outcome, safety, efficiency, …),
    which are kept apart: ``contract.RewardContract`` says which of them gate and which rank.

    Raises ``ValueError`` for a value outside 0 to 1 (NaN too) and for a dimension that is not finite, ``TypeError`` for another type.
    """

    value: float
    passed: bool
    reason: str | None = None
    detail: Mapping[str, Any] | None = None
    dimensions: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise TypeError(f"a score's value is a number, not {type(self.value).__name__}")
        if not isinstance(self.passed, bool):
            raise TypeError(f"a score's `passed` is True or False, not {self.passed!r}")
        if not 0.0 <= self.value <= 1.0:
            raise ValueError(f"a score's value lies within 0 and 1, and {self.value!r} does not")
        object.__setattr__(self, "value", float(self.value))
        for name, number in self.dimensions.items():
            if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
                raise ValueError(f"a dimension's name has 1 to {LONGEST_NAME} letters, and {name!r} has not")
            if isinstance(number, bool) or not isinstance(number, int | float) or not isfinite(number):
                raise ValueError(f"dimension {name!r} is a finite number, and {number!r} is none")


@runtime_checkable
class Scorer(Protocol):
    """Judges one attempt. What it raises leaves the attempt unscored; it is never a 0.

    A method ``digest() -> str`` that says what it would judge differently is optional: without one the environment's fingerprint has no
    scorer, and equals none.
    """

    async def ascore(self, run: RunOutput, expected: Any = None) -> Score: ...
