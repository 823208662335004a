"""Runners and the store's queues: whose work they take, when they take none, and how a cancel reaches what they run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from leyden.errors import Busy, LeaseLost, LeydenError, UsageError
from leyden.runners import PoolConfig, Runner, RunnerConfig, RunnerPool, rollout
from leyden.server.client import StoreClient
from leyden.server.interface import AttemptEnd
from leyden.server.serving import listening
from leyden.server.sqlstore import SQLStore
from leyden.types import AttemptState, Lease, LeaseRef, NewRollout, RolloutConfig, RolloutState, Verdict

LIMIT = 120.0  # seconds until a test that hangs is told so
AGENTS = Path(__file__).with_name("agents_for_tests.py")


class Watched(SQLStore):
    """Notes what it was asked, and can say that it is behind."""

    def watch(self) -> None:
        self.verdicts: list[dict[LeaseRef, Verdict]] = []  # of beats with leases
        self.claimed_at: list[float] = []
        self.refuse = 0.0  # seconds of patience that the next ending is asked for
        self.refused_until = 0.0

    async def heartbeat(self, worker_id: str, leases: Sequence[LeaseRef], lease_seconds: float | None = None) -> list[Verdict]:
        verdicts = await super().heartbeat(worker_id, leases, lease_seconds)
        if leases:
            self.verdicts.append(dict(zip(leases, verdicts, strict=True)))
        return verdicts

    async def claim(self, *args: Any, **more: Any) -> list[Lease]:
        self.claimed_at.append(time.monotonic())
        return await super().claim(*args, **more)

    async def end_attempts(self, ends: Sequence[AttemptEnd]) -> list[LeydenError | None]:
        if self.refuse:
            self.refused_until = time.monotonic() + self.refuse
            patience, self.refuse = self.refuse, 0.0
            raise Busy("behind", retry_after=patience)
        return await super().end_attempts(ends)


@asynccontextmanager
async def a_store() -> AsyncIterator[tuple[Watched, str]]:
    async with await Watched.open(sweep_every=0.1) as store, listening(store) as where:
        store.watch()
        yield store, where.url


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), LIMIT))


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


@rollout
async def one(task: Any) -> float:
    return 1.0


def test_runner_processes_take_from_the_queues_they_are_given_and_from_no_other() -> None:
    async def scenario() -> None:
        async with a_store() as (store, url):
            names = ("large", "small", "default", "large")
            items = await store.enqueue([NewRollout(input={"value": 1.0}, queue=name) for name in names])
            config = PoolConfig(agent=f"{AGENTS}:answer", store_url=url, n=1, queues=("large", "small"))
            async with RunnerPool(config):
                wanted = [item.id for item in items if item.queue != "default"]
                done = await store.wait_rollouts(wanted, wait=20.0)
                assert [item.state for item in done] == [RolloutState.SUCCEEDED] * 3
                (queued,) = await store.list_rollouts(queue="default")
                assert (queued.state, queued.attempt) == (RolloutState.QUEUED, 0)

    run(scenario)


def test_the_name_of_a_queue_is_checked_before_anything_starts() -> None:
    with pytest.raises(UsageError, match="'no name' is not the name of a queue"):
        PoolConfig(agent="a:b", queues=("no name",))


def test_a_cancelled_group_reaches_the_agents_of_a_runner_process_with_its_next_beat(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_store() as (store, url):
            config = PoolConfig(agent=f"{AGENTS}:linger", store_url=url, n=1, concurrency=4, lease_seconds=2.0, grace=0.5)
            async with RunnerPool(config):
                groups = ("doomed", "doomed", "spared")
                new = [NewRollout(input={"dir": str(tmp_path), "value": i}, group=group) for i, group in enumerate(groups)]
                items = await store.enqueue(new)
                await until(lambda: len(list(tmp_path.glob("started-*"))) == 3)
                assert await store.cancel(group="doomed") == 2
                beats = len(store.verdicts)  # one may be under way, and answered already
                await until(lambda: len(list(tmp_path.glob("stopped-*"))) == 2)
                doomed = {item.id for item in items[:2]}
                answers = [verdict for said in store.verdicts[beats:] for ref, verdict in said.items() if ref.rollout_id in doomed]
                assert set(answers) == {Verdict.CANCEL}, "nobody was told after the cancel that it still holds one"
                said = [said for said in store.verdicts if Verdict.CANCEL in said.values()]
                assert len(said) <= 2, "the first beat that was told stopped them"
                (spared,) = await store.list_rollouts(group="spared")
                assert spared.state is RolloutState.RUNNING
                for item in await store.list_rollouts(group="doomed"):
                    (attempt,) = await store.list_attempts(item.id)
                    assert (item.state, attempt.state) == (RolloutState.CANCELLED, AttemptState.CANCELLED)
        assert {path.name for path in tmp_path.glob("stopped-*")} == {"stopped-0", "stopped-1", "stopped-2"}  # noqa: ASYNC240

    run(scenario)


def test_a_runner_told_that_the_store_is_behind_claims_nothing_until_the_time_it_named() -> None:
    async def scenario() -> None:
        async with a_store() as (store, url):
            runner = Runner(one, lambda: StoreClient(url), RunnerConfig(concurrency=1, max_rollouts=3))
            items = await store.enqueue([NewRollout(input=i) for i in range(3)])
            store.refuse = 1.5
            await runner.run()
            assert store.refused_until
            asked_at = store.refused_until - 1.5
            assert not [at for at in store.claimed_at if asked_at < at < store.refused_until]
            assert len([at for at in store.claimed_at if at >= store.refused_until]) >= 2, "and then it goes on"
            done = await store.list_rollouts(ids=[item.id for item in items])
            assert [item.state for item in done] == [RolloutState.SUCCEEDED] * 3

    run(scenario)


def test_a_client_says_how_long_the_store_asked_it_to_be_patient() -> None:
    async def scenario() -> None:
        async with a_store() as (store, url), StoreClient(url) as client:
            assert client.busy_until == 0.0
            await client.enqueue([NewRollout(input=1)])
            (lease,) = await client.claim("w")
            store.refuse = 0.25
            await client.complete(lease.ref)
            assert client.busy_until >= store.refused_until - 0.001

    run(scenario)


def test_a_runner_started_again_under_the_same_name_is_another_worker_and_the_first_ones_leases_are_not_its(tmp_path: Path) -> None:
    inside = asyncio.Event()

    @rollout
    async def stay(task: Any) -> None:
        inside.set()
        await asyncio.Event().wait()

    async def scenario() -> None:
        async with a_store() as (store, url):
            (item,) = await store.enqueue([NewRollout(input=1, config=RolloutConfig(retry_delay=0))])
            (old,) = await store.claim("runner-1-before", lease_seconds=1.0)  # a runner of the same name, which has died
            runner = Runner(stay, lambda: StoreClient(url), RunnerConfig(name="runner-1", concurrency=1))
            assert runner.worker_id != Runner(stay, lambda: StoreClient(url), RunnerConfig(name="runner-1")).worker_id
            working = asyncio.create_task(runner.run())
            await inside.wait()
            with pytest.raises(LeaseLost):
                await store.complete(old.ref)
            first, second = await store.list_attempts(item.id)
            assert (first.state, second.worker_id) == (AttemptState.LOST, runner.worker_id)
            runner.release()
            await working

    run(scenario)
