"""The little statistics an honest comparison needs: intervals for a pass rate, and exact paired tests.

Sources: E. B. Wilson, "Probable inference" (1927); Q. McNemar (1947), exact binomial form; A. Agresti and Y. Min,
"Simple improved confidence intervals for comparing matched proportions" (2005).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import comb, sqrt
from statistics import NormalDist


@dataclass(frozen=True)
class Interval:
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:.2f}–{self.high:.2f}"

    def apart_from(self, other: Interval) -> bool:
        return self.high < other.low or other.high < self.low


def wilson(passed: int, n: int, confidence: float = 0.95) -> Interval:
    """The score interval of a proportion; (0, 1) when nothing was observed."""
    if not 0 <= passed <= n:
        raise ValueError(f"{passed} of {n} is not a proportion")
    if n == 0:
        return Interval(0.0, 1.0)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    rate, z2n = passed / n, z * z / n
    centre = (rate + z2n / 2) / (1 + z2n)
    half = z * sqrt(rate * (1 - rate) / n + z2n / (4 * n)) / (1 + z2n)
    # Exact at the ends, where rounding would leave 1e-17.
    return Interval(0.0 if passed == 0 else centre - half, 1.0 if passed == n else centre + half)


@dataclass(frozen=True)
class PairedComparison:
    """Two arms on the same tasks. ``gained``: only the second passed; ``lost``: only the first did."""

    pairs: int
    gained: int
    lost: int
    difference: float  # second minus first, over the pairs
    interval: Interval  # of the difference, 95 %
    p_higher: float  # one-sided: this many gains or more if both arms were equally good
    p_lower: float  # one-sided: this many losses or more if both arms were equally good


def compare_paired(pairs: Iterable[tuple[bool, bool]]) -> PairedComparison:
    """McNemar's exact test on (first passed, second passed), with the Agresti–Min interval of the difference."""
    n = gained = lost = 0
    for first, second in pairs:
        n += 1
        gained += second and not first
        lost += first and not second
    discordant = gained + lost
    return PairedComparison(
        pairs=n,
        gained=gained,
        lost=lost,
        difference=(gained - lost) / n if n else 0.0,
        interval=_agresti_min(gained, lost, n),
        p_higher=_fair_coin_tail(gained, discordant),
        p_lower=_fair_coin_tail(lost, discordant),
    )


def _fair_coin_tail(k: int, n: int) -> float:
    """P(X ≥ k) for n tosses of a fair coin."""
    return sum(comb(n, i) for i in range(k, n + 1)) / 2**n


def _agresti_min(gained: int, lost: int, n: int, confidence: float = 0.95) -> Interval:
    if n == 0:
        return Interval(-1.0, 1.0)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    b, c, total = lost + 0.5, gained + 0.5, n + 2
    centre = (c - b) / total
    half = z * sqrt((b + c) - (c - b) ** 2 / total) / total
    return Interval(max(-1.0, centre - half), min(1.0, centre + half))
