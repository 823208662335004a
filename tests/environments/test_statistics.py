import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden.environments.statistics import Interval, compare_paired, wilson


@pytest.mark.parametrize(
    ("passed", "n", "low", "high"),
    [
        (0, 10, 0.0, 0.2775),  # Newcombe 1998, table I gives 0–27.75 % for 0/10
        (81, 263, 0.2553, 0.3662),  # Newcombe 1998, method 3
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_gives_the_published_intervals(passed, n, low, high):
    interval = wilson(passed, n)
    assert interval.low == pytest.approx(low, abs=5e-5)
    assert interval.high == pytest.approx(high, abs=5e-5)


@given(st.integers(0, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_the_rate_and_mirrors(case):
    passed, n = case
    interval, mirrored = wilson(passed, n), wilson(n - passed, n)
    assert 0 <= interval.low <= interval.high <= 1
    if n:
        assert interval.low <= passed / n <= interval.high
    assert interval.low == pytest.approx(1 - mirrored.high)


def test_wilson_refuses_what_is_no_proportion():
    with pytest.raises(ValueError):
        wilson(5, 4)


def test_mcnemar_counts_only_the_pairs_that_differ():
    pairs = [(False, True)] * 8 + [(True, False)] * 1 + [(True, True)] * 30 + [(False, False)] * 25
    result = compare_paired(pairs)
    assert (result.pairs, result.gained, result.lost) == (64, 8, 1)
    assert result.difference == pytest.approx(7 / 64)
    assert result.p_higher == pytest.approx(10 / 512)  # (C(9,8) + C(9,9)) / 2^9
    assert result.p_lower == pytest.approx(511 / 512)
    assert result.interval.low > 0


def test_no_pairs_say_nothing():
    result = compare_paired([])
    assert (result.pairs, result.difference, result.p_higher, result.p_lower) == (0, 0.0, 1.0, 1.0)
    assert result.interval == Interval(-1.0, 1.0)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=80))
def test_swapping_the_arms_swaps_the_answer(pairs):
    one, other = compare_paired(pairs), compare_paired((b, a) for a, b in pairs)
    assert one.p_higher == pytest.approx(other.p_lower)
    assert one.difference == pytest.approx(-other.difference)
    assert one.interval.low == pytest.approx(-other.interval.high)
    assert one.interval.low <= one.difference <= one.interval.high


def test_intervals_apart():
    assert Interval(0.1, 0.3).apart_from(Interval(0.31, 0.5))
    assert not Interval(0.1, 0.3).apart_from(Interval(0.3, 0.5))
