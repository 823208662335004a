"""Which of an attempt's rewards belongs to which of its calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

from pydantic import Field

from leyden.types import Record

END = "end"  # the position of a reward for the attempt as a whole


class RewardPolicy(StrEnum):
    """``n`` calls in order, v(k) the reward given after call k, v(n + 1) the one at the end; of two after one call the later counts.

    ========================  =====================================================================================
    ``recent``                R(i) = v(k) of the least k ≥ i: walking backwards, the most recent one (the recipe's rule)
    ``final_to_all``          R(i) = v(k) of the greatest k: what the attempt came to
    ``per_call``              R(i) = v(i); one at the end belongs to no call
    ``first_occurrence``      each reward goes to the latest call before it that has none yet, and to no other
    ``discounted``            R(i) = Σ γ^(min(k, n) − i) · v(k) over all rewards with k ≥ i: the discounted return
    ========================  =====================================================================================

    A call that no reward belongs to has none, which is not a reward of 0. Calls of different rewards never share a row: under
    ``per_call``, ``first_occurrence`` and ``discounted`` most calls are rows of their own.
    """

    RECENT = "recent"
    FINAL_TO_ALL = "final_to_all"
    PER_CALL = "per_call"
    FIRST_OCCURRENCE = "first_occurrence"
    DISCOUNTED = "discounted"


class Attribution(Record):
    policy: RewardPolicy = RewardPolicy.RECENT
    gamma: float = Field(0.95, ge=0, le=1)  # of ``discounted``


Given = Sequence[tuple[int, float]]
"""(k, value) of each reward, in the order they were given: after call k, counted from 1, or n + 1 for the end."""


def attribute(n: int, given: Given, how: Attribution) -> tuple[list[float | None], int]:
    """The reward of each of ``n`` calls, and how many rewards belong to none."""
    placed = sorted((pair for pair in given if n and 1 <= pair[0] <= n + 1), key=lambda pair: pair[0])
    if how.policy is RewardPolicy.DISCOUNTED:
        rewards, lost = _discounted(n, placed, how.gamma), 0
    else:
        rewards, lost = _POLICIES[how.policy](n, placed)
    return rewards, len(given) - len(placed) + lost


def positions(calls: Sequence[str], rewards: Mapping[str, float]) -> list[tuple[int, float]]:
    """Rewards by position, as ``attribute`` takes them. One on what is none of the ``calls`` gets 0: before them all."""
    places = {call: k for k, call in enumerate(calls, 1)} | {END: len(calls) + 1}
    return [(places.get(position, 0), value) for position, value in rewards.items()]


# -- with ``given`` in the order of k, each within 1 and n + 1 -------------------------------------------------------------


def _recent(n: int, given: Given) -> tuple[list[float | None], int]:
    value = dict(given)
    rewards: list[float | None] = []
    recent = value.get(n + 1)
    for i in range(n, 0, -1):
        rewards.append(recent := value.get(i, recent))
    return rewards[::-1], 0


def _final_to_all(n: int, given: Given) -> tuple[list[float | None], int]:
    return [given[-1][1] if given else None] * n, 0


def _per_call(n: int, given: Given) -> tuple[list[float | None], int]:
    value = dict(given)
    return [value.get(i) for i in range(1, n + 1)], sum(k > n for k, _ in given)


def _first_occurrence(n: int, given: Given) -> tuple[list[float | None], int]:
    rewards: list[float | None] = [None] * n
    free: list[int] = []  # calls so far that have none, the latest last
    lost = passed = 0
    for k, value in given:
        free += range(passed, min(k, n))
        passed = min(k, n)
        if free:
            rewards[free.pop()] = value
        else:
            lost += 1
    return rewards, lost


def _discounted(n: int, given: Given, gamma: float) -> list[float | None]:
    rewards: list[float | None] = []
    ahead, left = None, list(given)
    for i in range(n, 0, -1):
        ahead = None if ahead is None else gamma * ahead
        while left and left[-1][0] >= i:
            ahead = (ahead or 0.0) + left.pop()[1]
        rewards.append(ahead)
    return rewards[::-1]


_POLICIES: Mapping[RewardPolicy, Callable[[int, Given], tuple[list[float | None], int]]] = {
    RewardPolicy.RECENT: _recent,
    RewardPolicy.FINAL_TO_ALL: _final_to_all,
    RewardPolicy.PER_CALL: _per_call,
    RewardPolicy.FIRST_OCCURRENCE: _first_occurrence,
}
