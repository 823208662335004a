"""Two policies on the same tasks, several attempts a task: the difference of their pass rates, its interval and its p-values.

The attempts at one task are not independent: an easy task is easy each time. So the tasks are what is counted. Each gives one number,
the difference of its two pass rates, and the test asks how often a sum of differences as large comes about when the sign of each is
tossed: if both policies are equally good at each task, and have as many attempts at it, a difference is as likely as its opposite,
whatever the task's difficulty. That is the randomisation test for paired data (R. A. Fisher, "The Design of Experiments", 1935, section
21; E. J. G. Pitman, 1937), exact for any number of tasks. With one attempt a task it is McNemar's exact test, p-value for p-value.

Of the one that has more attempts at a task only as many count as the other has, the first ones. With one attempt against eight, at hard
tasks alone, the test would be wrong up to four times as often as it says.

The interval is that of Agresti and Min with the tasks' differences in the place of single pairs (equal to theirs with one attempt).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import lcm

from leyden.environments.statistics import PairedComparison, added_deviation, agresti_min

EXACT_BITS = 2**25  # of the whole distribution, as one number: 1,000 tasks of 8 attempts take a quarter of it
FLIPS = 20_000  # where that is not enough


def compare_clustered(pairs: Iterable[tuple[Sequence[bool], Sequence[bool]]], confidence: float = 0.95) -> PairedComparison:
    """``pairs``: of each task, which attempts of the first and of the second policy passed, in the order they were made. A task that one
    of them has no scored attempt at says nothing, and is left out; of more attempts than the other has, the first count.
    """
    tasks = [(first, second, k) for first, second in pairs if (k := min(len(first), len(second)))]
    unit = lcm(*(k for *_, k in tasks))
    return _compare([(int(sum(second[:k])) - int(sum(first[:k]))) * (unit // k) for first, second, k in tasks], unit, confidence)


def compare_differences(differences: Sequence[Fraction], confidence: float = 0.95) -> PairedComparison:
    """The same for any number a task, second minus first, within −1 and 1."""
    unit = lcm(*(difference.denominator for difference in differences))
    return _compare([int(difference * unit) for difference in differences], unit, confidence)


def _compare(whole: Sequence[int], unit: int, confidence: float) -> PairedComparison:
    """``whole``: the differences in parts of 1 / ``unit``, so that sums that tie are equal."""
    n, total = len(whole), sum(whole)
    weights = [abs(difference) for difference in whole if difference]
    squares = sum(weight * weight for weight in weights) / unit**2
    higher, lower = _tails(weights, total)
    return PairedComparison(
        pairs=n,
        gained=sum(difference > 0 for difference in whole),
        lost=sum(difference < 0 for difference in whole),
        difference=total / unit / n if n else 0.0,
        interval=agresti_min(n, total / unit, squares, confidence),
        p_higher=higher,
        p_lower=lower,
        deviation=added_deviation(n, total / unit, squares),
    )


def _tails(weights: Sequence[int], total: int) -> tuple[float, float]:
    """How likely Σ ±weight is at least ``total``, and at most, when the signs are tossed."""
    if sum(weights) * (len(weights) + 1) > EXACT_BITS:
        return _simulated_tails(weights, total)
    positive = (sum(weights) + total) // 2  # what the weights with a plus add up to
    return _exact_tail(weights, positive), _exact_tail(weights, sum(weights) - positive)


def _exact_tail(weights: Sequence[int], least: int) -> float:
    """P(Σ of the weights that came up heads ≥ ``least``).

    The product of all (1 + x^weight) counts the tosses that come to each sum. It is kept as one integer whose digits, in a base larger
    than all counts together, are its coefficients; the sum of digits is the remainder by base − 1.
    """
    width = len(weights) + 2
    counts = 1
    for weight in weights:
        counts += counts << weight * width
    return int((counts >> least * width) % (2**width - 1)) / 2 ** len(weights)


def _simulated_tails(weights: Sequence[int], total: int) -> tuple[float, float]:
    """By tosses with a fixed seed. The observed sum counts as one of them, so that p is never 0 (B. Phipson and G. K. Smyth, 2010)."""
    rng = random.Random(0)
    everything = sum(weights)
    higher = lower = 1
    equal = Counter(weights).items()  # so many coins for each weight
    for _ in range(FLIPS):
        tossed = 2 * sum(weight * rng.getrandbits(coins).bit_count() for weight, coins in equal) - everything
        higher += tossed >= total
        lower += tossed <= total
    return higher / (FLIPS + 1), lower / (FLIPS + 1)
