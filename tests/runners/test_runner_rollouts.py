"""One runner in this process against a real store over HTTP."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from leyden.errors import Unavailable
from leyden.runners import Agent, Runner, RunnerConfig, emit_reward, rollout
from leyden.runners import runner as runner_module
from leyden.runners.runner import Ending
from leyden.server import sqlstore
from leyden.server.client import StoreClient
from leyden.server.serving import listening
from leyden.server.sqlstore import SQLStore
from leyden.types import LLM, AttemptState, FailureKind, NewRollout, Rollout, RolloutConfig, RolloutState, Verdict

LIMIT = 30.0  # seconds until a test that hangs is told so


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), LIMIT))


@asynccontextmanager
async def working(
    agent: Agent, connect: Callable[[str], StoreClient] = StoreClient, **config: Any
) -> AsyncIterator[tuple[SQLStore, Runner, asyncio.Task[Ending]]]:
    """A store, and a runner that works for it until the block ends."""
    async with await SQLStore.open(sweep_every=0.1) as store, listening(store) as where:
        runner = Runner(agent, lambda: connect(where.url), RunnerConfig(**config))
        task = asyncio.create_task(runner.run())
        try:
            yield store, runner, task
        finally:
            runner.release()
            await task


async def finals(store: SQLStore, rollouts: list[Rollout]) -> list[Rollout]:
    ids = [item.id for item in rollouts]
    await store.wait_rollouts(ids, wait=20.0)
    return await store.list_rollouts(ids=ids)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def new(*inputs: Any, **config: Any) -> list[NewRollout]:
    return [NewRollout(input=item, config=RolloutConfig(retry_delay=0.0, **config)) for item in inputs]


def test_many_rollouts_at_once_keep_their_rewards_apart() -> None:
    most = 0
    running = 0

    @rollout
    async def agent(task: int) -> dict[str, float]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001 * (task % 7))
        await asyncio.to_thread(emit_reward, task, "emitted")
        running -= 1
        return {"reward": task / 2}

    async def scenario() -> None:
        async with working(agent, concurrency=16) as (store, _, _):
            done = await finals(store, await store.enqueue(new(*range(100))))
            assert all(item.state is RolloutState.SUCCEEDED and item.attempt == 1 for item in done)
            rewards = await store.list_rewards([item.id for item in done])
            by_rollout = {(reward.rollout_id, reward.name): reward.value for reward in rewards}
            assert len(rewards) == 200
            for item in done:
                assert by_rollout[item.id, "emitted"] == item.input and by_rollout[item.id, "reward"] == item.input / 2
            assert 1 < most <= 16

    run(scenario)


def test_a_proxied_llm_comes_with_the_attempts_own_key_and_another_with_its_own() -> None:
    keys: list[str | None] = []

    @rollout
    async def agent(task: Any, proxied: LLM, direct: LLM) -> None:
        keys.extend([proxied.api_key, direct.api_key])

    async def scenario() -> None:
        async with working(agent) as (store, _, _):
            proxied = LLM(endpoint="http://127.0.0.1:1/v1", model="m", proxied=True)
            await store.add_resources({"proxied": proxied, "direct": proxied.model_copy(update={"proxied": False})})
            (first,) = await finals(store, await store.enqueue(new(1)))
            (second,) = await finals(store, await store.enqueue(new(2)))
            assert first.state is second.state is RolloutState.SUCCEEDED
            assert keys[0] and keys[2] and keys[0] != keys[2] and keys[1] is keys[3] is None

    run(scenario)


def test_a_failure_keeps_its_kind_and_only_the_retried_kinds_run_again() -> None:
    calls: dict[str, int] = {}

    @rollout
    async def agent(task: str) -> float:
        calls[task] = calls.get(task, 0) + 1
        if task == "nan":
            return float("nan")
        if task == "exit":
            raise SystemExit("bye")
        if task == "interrupt":
            raise KeyboardInterrupt
        if task == "cancelled":
            raise asyncio.CancelledError
        if task == "bug":
            raise ValueError("no number")
        if task == "endpoint" and calls[task] < 3:
            raise ConnectionRefusedError("nobody there")
        return 1.0

    async def scenario() -> None:
        async with working(agent) as (store, _, _):
            tasks = ["nan", "exit", "interrupt", "cancelled", "bug", "endpoint", "good"]
            done = {item.input: item for item in await finals(store, await store.enqueue(new(*tasks)))}
            for task in tasks[:5]:
                assert (done[task].state, done[task].failure, done[task].attempt) == (RolloutState.FAILED, FailureKind.AGENT, 1)
            assert "ValueError: no number" in str(done["bug"].error) and "is nan" in str(done["nan"].error)
            assert (done["endpoint"].state, done["endpoint"].attempt) == (RolloutState.SUCCEEDED, 3)
            assert done["good"].state is RolloutState.SUCCEEDED

    run(scenario)


def test_a_cancel_reaches_a_running_agent_and_what_it_answers_then_does_not_count() -> None:
    inside, told = asyncio.Event(), asyncio.Event()

    @rollout
    async def agent(task: Any) -> float:
        inside.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            told.set()
        return 1.0  # as if nothing had been

    async def scenario() -> None:
        async with working(agent, lease_seconds=1.0) as (store, _, _):
            (item,) = await store.enqueue(new(1))
            await inside.wait()
            assert await store.cancel([item.id]) == 1
            await told.wait()
            (done,) = await finals(store, [item])
            assert done.state is RolloutState.CANCELLED and not await store.list_rewards([item.id])

    run(scenario)


def test_an_attempt_past_its_time_is_stopped_and_named_timed_out() -> None:
    stopped = asyncio.Event()

    @rollout
    async def agent(task: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async def scenario() -> None:
        async with working(agent) as (store, _, _):
            (done,) = await finals(store, await store.enqueue(new(1, attempt_timeout=0.3)))
            await stopped.wait()
            assert (done.state, done.failure) == (RolloutState.FAILED, FailureKind.TIMEOUT)

    run(scenario)


def test_an_agent_that_blocks_the_event_loop_keeps_its_lease() -> None:
    """The runner's loop stands still until twelve beats have come: three lease times."""
    beats = 0
    enough, blocked = threading.Event(), threading.Event()

    @rollout
    async def agent(task: Any) -> float:
        blocked.set()
        assert enough.wait(LIMIT)
        return 1.0

    class Counting(StoreClient):
        async def heartbeat(self, *args: Any, **kwargs: Any) -> list[Verdict]:
            nonlocal beats
            verdicts = await super().heartbeat(*args, **kwargs)
            if blocked.is_set():
                beats += 1
                if beats == 12:
                    enough.set()
            return verdicts

    async def scenario() -> None:
        async with await SQLStore.open(sweep_every=0.1) as store, listening(store) as where:
            (item,) = await store.enqueue(new(1))
            stop: list[Callable[[], object]] = []

            async def work() -> None:
                loop = asyncio.get_running_loop()
                runner = Runner(agent, lambda: Counting(where.url), RunnerConfig(lease_seconds=1.0))
                stop.append(lambda: loop.call_soon_threadsafe(runner.drain))
                await runner.run()

            thread = threading.Thread(target=lambda: asyncio.run(work()))
            thread.start()
            (done,) = await finals(store, [item])
            attempts = await store.list_attempts(item.id)
            stop[0]()
            await asyncio.to_thread(thread.join)
            assert (done.state, len(attempts)) == (RolloutState.SUCCEEDED, 1)

    run(scenario)


def test_a_runner_that_cannot_beat_stops_its_agents_before_the_store_gives_them_away() -> None:
    stopped_at: list[float] = []
    started_at: list[float] = []

    @rollout
    async def agent(task: Any) -> None:
        started_at.append(time.monotonic())
        try:
            await asyncio.Event().wait()
        finally:
            stopped_at.append(time.monotonic())

    class CutOff(StoreClient):
        async def heartbeat(self, worker_id: str, leases: Any, lease_seconds: float | None = None) -> list[Verdict]:
            raise Unavailable("no route")

    async def scenario() -> None:
        async with working(agent, CutOff, lease_seconds=2.0) as (store, _, _):
            (item,) = await store.enqueue(new(1, max_lost=1))
            (done,) = await finals(store, [item])
            ended_at = time.monotonic()
            assert done.failure is FailureKind.LOST  # nobody reported it: the store's sweep ended it
            assert len(stopped_at) == 1 and stopped_at[0] < ended_at

    run(scenario)


def test_a_release_hands_back_what_is_held_at_no_cost() -> None:
    inside = asyncio.Event()

    @rollout
    async def agent(task: Any) -> None:
        inside.set()
        await asyncio.Event().wait()

    async def scenario() -> None:
        async with working(agent) as (store, runner, task):
            (item,) = await store.enqueue(new(1, max_attempts=1))
            await inside.wait()
            runner.release()
            assert await task is Ending.STOPPED
            (attempt,) = await store.list_attempts(item.id)
            assert attempt.state is AttemptState.RELEASED
            assert (await store.get_rollout(item.id)).state is RolloutState.QUEUED
            (lease,) = await store.claim("another")
            assert lease.rollout.id == item.id
            (worker,) = await store.list_workers()
            assert worker.stopped_at is not None

    run(scenario)


def test_a_drain_finishes_what_is_held_and_claims_no_more() -> None:
    inside, go = asyncio.Event(), asyncio.Event()

    @rollout
    async def agent(task: Any) -> float:
        inside.set()
        await go.wait()
        return 1.0

    async def scenario() -> None:
        async with working(agent, concurrency=1) as (store, runner, task):
            first, second = await store.enqueue(new(1, 2))
            await inside.wait()
            runner.drain()
            go.set()
            assert await task is Ending.STOPPED
            assert (await store.get_rollout(first.id)).state is RolloutState.SUCCEEDED
            assert (await store.get_rollout(second.id)).state is RolloutState.QUEUED

    run(scenario)


def test_an_end_that_cannot_be_told_is_told_when_the_store_is_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inside, go, answered = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @rollout
    async def agent(task: Any) -> float:
        inside.set()
        await go.wait()
        answered.set()
        return 1.0

    async def scenario() -> None:
        said = ""

        def was_said(text: str) -> bool:
            nonlocal said
            said += capsys.readouterr().err
            return text in said

        async with await SQLStore.open(tmp_path / "store.db") as store, listening(store) as where:
            (item,) = await store.enqueue(new(1))
            runner = Runner(agent, lambda: StoreClient(where.url, deadline=0.2), RunnerConfig())
            task = asyncio.create_task(runner.run())
            await inside.wait()
        go.set()
        await answered.wait()
        await until(lambda: was_said("the store is away"))
        async with await SQLStore.open(tmp_path / "store.db") as store, listening(store, port=where.port):
            (done,) = await finals(store, [item])
            assert (done.state, done.attempt) == (RolloutState.SUCCEEDED, 1)
            assert [reward.value for reward in await store.list_rewards([item.id])] == [1.0]
            await until(lambda: was_said("the store is back"))
            runner.drain()
            await task
        assert said.count("the store is away") == 1

    run(scenario)


def test_a_runner_with_room_for_more_than_one_claim_may_ask_for_claims_as_often_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "MAX_CLAIM", 2)
    monkeypatch.setattr(sqlstore, "MAX_CLAIM", 2)
    everyone = asyncio.Event()
    inside = 0

    @rollout
    async def agent(task: int) -> float:
        nonlocal inside
        inside += 1
        if inside == 5:
            everyone.set()
        await everyone.wait()
        return 1.0

    async def scenario() -> None:
        async with working(agent, concurrency=5) as (store, _, _):
            done = await finals(store, await store.enqueue(new(*range(5))))
            assert all(item.state is RolloutState.SUCCEEDED for item in done)

    run(scenario)


def test_a_thread_that_cannot_be_stopped_ends_the_runner_and_the_rest_is_handed_back() -> None:
    end = threading.Event()
    inside: list[str] = []

    @rollout
    def agent(task: str) -> float:
        inside.append(task)
        end.wait(LIMIT)
        return 1.0

    async def scenario() -> None:
        async with working(agent, stop_grace=0.2) as (store, _, task):
            rollouts = await store.enqueue([*new("stuck", attempt_timeout=0.5), *new("other")])
            assert await task is Ending.STUCK
            stuck, other = await store.list_rollouts(ids=[item.id for item in rollouts])
            assert stuck.failure is FailureKind.TIMEOUT and other.state is RolloutState.QUEUED
            end.set()

    run(scenario)
