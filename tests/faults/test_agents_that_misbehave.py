"""Agents that hang, fork, exit and close what is not theirs, in a runner they share with others who do no harm."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from leyden.process import find_by_marker
from leyden.runners import PoolConfig, RunnerPool
from leyden.server.serving import listening
from leyden.server.sqlstore import SQLStore
from leyden.types import LLM, Attempt, AttemptState, FailureKind, NewRollout, Rollout, RolloutConfig, RolloutState

ROOT = Path(__file__).parents[2]
AGENTS = Path(__file__).with_name("agents_that_misbehave.py")
LIMIT = 120.0  # seconds until a test that hangs is told so
TIMEOUT = 3.0  # seconds an attempt of the misbehaving one has
MARGIN = 5.0  # seconds after which its attempt must have ended

sys.path.insert(0, str(ROOT / "tests" / "examples"))
from scripted_llm import ScriptedLLM, call, say, solve  # noqa: E402


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), LIMIT))


@asynccontextmanager
async def runners(agent: str, **more: Any) -> AsyncIterator[SQLStore]:
    """One runner process. Nothing of it, nor of what its agents started, is left at the end."""
    marker = secrets.token_hex(6)
    async with await SQLStore.open(sweep_every=0.1) as store, listening(store) as where:
        config = PoolConfig(agent=agent, store_url=where.url, n=1, **{"lease_seconds": 8.0, "grace": 1.0, **more})
        async with RunnerPool(config, marker=marker):
            yield store
    assert not find_by_marker(marker)


async def finals(store: SQLStore, rollouts: list[Rollout]) -> list[Rollout]:
    ids = [item.id for item in rollouts]
    while len(await store.wait_rollouts(ids, wait=20.0)) < len(ids):
        pass
    return await store.list_rollouts(ids=ids)


async def counted(store: SQLStore, rollout: Rollout) -> list[Attempt]:
    return [attempt for attempt in await store.list_attempts(rollout.id) if attempt.state is not AttemptState.RELEASED]


def found(place: Path, what: str) -> list[Path]:
    return list(place.glob(f"{what}-*"))


def seconds(attempt: Attempt) -> float:
    assert attempt.ended_at is not None
    return (attempt.ended_at - attempt.started_at) / 1e6


SUCCEEDED, FAILED = AttemptState.SUCCEEDED, AttemptState.FAILED
CASES = [
    ("in_a_thread", "spin", AttemptState.TIMED_OUT),
    ("in_the_loop", "spin", AttemptState.TIMED_OUT),
    ("in_a_thread", "freeze", AttemptState.TIMED_OUT),
    *((agent, f"fork and {what}", state)
      for agent in ("in_the_loop", "in_a_thread")
      for what, state in (("leave it", SUCCEEDED), ("exit", FAILED), ("come back", SUCCEEDED), ("exit in the child", SUCCEEDED))),
    ("in_the_loop", "fork and wait in the fork", SUCCEEDED),
    ("in_the_loop", "close stdout", SUCCEEDED),
    ("in_a_thread", "close stdout and open a file", SUCCEEDED),
    ("in_the_loop", "close every pipe", AttemptState.LOST),
    ("in_the_loop", "raise SystemExit", FAILED),
    ("in_a_thread", "raise SystemExit", FAILED),
    ("in_the_loop", "exit in a task", FAILED),
    ("in_the_loop", "end the process", AttemptState.LOST),
]  # fmt: skip


@pytest.mark.parametrize(("agent", "mischief", "state"), CASES)
def test_mischief_ends_in_its_own_attempts_state_and_harms_nobody_beside_it(
    agent: str, mischief: str, state: AttemptState, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with runners(f"{AGENTS}:{agent}") as store:
            config = RolloutConfig(attempt_timeout=TIMEOUT, max_attempts=1, max_lost=1)
            (culprit,) = await store.enqueue([NewRollout(input={"do": mischief, "dir": str(tmp_path)}, config=config)])
            harmless = NewRollout(input={"do": "no harm", "dir": str(tmp_path)}, config=RolloutConfig(max_attempts=1))
            others = await store.enqueue([harmless] * 3)
            (ended,) = await finals(store, [culprit])
            (tmp_path / "go").touch()
            (attempt,) = await counted(store, ended)
            assert attempt.state is state, attempt.error
            assert seconds(attempt) <= TIMEOUT + MARGIN
            for other in await finals(store, others):
                assert other.state is RolloutState.SUCCEEDED, other.error
                (answer,) = await store.list_rewards([other.id])
                assert answer.value == 1.0
        orphans = [int(path.name.split("-")[1]) for path in found(tmp_path, "orphan")]
        assert bool(orphans) == (mischief in ("fork and leave it", "fork and exit"))
        assert not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in orphans)

    run(scenario)


@pytest.mark.parametrize("agent", ["in_the_loop", "in_a_thread"])
def test_one_that_is_cancelled_in_the_middle_is_cancelled_and_nobody_else(agent: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with runners(f"{AGENTS}:{agent}", lease_seconds=2.0) as store:
            mischief = "wait" if agent == "in_the_loop" else "spin"
            (culprit,) = await store.enqueue([NewRollout(input={"do": mischief, "dir": str(tmp_path)})])
            harmless = NewRollout(input={"do": "no harm", "dir": str(tmp_path)}, config=RolloutConfig(max_attempts=1))
            others = await store.enqueue([harmless] * 3)
            while len(found(tmp_path, "beside")) < 3:
                await asyncio.sleep(0.02)
            assert await store.cancel([culprit.id]) == 1
            (ended,) = await finals(store, [culprit])
            (attempt,) = await counted(store, ended)
            assert (attempt.state, attempt.failure) == (AttemptState.CANCELLED, FailureKind.CANCELLED)
            (tmp_path / "go").touch()
            assert [other.state for other in await finals(store, others)] == [RolloutState.SUCCEEDED] * 3

    run(scenario)


def test_a_tool_call_that_never_ends_costs_its_own_attempt_the_answer_and_the_others_nothing() -> None:
    def answer(messages: list[dict[str, Any]]) -> dict[str, Any]:
        if "999" not in next(message["content"] for message in reversed(messages) if message["role"] == "user"):
            return solve(messages)
        return say("I do not know") if messages[-1]["role"] == "tool" else call("9**9**9")

    async def scenario() -> None:
        with ScriptedLLM(answer) as llm:
            async with runners(f"{ROOT / 'examples' / 'math' / 'math_agent.py'}:math_agent", lease_seconds=60.0) as store:
                await store.add_resources({"llm": LLM(endpoint=llm.url, model="m")})
                config = RolloutConfig(max_attempts=1, attempt_timeout=30.0)
                tasks = [
                    {"input": "What is 999 + 1?", "target": 1000},
                    *({"input": f"What is 2 + {i}?", "target": 2 + i} for i in range(6)),
                ]
                rollouts = await store.enqueue([NewRollout(input=task, config=config) for task in tasks])
                done = await finals(store, rollouts)
                assert [item.state for item in done] == [RolloutState.SUCCEEDED] * len(tasks)
                rewards = {reward.rollout_id: reward.value for reward in await store.list_rewards([item.id for item in done])}
                assert [rewards[item.id] for item in done] == [0.0] + [1.0] * 6
                for item in done:
                    (attempt,) = await store.list_attempts(item.id)
                    assert seconds(attempt) <= 30.0 + MARGIN

    run(scenario)


def test_a_runner_stopped_during_a_tool_call_that_never_ends_leaves_no_tool_server_behind() -> None:
    async def scenario() -> None:
        with ScriptedLLM(lambda messages: call("9**9**9")) as llm:
            async with runners(f"{ROOT / 'examples' / 'math' / 'math_agent.py'}:math_agent") as store:
                await store.add_resources({"llm": LLM(endpoint=llm.url, model="m")})
                (item,) = await store.enqueue([NewRollout(input={"input": "What is 999 + 1?", "target": 1000})])
                while not llm.requests:
                    await asyncio.sleep(0.02)
            assert item.state is RolloutState.QUEUED

    run(scenario)
