"""Which call a reward belongs to, policy by policy."""

from math import isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden.algorithm.attribution import Attribution, RewardPolicy, attribute
from leyden.algorithm.rows import build_rows
from leyden.algorithm.triplets import GenerationsToTriplets
from leyden.types import Generation, Reward

N_A = None


def by(policy, n, given, **options):
    return attribute(n, given, Attribution(policy=policy, **options))


@pytest.mark.parametrize(
    ("policy", "expected", "lost"),
    [
        ("recent", [0.2, 0.2, 1.0, 1.0], 0),
        ("final_to_all", [1.0, 1.0, 1.0, 1.0], 0),
        ("per_call", [N_A, 0.2, N_A, N_A], 1),
        ("first_occurrence", [N_A, 0.2, N_A, 1.0], 0),
        ("discounted", [0.5 * (0.2 + 0.25), 0.2 + 0.25, 0.5, 1.0], 0),
    ],
)
def test_a_reward_on_the_second_of_four_calls_and_one_at_the_end(policy, expected, lost):
    assert by(policy, 4, [(2, 0.2), (5, 1.0)], gamma=0.5) == (expected, lost)


def test_a_single_reward_at_the_end_reaches_only_the_last_call_where_each_counts_once():
    """What confused the users of agent-lightning (issue 432): they had ``first_occurrence``; the recipe, and our default, carry it back."""
    assert by("first_occurrence", 3, [(4, 1.0)]) == ([None, None, 1.0], 0)
    assert by("recent", 3, [(4, 1.0)]) == ([1.0, 1.0, 1.0], 0)


def test_two_rewards_after_one_call_are_not_both_given_to_it():
    """agent-lightning pull request 403: the second one was matched with a call that had its reward."""
    assert by("first_occurrence", 3, [(2, 0.1), (2, 0.2)]) == ([0.2, 0.1, None], 0)
    assert by("first_occurrence", 1, [(1, 0.1), (2, 0.2)]) == ([0.1], 1)


def test_a_reward_before_any_call_belongs_to_none():
    for policy in RewardPolicy:
        assert by(policy, 2, [(0, 1.0)]) == ([None, None], 1)
        assert by(policy, 0, [(1, 1.0)]) == ([], 1)


def test_zero_is_a_reward_and_none_is_not():
    for policy in RewardPolicy:
        assert by(policy, 1, [(1, 0.0)]) == ([0.0], 0)
        assert by(policy, 1, []) == ([None], 0)


cases = st.integers(1, 8).flatmap(
    lambda n: st.tuples(st.just(n), st.lists(st.tuples(st.integers(0, n + 1), st.floats(-1, 1)), max_size=10))
)


@given(cases, st.floats(0, 1))
def test_every_reward_is_placed_or_counted(case, gamma):
    n, given_ = case
    placed = sorted((pair for pair in given_ if pair[0] >= 1), key=lambda pair: pair[0])
    value = dict(placed)
    before = len(given_) - len(placed)

    recent, lost = by("recent", n, given_)
    assert lost == before
    for i in range(1, n + 1):
        ahead = [k for k in value if k >= i]
        assert recent[i - 1] == (value[min(ahead)] if ahead else None)

    final, lost = by("final_to_all", n, given_)
    assert (set(final), lost) == ({value[max(value)] if value else None}, before)

    own, lost = by("per_call", n, given_)
    assert own == [value.get(i) for i in range(1, n + 1)]
    assert lost == before + sum(k == n + 1 for k, _ in placed)

    first, lost = by("first_occurrence", n, given_)
    assert sorted(x for x in first if x is not None) == sorted(x for x in first if x is not None and x in [v for _, v in placed])
    assert sum(x is not None for x in first) + lost == len(given_)
    if lost == before:
        assert isclose(sum(x or 0 for x in first), sum(v for _, v in placed), abs_tol=1e-9)

    returns, lost = by("discounted", n, given_, gamma=gamma)
    assert lost == before
    for i in range(1, n + 1):
        ahead = [gamma ** (min(k, n) - i) * v for k, v in placed if k >= i]
        assert (returns[i - 1] is None) == (not ahead)
        assert isclose(returns[i - 1] or 0.0, sum(ahead), abs_tol=1e-9)


@given(cases)
def test_undiscounted_the_first_call_gets_the_sum_of_all_and_fully_discounted_each_gets_its_own(case):
    n, given_ = case
    placed = [pair for pair in given_ if pair[0] >= 1]
    whole, _ = by("discounted", n, given_, gamma=1.0)
    assert isclose(whole[0] or 0.0, sum(v for _, v in placed), abs_tol=1e-9)
    own, _ = by("discounted", n, given_, gamma=0.0)
    for i in range(1, n + 1):
        assert isclose(own[i - 1] or 0.0, sum(v for k, v in placed if min(k, n) == i), abs_tol=1e-9)


def calls(n):
    history, made = [5], []
    for number in range(n):
        made.append(
            Generation(id=f"g{number}", call_id=f"g{number}", rollout_id="r", attempt=1, model="m", prompt_token_ids=list(history),
                       response_token_ids=[7, 2], finish_reason="stop", started_at=number, latency=0.1)
        )  # fmt: skip
        history += [7, 2, 9]
    return made


def rows_under(policy):
    rewards = [Reward(value=0.5, position="g1", rollout_id="r", attempt=1), Reward(value=1.0, rollout_id="r", attempt=1)]
    adapter = GenerationsToTriplets(attribution=Attribution(policy=policy, gamma=0.5))
    built = build_rows(adapter.adapt(calls(4), rewards), {}, {2})
    return [(row.generation_ids, row.reward) for row in built.rows], built, adapter


def test_calls_share_a_row_as_far_as_they_share_a_reward():
    assert rows_under("final_to_all")[0] == [(("g0", "g1", "g2", "g3"), 1.0)]
    assert rows_under("recent")[0] == [(("g0", "g1"), 0.5), (("g2", "g3"), 1.0)]
    assert [ids for ids, _ in rows_under("discounted")[0]] == [("g0",), ("g1",), ("g2",), ("g3",)]


def test_a_call_without_a_reward_is_refused_and_an_unplaced_reward_is_counted():
    rows, built, adapter = rows_under("per_call")
    assert rows == [(("g1",), 0.5)]
    (entry,) = built.quarantined
    assert (entry.reason, entry.generation_ids) == ("no_reward", ("g0", "g2", "g3"))
    assert adapter.unplaced_rewards == 1
