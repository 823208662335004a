"""The little statistics an honest comparison needs: intervals for a pass rate, what k attempts come to, and exact paired tests.

Sources: E. B. Wilson, "Probable inference" (1927); E. L. Korn and B. I. Graubard, "Confidence intervals for proportions with small
expected number of positive counts estimated from survey data" (1998), the effective sample size; M. Chen et al., "Evaluating large
language models trained on code" (2021), pass@k; S. Yao et al., "τ-bench" (2024), pass^k; Q. McNemar (1947), exact binomial form;
A. Agresti and Y. Min, "Simple improved confidence intervals for comparing matched proportions" (2005).
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
    return _wilson(passed / n, n, confidence)


def _wilson(rate: float, n: float, confidence: float) -> Interval:
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    z2n = z * z / n
    centre = (rate + z2n / 2) / (1 + z2n)
    half = z * sqrt(rate * (1 - rate) / n + z2n / (4 * n)) / (1 + z2n)
    # Exact at the ends, where rounding would leave 1e-17.
    return Interval(0.0 if rate == 0 else centre - half, 1.0 if rate == 1 else centre + half)


def wilson_by_task(counts: Iterable[tuple[int, int]], confidence: float = 0.95) -> Interval:
    """The interval of a pass rate where tasks were tried several times: ``counts`` holds (passed, scored) of each task.

    Attempts at one task resemble each other, so they count for less than as many tasks would: Wilson's interval with the effective
    sample size, the number of attempts over their design effect. With one attempt a task it is ``wilson``. Where all attempts are alike
    nothing tells how much they resemble each other, and only the tasks count.
    """
    tried = [(passed, scored) for passed, scored in counts if scored]
    passed, n = sum(p for p, _ in tried), sum(s for _, s in tried)
    if passed in (0, n):
        return wilson(len(tried) if passed else 0, len(tried), confidence)
    rate, tasks = passed / n, len(tried)
    between = tasks / (tasks - 1) * sum((p - rate * s) ** 2 for p, s in tried) if tasks > 1 else float(n * n)
    effect = max(1.0, between / (n * rate * (1 - rate)))
    if max(s for _, s in tried) == 1:
        effect = 1.0
    return _wilson(rate, n / effect, confidence)


def pass_at_k(n: int, c: int, k: int) -> float:
    """How likely at least one of k attempts passes, drawn without replacement from n of which c passed: 1 − C(n−c, k) / C(n, k).

    Unbiased for the chance that k fresh attempts hold a success. Raises ``ValueError`` unless 0 ≤ c ≤ n and 1 ≤ k ≤ n.
    """
    _check_draw(n, c, k)
    return 1.0 - comb(n - c, k) / comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """How likely all of k attempts pass, drawn without replacement from n of which c passed: C(c, k) / C(n, k).

    Unbiased for the chance that k fresh attempts all succeed. Raises as ``pass_at_k``.
    """
    _check_draw(n, c, k)
    return comb(c, k) / comb(n, k)


def _check_draw(n: int, c: int, k: int) -> None:
    if not 0 <= c <= n:
        raise ValueError(f"{c} of {n} is not a proportion")
    if not 1 <= k <= n:
        raise ValueError(f"{k} attempts cannot be drawn from {n}")


@dataclass(frozen=True)
class PairedComparison:
    """Two arms on the same tasks. ``gained``: only the second passed; ``lost``: only the first did."""

    pairs: int
    gained: int
    lost: int
    difference: float  # second minus first, over the pairs
    interval: Interval  # of the difference, 95 % unless another confidence was asked for
    p_higher: float  # one-sided: this many gains or more if both arms were equally good
    p_lower: float  # one-sided: this many losses or more if both arms were equally good
    deviation: float  # standard deviation of one pair's difference, with the same two pairs added as in the interval


def compare_paired(pairs: Iterable[tuple[bool, bool]], confidence: float = 0.95) -> PairedComparison:
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
        interval=agresti_min(n, gained - lost, discordant, confidence),
        p_higher=fair_coin_tail(gained, discordant),
        p_lower=fair_coin_tail(lost, discordant),
        deviation=added_deviation(n, gained - lost, discordant),
    )


def fair_coin_tail(k: int, n: int) -> float:
    """P(X ≥ k) for n tosses of a fair coin."""
    return sum(comb(n, i) for i in range(k, n + 1)) / 2**n


def added_deviation(n: int, total: float, squares: float) -> float:
    """Standard deviation of n differences within −1 and 1, given their ``total`` and the total of their ``squares``, and of two more, of
    which half of one is gained and half of one lost; so a handful of pairs that all agree prove nothing."""
    return sqrt((squares + 1 - total**2 / (n + 2)) / (n + 2))


def agresti_min(n: int, total: float, squares: float, confidence: float = 0.95) -> Interval:
    """Of the mean of the same differences."""
    if n == 0:
        return Interval(-1.0, 1.0)
    centre = total / (n + 2)
    half = NormalDist().inv_cdf(0.5 + confidence / 2) * added_deviation(n, total, squares) / sqrt(n + 2)
    return Interval(max(-1.0, centre - half), min(1.0, centre + half))
