"""An engine, a proxy that is killed while agents talk: nobody's attempts are spent on it, and all of it ends well."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from leyden.proxy import LLMProxy
from leyden.runners import PoolConfig, Runner, RunnerConfig, RunnerPool, endpoints, load_agent
from leyden.server.client import StoreClient
from leyden.server.interface import Store
from leyden.server.serving import listening
from leyden.server.sqlstore import SQLStore
from leyden.types import LLM, AttemptState, FailureKind, Generation, NewRollout, Resources, Rollout, RolloutConfig, RolloutState

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
AGENTS = HERE / "agents_with_llm.py"
LIMIT = 150.0  # seconds until a test that hangs is told so
N = 12


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), LIMIT))


class Killable:
    """A child process that tells one line when it is ready."""

    def __init__(self, *args: str) -> None:
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen([sys.executable, *args], stdout=subprocess.PIPE, text=True, env=environment)
        assert self._process.stdout
        self.said = self._process.stdout.readline().strip()
        assert self.said, "it did not start"

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


@contextmanager
def engine() -> Iterator[Killable]:
    with _ending(Killable(str(HERE / "small_engine.py"))) as child:
        yield child


@contextmanager
def _ending(child: Killable) -> Iterator[Killable]:
    try:
        yield child
    finally:
        child.kill()


@asynccontextmanager
async def a_store() -> AsyncIterator[tuple[SQLStore, str]]:
    async with await SQLStore.open(sweep_every=0.1) as store, listening(store) as where:
        yield store, where.url


@asynccontextmanager
async def a_proxy(store: Store) -> AsyncIterator[LLMProxy]:
    proxy = LLMProxy(store)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()


def serve(proxy: LLMProxy, engine: Killable, checkpoint: str) -> LLM:
    params = {"model": "hosted_vllm/m", "api_base": engine.said}
    proxy.update_model_list([{"model_name": "policy", "litellm_params": params, "model_info": {"checkpoint": checkpoint}}])
    return proxy.as_resource()


async def enqueue(store: Store, llm: LLM, text: str = "hello", n: int = N, max_attempts: int = 1) -> tuple[Resources, list[Rollout]]:
    """The same rollouts whenever it is called, under the resources of this call."""
    resources = await store.add_resources({"llm": llm})
    config = RolloutConfig(max_attempts=max_attempts, retry_delay=0.0)
    new = [NewRollout(input=text, config=config, resources_id=resources.id, idempotency_key=f"task-{i}") for i in range(n)]
    return resources, await store.enqueue(new)


async def finals(store: Store, rollouts: list[Rollout]) -> list[Rollout]:
    ids = [item.id for item in rollouts]
    while len(await store.wait_rollouts(ids, wait=20.0)) < len(ids):
        pass
    return await store.list_rollouts(ids=ids)


async def until_handed_back(store: Store, rollouts: list[Rollout], n: int = 3) -> None:
    while sum(item.released > 0 for item in await store.list_rollouts(ids=[item.id for item in rollouts])) < n:
        await asyncio.sleep(0.05)


async def until_answered(store: Store, rollouts: list[Rollout], n: int) -> None:
    while len(await ok_rows(store, rollouts)) < n:
        await asyncio.sleep(0.02)


async def ok_rows(store: Store, rollouts: list[Rollout]) -> list[Generation]:
    rows = await store.list_generations([item.id for item in rollouts])
    return [row for row in rows if row.status == "ok"]


async def assert_all_succeeded_and_no_attempt_was_spent(store: Store, rollouts: list[Rollout]) -> None:
    done = await finals(store, rollouts)
    assert [(item.state, item.failure, item.error) for item in done] == [(RolloutState.SUCCEEDED, None, None)] * len(rollouts)
    counted = [a.state for item in done for a in await store.list_attempts(item.id) if a.state is not AttemptState.RELEASED]
    assert counted == [AttemptState.SUCCEEDED] * len(rollouts), "one counted attempt each"
    rewards = await store.list_rewards([item.id for item in done])
    assert [reward.value for reward in rewards] == [1.0] * len(rollouts)


def pool(url: str, agent: str) -> RunnerPool:
    return RunnerPool(PoolConfig(agent=f"{AGENTS}:{agent}", store_url=url, n=1, concurrency=6))


@pytest.mark.parametrize("agent", ["talk", "listen"])
def test_an_engine_that_is_killed_and_comes_back_elsewhere_costs_no_attempt(agent: str) -> None:
    async def scenario() -> None:
        async with a_store() as (store, url), a_proxy(store) as proxy, pool(url, agent):
            with engine() as first:
                resources, rollouts = await enqueue(store, serve(proxy, first, "version_0"))
                await until_answered(store, rollouts, 4)
            await until_handed_back(store, rollouts)
            assert proxy.counters["engine_gone"] > 0
            await store.retire_resources(resources.id)
            with engine() as second:
                _, same = await enqueue(store, serve(proxy, second, "version_1"))
                assert [item.id for item in same] == [item.id for item in rollouts]
                await assert_all_succeeded_and_no_attempt_was_spent(store, rollouts)
                for item in rollouts:
                    for attempt in await store.list_attempts(item.id):
                        rows = await store.list_generations([item.id], attempt.number)
                        assert len({row.checkpoint for row in rows}) <= 1, "one attempt, one checkpoint"
                        gone = [row for row in rows if row.status == "error"]
                        assert all("policy at" in str(row.error) for row in gone)
                        assert gone or attempt.state is AttemptState.SUCCEEDED

    run(scenario)


def test_an_engine_that_agents_ask_directly_may_be_killed_as_well() -> None:
    async def scenario() -> None:
        async with a_store() as (store, url), pool(url, "talk"):
            with engine() as first:
                _, rollouts = await enqueue(store, LLM(endpoint=first.said, model="m"))
                while not await store.wait_rollouts([item.id for item in rollouts], wait=1.0, done=2):
                    pass
            await until_handed_back(store, rollouts)
            with engine() as second:
                await enqueue(store, LLM(endpoint=second.said, model="m"))
                await assert_all_succeeded_and_no_attempt_was_spent(store, rollouts)

    run(scenario)


def test_a_proxy_that_is_killed_and_comes_back_elsewhere_costs_no_attempt() -> None:
    async def scenario() -> None:
        async with a_store() as (store, url), pool(url, "talk"):
            with engine() as behind:
                with _ending(Killable(str(HERE / "small_proxy.py"), url, behind.said)) as first:
                    _, rollouts = await enqueue(store, LLM.model_validate_json(first.said))
                    await until_answered(store, rollouts, 4)
                await until_handed_back(store, rollouts)
                with _ending(Killable(str(HERE / "small_proxy.py"), url, behind.said)) as second:
                    await enqueue(store, LLM.model_validate_json(second.said))
                    await assert_all_succeeded_and_no_attempt_was_spent(store, rollouts)

    run(scenario)


def test_an_engine_that_answers_with_its_own_error_is_there_and_spends_attempts() -> None:
    async def scenario() -> None:
        async with a_store() as (store, url), a_proxy(store) as proxy, pool(url, "talk"):
            with engine() as ill:
                _, rollouts = await enqueue(store, serve(proxy, ill, "version_0"), "fail", n=2, max_attempts=2)
                for item in await finals(store, rollouts):
                    assert (item.state, item.failure) == (RolloutState.FAILED, FailureKind.INFRASTRUCTURE)
                    assert "out of memory" in str(item.error)
                    assert [attempt.state for attempt in await store.list_attempts(item.id)] == [AttemptState.FAILED] * 2

    run(scenario)


def test_an_endpoint_that_never_comes_back_ends_the_rollout_after_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(endpoints, "PATIENCE", 3)
    monkeypatch.setattr(endpoints, "_LONGEST_PAUSE", 0.1)

    async def scenario() -> None:
        async with a_store() as (store, url):
            with engine() as gone:
                pass
            _, rollouts = await enqueue(store, LLM(endpoint=gone.said, model="m"), n=2, max_attempts=2)
            runner = Runner(load_agent(f"{AGENTS}:talk"), lambda: StoreClient(url), RunnerConfig())
            working = asyncio.create_task(runner.run())
            for item in await finals(store, rollouts):
                assert (item.state, item.failure, item.released) == (RolloutState.FAILED, FailureKind.INFRASTRUCTURE, 3)
                states = [attempt.state for attempt in await store.list_attempts(item.id)]
                assert states == [AttemptState.RELEASED] * 3 + [AttemptState.FAILED] * 2
            runner.drain()
            await working

    run(scenario)
    assert capsys.readouterr().err.count("nobody answers at the LLM's endpoint") == 1
