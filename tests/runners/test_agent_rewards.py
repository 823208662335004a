import asyncio
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy
import pytest

from leyden.errors import UsageError
from leyden.runners import InfrastructureFailure, ToolFailure, emit_reward, rollout
from leyden.runners.dry_run import DevResult, dev
from leyden.types import FailureKind


def _answer(value: Any) -> DevResult:
    @rollout
    async def agent(task: Any) -> Any:
        return value

    return dev(agent, [None])[0]


@pytest.mark.parametrize(
    ("value", "rewards"),
    [
        (None, {}),
        (1, {"reward": 1.0}),
        (0.25, {"reward": 0.25}),
        (True, {"reward": 1.0}),
        (Fraction(1, 4), {"reward": 0.25}),
        (numpy.float32(0.5), {"reward": 0.5}),
        (numpy.int64(3), {"reward": 3.0}),
        (numpy.bool_(True), {"reward": 1.0}),
        (numpy.array(0.5), {"reward": 0.5}),
        ({"exact": 1, "style": numpy.float64(0.5)}, {"exact": 1.0, "style": 0.5}),
        ({}, {}),
    ],
)
def test_what_an_agent_may_return(value: Any, rewards: dict[str, float]) -> None:
    result = _answer(value)
    assert result.error is None and {reward.name: reward.value for reward in result.rewards} == rewards


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (math.nan, "is nan"),
        (math.inf, "is inf"),
        (numpy.float32("nan"), "is nan"),
        (10**400, "is inf"),
        ("1.0", "is a str, not a number"),
        ([1.0], "is a list"),
        (1j, "is a complex"),
        (numpy.array([1.0]), "is a ndarray"),
        ({"ok": 1.0, "bad": None}, "'bad' is a NoneType"),
        ({3: 1.0}, "name is a text"),
        ({"": 1.0}, "name is a text"),
    ],
)
def test_what_is_no_reward_fails_the_attempt_as_the_agents_fault(value: Any, message: str) -> None:
    result = _answer(value)
    assert result.failure is FailureKind.AGENT and message in str(result.error) and not result.rewards


def test_emitted_and_returned_rewards_add_up_and_must_agree() -> None:
    @rollout
    async def agent(task: Any) -> Any:
        for name, value in task["emit"]:
            emit_reward(value, name)
        return task["answer"]

    def run(emit: list[tuple[str, float]], answer: Any) -> DevResult:
        return dev(agent, [{"emit": emit, "answer": answer}])[0]

    assert {r.name: r.value for r in run([("a", 1), ("b", 2)], {"c": 3}).rewards} == {"a": 1.0, "b": 2.0, "c": 3.0}
    assert run([("reward", 1), ("reward", 1)], 1.0).reward == 1.0
    assert "two values for reward 'reward': 1.0 and 0.0" in str(run([("reward", 1)], 0.0).error)
    assert "is nan" in str(run([("x", math.nan)], None).error)


def test_emit_reward_outside_a_rollout_is_wrong_use() -> None:
    with pytest.raises(UsageError, match="outside a rollout"):
        emit_reward(1.0)


def test_one_name_may_be_given_at_several_positions() -> None:
    @rollout
    async def agent(task: Any) -> float:
        emit_reward(0.25, position="gen-1")
        emit_reward(0.25, position="gen-1")
        return 1.0

    (result,) = dev(agent, [1])
    assert [(reward.value, reward.position) for reward in result.rewards] == [(0.25, "gen-1"), (1.0, "end")]


def test_rewards_emitted_from_the_agents_own_tasks_stay_with_its_rollout() -> None:
    """Many at once, all inside the agent before any goes on, each emitting from a task and a thread of its own."""
    n = 50
    inside: list[int] = []
    all_inside = asyncio.Event()

    @rollout
    async def agent(task: int) -> None:
        inside.append(task)
        if len(inside) == n:
            all_inside.set()
        await all_inside.wait()

        async def child() -> None:
            emit_reward(task, "task")

        await asyncio.create_task(child())
        await asyncio.to_thread(emit_reward, task, "thread")

    results = dev(agent, range(n), concurrency=n)
    assert [{r.name: r.value for r in result.rewards} for result in results] == [{"task": float(i), "thread": float(i)} for i in range(n)]


class _FakeAPIConnectionError(Exception):
    __module__ = "openai"
    __qualname__ = "APIConnectionError"


def _raise_from(error: Exception) -> None:
    try:
        raise error
    except Exception as cause:
        raise RuntimeError("wrapped") from cause


@pytest.mark.parametrize(
    ("act", "kind"),
    [
        (lambda: 1 / 0, FailureKind.AGENT),
        (lambda: _raise_from(ValueError("no")), FailureKind.AGENT),
        (lambda: _raise_from(TimeoutError()), FailureKind.TOOL),
        (lambda: _raise_from(ConnectionRefusedError()), FailureKind.INFRASTRUCTURE),
        (lambda: _raise_from(_FakeAPIConnectionError()), FailureKind.INFRASTRUCTURE),
        (lambda: _raise_from(ToolFailure("stuck")), FailureKind.TOOL),
        (lambda: _raise_from(InfrastructureFailure("gone")), FailureKind.INFRASTRUCTURE),
    ],
)
def test_whose_fault_an_exception_is(act: Callable[[], Any], kind: FailureKind) -> None:
    @rollout
    async def agent(task: Any) -> None:
        act()

    (result,) = dev(agent, [None])
    assert result.failure is kind and result.error
