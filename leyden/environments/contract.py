"""What a score's dimensions are for: which ones gate, and which ones rank.

A gate cannot be bought off: an attempt outside a bound is out, however well it does otherwise. Ranks order what is left, one after another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from leyden.environments.attempt import AttemptResult
from leyden.environments.score import Score
from leyden.errors import UsageError

VALUE = "value"  # the score's own value, as a dimension


@dataclass(frozen=True)
class Bound:
    """A dimension that gates: ``at_least`` and ``at_most`` are within it. An attempt without the dimension is outside: nobody vouched."""

    at_least: float = -inf
    at_most: float = inf

    def __post_init__(self) -> None:
        if not -inf <= self.at_least <= self.at_most <= inf or (self.at_least, self.at_most) == (-inf, inf):
            raise UsageError(f"no number, or each, lies within {self.at_least} and {self.at_most}", "for instance Bound(at_least=1.0)")


@dataclass(frozen=True)
class Rank:
    """A dimension that ranks. One that is missing ranks last."""

    dimension: str
    lowest_first: bool = False


@dataclass(frozen=True)
class RewardContract:
    """``gates``: dimension → bound, all of which must hold. ``ranks``: the first that differs decides.

    For instance ``RewardContract({"safety": Bound(at_least=1)}, (Rank("value"), Rank("steps", lowest_first=True)))``.
    """

    gates: Mapping[str, Bound]
    ranks: tuple[Rank, ...] = (Rank(VALUE),)

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> RewardContract:
        """As in TOML: ``gates = {safety = {at_least = 1}}``, ``ranks = ["value", "-steps"]``, where "-" ranks the lowest first.

        Raises ``UsageError``.
        """
        try:
            gates = {str(name): Bound(**bound) for name, bound in told.get("gates", {}).items()}
            ranks = tuple(Rank(str(name).removeprefix("-"), str(name).startswith("-")) for name in told.get("ranks", [VALUE]))
        except (TypeError, AttributeError) as error:
            raise UsageError(f"this is no reward contract: {error}", 'gates = {safety = {at_least = 1}}, ranks = ["value"]') from error
        if unknown := set(told) - {"gates", "ranks"}:
            raise UsageError(f"a reward contract has no {min(unknown)!r}", "it has gates and ranks")
        return cls(gates, ranks)

    def violations(self, score: Score) -> list[str]:
        """Each gate that does not hold, in words."""
        broken = []
        for name, bound in self.gates.items():
            number = dimension(score, name)
            if number is None:
                broken.append(f"{name} is missing")
            elif not bound.at_least <= number <= bound.at_most:
                broken.append(f"{name} is {number:g}")
        return broken

    def admits(self, score: Score | None) -> bool:
        return score is not None and not self.violations(score)

    def best_first(self, attempts: Iterable[AttemptResult]) -> list[AttemptResult]:
        """Those that the gates admit, by the ranks; equals by index."""
        admitted = [attempt for attempt in attempts if self.admits(attempt.score)]
        return sorted(admitted, key=lambda attempt: (self._key(attempt.score), attempt.index))

    @property
    def least(self) -> dict[str, float]:
        """Dimension → the least it may be: what ``Gate(safety=…)`` takes."""
        return {name: bound.at_least for name, bound in self.gates.items() if bound.at_least > -inf}

    def _key(self, score: Score | None) -> tuple[float, ...]:
        numbers = [None if score is None else dimension(score, rank.dimension) for rank in self.ranks]
        return tuple(inf if n is None else n if rank.lowest_first else -n for n, rank in zip(numbers, self.ranks, strict=True))


def dimension(score: Score, name: str) -> float | None:
    return score.value if name == VALUE else score.dimensions.get(name)
