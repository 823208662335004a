"""Our numbers beside those of scipy and statsmodels, over random cases."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.proportion import proportion_confint

from leyden.environments.compare import compare_clustered, compare_differences
from leyden.environments.power import clustered_power, mcnemar_power, smallest_difference
from leyden.environments.statistics import compare_paired, pass_at_k, pass_hat_k, wilson, wilson_by_task

CASES = 1000


def draws(seed, make):
    rng = random.Random(seed)
    return [make(rng) for _ in range(CASES)]


def test_wilson_is_that_of_statsmodels():
    for n, share, confidence in draws(1, lambda r: (r.randint(1, 500), r.random(), r.choice([0.8, 0.9, 0.95, 0.99]))):
        passed = round(n * share)
        ours, theirs = wilson(passed, n, confidence), proportion_confint(passed, n, 1 - confidence, "wilson")
        assert (ours.low, ours.high) == pytest.approx(theirs, abs=1e-9)


def test_mcnemar_is_the_exact_one_of_scipy_and_statsmodels():
    for gained, lost, same in draws(2, lambda r: (r.randint(0, 60), r.randint(0, 60), r.randint(0, 99))):
        ours = compare_paired([(False, True)] * gained + [(True, False)] * lost + [(True, True)] * same)
        if gained + lost:
            assert ours.p_higher == pytest.approx(stats.binomtest(gained, gained + lost, alternative="greater").pvalue)
            assert ours.p_lower == pytest.approx(stats.binomtest(gained, gained + lost, alternative="less").pvalue)
            both = mcnemar([[same, lost], [gained, 0]], exact=True).pvalue
            assert min(1, 2 * min(ours.p_higher, ours.p_lower)) == pytest.approx(both)


def test_pass_at_k_and_pass_hat_k_are_hypergeometric():
    cases = np.array(draws(3, lambda r: (size := r.randint(1, 60), r.randint(0, size), r.randint(1, size))))
    n, c, k = cases.T
    assert [pass_at_k(*map(int, case)) for case in cases] == pytest.approx(1 - stats.hypergeom.pmf(0, n, c, k), abs=1e-9)
    assert [pass_hat_k(*map(int, case)) for case in cases] == pytest.approx(stats.hypergeom.pmf(k, n, c, k), abs=1e-9)


def random_tasks(rng, n):
    tasks = []
    for difficulty in (rng.random() for _ in range(n)):
        tasks.append(tuple([rng.random() < difficulty for _ in range(rng.randint(1, 4))] for _ in range(2)))
    return tasks


def test_the_clustered_test_is_the_exact_permutation_test_of_scipy():
    for number, tasks in enumerate(draws(4, lambda r: random_tasks(r, r.randint(2, 7)))):
        ours = compare_clustered(tasks)
        kept = [(a[:k], b[:k]) for a, b in tasks if (k := min(len(a), len(b)))]  # as many attempts of both
        difference = np.array([np.mean(b) - np.mean(a) for a, b in kept])
        assert ours.difference == pytest.approx(difference.mean(), abs=1e-12)
        # scipy's own tolerance for sums that tie is relative; a whole denominator makes ties exact.
        whole = np.round(difference * 12).astype(int)
        alternative, p = ("greater", ours.p_higher) if number % 2 else ("less", ours.p_lower)
        result = stats.permutation_test((whole,), np.sum, permutation_type="samples", alternative=alternative, n_resamples=128)
        assert p == pytest.approx(result.pvalue, abs=1e-9)


def test_with_one_attempt_a_task_the_clustered_test_is_mcnemars():
    for pairs in draws(5, lambda r: [(r.random() < 0.5, r.random() < 0.6) for _ in range(r.randint(1, 80))]):
        assert compare_clustered(([a], [b]) for a, b in pairs) == compare_paired(pairs)


def test_over_many_tasks_the_clustered_test_comes_close_to_the_paired_t_test():
    rng = random.Random(6)
    for _ in range(20):
        tasks = [([rng.random() < p for _ in range(4)], [rng.random() < p + 0.03 for _ in range(4)]) for p in np.linspace(0.1, 0.9, 200)]
        theirs = stats.ttest_rel([np.mean(b) for _, b in tasks], [np.mean(a) for a, _ in tasks], alternative="greater").pvalue
        assert compare_clustered(tasks).p_higher == pytest.approx(theirs, abs=0.03)


def test_what_is_too_large_to_count_is_tossed_and_comes_close():
    rng = random.Random(7)
    exact = [Fraction(rng.randint(-8, 9), 8) for _ in range(400)]
    whole = compare_differences(exact)
    tossed = compare_differences([*exact, Fraction(0), Fraction(1, 99_991), Fraction(-1, 99_991)])  # no common denominator that is small
    assert tossed.p_higher == pytest.approx(whole.p_higher, abs=0.02)
    assert tossed.p_higher + tossed.p_lower >= 1


def test_power_is_what_enumeration_by_scipy_gives():
    rng = random.Random(8)
    for _ in range(30):
        n, gained, lost, alpha = rng.randint(1, 60), rng.random() / 2, rng.random() / 2, rng.choice([0.01, 0.025, 0.05])
        expected = 0.0
        for discordant in range(1, n + 1):
            k = np.arange(discordant + 1)
            found = stats.binom.sf(k - 1, discordant, 0.5) < alpha
            ways = stats.binom.pmf(k, discordant, gained / (gained + lost))
            expected += stats.binom.pmf(discordant, n, gained + lost) * ways[found].sum()
        assert mcnemar_power(n, gained, lost, alpha) == pytest.approx(expected, abs=1e-9)


def test_the_smallest_difference_is_found_four_times_in_five_and_a_smaller_one_is_not():
    for n, lost in ((32, 0.05), (128, 0.1), (500, 0.02)):
        smallest = smallest_difference(n, lost)
        assert mcnemar_power(n, lost + smallest, lost) >= 0.8 > mcnemar_power(n, lost + smallest - 0.001, lost)
    assert smallest_difference(4, 0.1) is None  # four tasks can show nothing
    assert clustered_power(128, 0.0, 0.3) == pytest.approx(0.05)


def test_the_interval_by_task_is_wilsons_with_one_attempt_and_wider_where_attempts_resemble_each_other():
    for counts in draws(9, lambda r: [(int(r.random() < 0.4), 1) for _ in range(r.randint(1, 60))]):
        assert wilson_by_task(counts) == wilson(sum(passed for passed, _ in counts), len(counts))
    alike, mixed = wilson_by_task([(8, 8)] * 20 + [(0, 8)] * 20), wilson_by_task([(4, 8)] * 40)
    assert alike.high - alike.low > 2 * (mixed.high - mixed.low)
    assert (alike.low, alike.high) == pytest.approx(proportion_confint(20, 40, method="wilson"), abs=0.01)  # as 40 tasks, not as 320
