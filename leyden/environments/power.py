"""What a comparison of n tasks can find: the power of McNemar's exact test, by enumeration."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import ceil, exp, lgamma, log, sqrt
from statistics import NormalDist

OFTEN = 0.8  # four times in five
_NEGLIGIBLE = 1e-12
_STANDARD = NormalDist()


@lru_cache(maxsize=4096)
def mcnemar_power(n: int, gained: float, lost: float, alpha: float = 0.05) -> float:
    """How likely n pairs show a gain: p_higher of ``compare_paired`` below ``alpha``.

    ``gained``, ``lost``: the shares of tasks that only the second, and only the first, passes. Summed over every number of pairs that may
    differ, and of those gained. Raises ``ValueError`` for what are no shares.
    """
    differ = gained + lost
    if min(gained, lost) < 0 or differ > 1 + 1e-12:
        raise ValueError(f"{gained} gained and {lost} lost are no shares of the tasks")
    power = 0.0
    for discordant in range(1, n + 1):
        weight = _binomial(discordant, n, min(1.0, differ))
        if weight > _NEGLIGIBLE:
            least = least_gained(discordant, alpha)
            power += weight * sum(_binomial(k, discordant, gained / differ) for k in range(least, discordant + 1))
    return min(1.0, power)


@lru_cache(maxsize=4096)
def smallest_difference(n: int, lost: float, alpha: float = 0.05, power: float = OFTEN) -> float | None:
    """The smallest rise of the pass rate that n pairs find with this power, while a share ``lost`` of the tasks is lost by chance.

    To a thousandth. None where even the greatest rise that leaves room for the losses is not found.
    """
    low, high = 0, int(1000 * (1 - 2 * lost))  # of 1000
    if high <= 0 or mcnemar_power(n, lost + high / 1000, lost, alpha) < power:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if mcnemar_power(n, lost + middle / 1000, lost, alpha) < power:
            low = middle
        else:
            high = middle
    return high / 1000


def clustered_power(n: int, difference: float, deviation: float, alpha: float = 0.05) -> float:
    """How likely n tasks of several attempts each show a rise of their mean, by the normal approximation. ``deviation``: of the tasks'
    differences."""
    return _STANDARD.cdf(difference * sqrt(n) / deviation - _STANDARD.inv_cdf(1 - alpha))


def smallest_clustered(n: int, deviation: float, alpha: float = 0.05, power: float = OFTEN) -> float | None:
    """The smallest rise that they find with this power. None without tasks."""
    return (_STANDARD.inv_cdf(1 - alpha) + _STANDARD.inv_cdf(power)) * deviation / sqrt(n) if n else None


@lru_cache(maxsize=65_536)
def least_gained(discordant: int, alpha: float) -> int:
    """How many of the pairs that differ must be gains for p < ``alpha``; one more than there are where none is enough."""
    allowed = ceil(Fraction(alpha) * 2**discordant)
    ways, tail, least = 1, 0, discordant + 1
    while least and tail + ways < allowed:  # ways to gain least − 1 of them, from all of them downwards
        tail += ways
        least -= 1
        ways = ways * least // (discordant - least + 1)
    return least


def _binomial(k: int, n: int, p: float) -> float:
    if p in (0.0, 1.0):
        return float(k == n * p)
    return exp(lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1) + k * log(p) + (n - k) * log(1 - p))
