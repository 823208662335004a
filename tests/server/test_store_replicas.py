"""Several stores on one PostgreSQL: they wake each other, share the queue, and none of them judges leases by its own time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import psycopg
import pytest
from storekit import SECOND, FakeClock, Kit, new_postgres_database, open_kit, postgres_server, task

from leyden.errors import Conflict, Unavailable, UsageError
from leyden.server import replicas
from leyden.server.sqlstore import SQLStore
from leyden.types import AttemptState, FailureKind, Reward, RolloutState, Verdict


@asynccontextmanager
async def two_stores() -> AsyncIterator[tuple[Kit, Kit]]:
    url, clock = new_postgres_database(), FakeClock()
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(open_kit("postgres", url, clock=clock))
        second = await stack.enter_async_context(open_kit("postgres", url, clock=clock))
        yield first, second


def run_two(test: Callable[[Kit, Kit], Coroutine[Any, Any, None]]) -> None:
    async def go() -> None:
        async with two_stores() as (first, second):
            await asyncio.wait_for(test(first, second), 60)

    asyncio.run(go())


@pytest.fixture
def no_net(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the slow look around only a notification can wake anybody in time."""
    monkeypatch.setattr(replicas, "LOOK_AROUND", (1000.0, 1000.0))


@pytest.mark.usefixtures("no_net")
def test_a_claim_that_waits_at_one_store_is_woken_by_the_other() -> None:
    async def check(first: Kit, second: Kit) -> None:
        waiting = asyncio.create_task(first.store.claim("w", wait=20))
        while not first.sql._desk._waiters:
            await asyncio.sleep(0.01)
        (rollout,) = await second.store.enqueue([task()])
        (lease,) = await asyncio.wait_for(waiting, 10)
        assert lease.rollout.id == rollout.id

    run_two(check)


@pytest.mark.usefixtures("no_net")
def test_whoever_waits_for_an_end_at_one_store_learns_of_it_from_the_other() -> None:
    async def check(first: Kit, second: Kit) -> None:
        rollouts = await first.store.enqueue([task(i) for i in range(3)])
        waiting = asyncio.create_task(first.store.wait_rollouts([rollout.id for rollout in rollouts], wait=20))
        for lease in await second.store.claim("w", 3):
            await second.store.complete(lease.ref, [Reward(value=1.0)])
        assert [rollout.state for rollout in await asyncio.wait_for(waiting, 10)] == [RolloutState.SUCCEEDED] * 3

    run_two(check)


def test_a_notification_that_got_lost_delays_a_waiter_by_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "LOOK_AROUND", (0.05, 0.1))
    monkeypatch.setattr(replicas.Replicas, "announce", lambda self: None)

    async def check(first: Kit, second: Kit) -> None:
        waiting = asyncio.create_task(first.store.claim("w", wait=20))
        await second.store.enqueue([task()])
        assert len(await asyncio.wait_for(waiting, 10)) == 1

    run_two(check)


@pytest.mark.usefixtures("no_net")
def test_many_commits_are_one_notification() -> None:
    async def check(first: Kit, second: Kit) -> None:
        channel, conninfo = first.sql._replicas._channel, first.sql._database.conninfo  # type: ignore[union-attr, attr-defined]
        loop = asyncio.get_running_loop()
        listening, told = asyncio.Event(), asyncio.Event()

        def listen() -> int:
            with psycopg.connect(conninfo, autocommit=True) as conn:
                conn.execute(f"LISTEN {channel}")
                loop.call_soon_threadsafe(listening.set)
                for n, notice in enumerate(conn.notifies(timeout=30)):
                    if notice.payload == "the end":
                        return n
                    loop.call_soon_threadsafe(told.set)
            raise AssertionError("no end was told")

        hearing = asyncio.create_task(asyncio.to_thread(listen))
        await listening.wait()
        began = loop.time()
        await asyncio.gather(*(second.store.enqueue([task(i)]) for i in range(200)))
        await told.wait()
        with psycopg.connect(conninfo, autocommit=True) as conn:
            conn.execute("SELECT pg_notify(%s, 'the end')", [channel])
        heard = await hearing
        assert 1 <= heard <= 1 + (loop.time() - began) / replicas.QUIET

    run_two(check)


def test_a_listener_that_lost_its_connection_listens_again() -> None:
    async def check(first: Kit, second: Kit) -> None:
        with psycopg.connect(postgres_server(), autocommit=True) as conn:
            for _ in range(3):
                while not conn.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query ILIKE 'LISTEN ' || %s || '%%'",
                    [first.sql._replicas._channel],  # type: ignore[union-attr]
                ).fetchall():
                    await asyncio.sleep(0.01)
        waiting = asyncio.create_task(first.store.claim("w", wait=20))
        await second.store.enqueue([task()])
        assert len(await asyncio.wait_for(waiting, 20)) == 1

    run_two(check)


def test_a_lease_taken_at_one_store_is_kept_and_ended_at_the_other() -> None:
    async def check(first: Kit, second: Kit) -> None:
        await first.store.enqueue([task()])
        (lease,) = await first.store.claim("w", lease_seconds=10)
        for _ in range(3):
            second.clock.advance(1)
            await second.sql.sweep()
            assert await second.store.heartbeat("w", [lease.ref]) == [Verdict.HELD]
        assert (await second.store.complete(lease.ref)).state is RolloutState.SUCCEEDED
        assert await first.store.heartbeat("w", [lease.ref]) == [Verdict.LOST]
        assert (await first.store.complete(lease.ref)).state is RolloutState.SUCCEEDED, "a repeated ending changes nothing"

    run_two(check)


def test_two_sweepers_end_a_lost_lease_once() -> None:
    async def check(first: Kit, second: Kit) -> None:
        rollouts = await first.store.enqueue([task(i, run_id="r") for i in range(40)])
        await first.store.claim("w", 40, lease_seconds=5)
        for _ in range(6):
            first.clock.advance(1)
            await asyncio.gather(first.sql.sweep(), second.sql.sweep(), first.sql.sweep(), second.sql.sweep())
        counts = await first.store.count("r")
        assert (counts.queued, counts.running) == (40, 0)
        for rollout in rollouts:
            (attempt,) = await first.store.list_attempts(rollout.id)
            assert attempt.state is AttemptState.LOST

    run_two(check)


def test_a_store_that_comes_or_goes_gives_no_lease_more_time_while_another_is_there() -> None:
    async def check() -> None:
        url, clock = new_postgres_database(), FakeClock()
        async with open_kit("postgres", url, clock=clock) as lasting:
            await lasting.store.enqueue([task()])
            (lease,) = await lasting.store.claim("w", lease_seconds=5)
            for _ in range(6):
                clock.advance(1)
                await lasting.sql.sweep()
                async with open_kit("postgres", url, clock=clock):
                    pass
            (attempt,) = await lasting.store.list_attempts(lease.ref.rollout_id)
            assert attempt.state is AttemptState.LOST

    asyncio.run(check())


@pytest.mark.parametrize("jump", [3600, -3600])
def test_a_database_clock_that_jumps_takes_no_lease_and_no_attempt_and_keeps_none(jump: int) -> None:
    """The time is the database's; here a jump of it is a jump of the clock in its place."""

    class Jumping(FakeClock):
        pass

    async def check() -> None:
        clock = Jumping()
        async with await SQLStore.open(new_postgres_database(), clock=clock, sweep_every=None) as store:
            store._executor._clock = clock  # the database's clock is not held monotone
            (live, lost) = await store.enqueue([task("live"), task("lost")])
            (held, dropped) = await store.claim("w", 2, lease_seconds=10)
            clock.now += jump * SECOND
            for _ in range(12):
                clock.advance(1)
                await store.sweep()
                assert await store.heartbeat("w", [held.ref]) == [Verdict.HELD]
            assert (await store.get_rollout(live.id)).state is RolloutState.RUNNING
            (attempt,) = await store.list_attempts(lost.id)
            assert attempt.state is AttemptState.LOST and dropped.rollout.id == lost.id

    asyncio.run(check())


def test_the_same_key_queued_at_both_at_once_is_one_rollout() -> None:
    async def check(first: Kit, second: Kit) -> None:
        for n in range(10):
            new = [task(i, idempotency_key=f"{n}-{i}", run_id="r") for i in range(5)]
            answers = await asyncio.gather(*(kit.store.enqueue(new) for kit in (first, second) * 4))
            assert len({tuple(rollout.id for rollout in answer) for answer in answers}) == 1
        assert (await first.store.count("r")).queued == 50

    run_two(check)


def test_one_driver_of_two_that_start_at_once_has_the_run() -> None:
    async def check(first: Kit, second: Kit) -> None:
        answers = await asyncio.gather(
            *(kit.sql.start_run("run", {}, request_id=str(n)) for n, kit in enumerate((first, second) * 4)), return_exceptions=True
        )
        assert sum(isinstance(answer, Conflict) for answer in answers) == 7
        assert (await first.store.get_run("run")).epoch == 1

    run_two(check)


def test_an_ending_and_a_late_failure_at_the_other_store_are_one_ending() -> None:
    async def check(first: Kit, second: Kit) -> None:
        await first.store.enqueue([task(i, run_id="r") for i in range(30)])
        for lease in await first.store.claim("w", 30):
            await asyncio.gather(
                first.store.complete(lease.ref, [Reward(value=1)]),
                second.store.fail(lease.ref, FailureKind.AGENT, "x"),
                second.store.cancel([lease.ref.rollout_id]),
                return_exceptions=True,
            )
            rewards = await first.store.list_rewards([lease.ref.rollout_id])
            final = await first.store.get_rollout(lease.ref.rollout_id)
            assert len(rewards) == (1 if final.state is RolloutState.SUCCEEDED else 0)
        counts = await first.store.count("r")
        assert counts.final == 30 and counts.running == 0

    run_two(check)


def test_a_server_that_is_not_there_is_named_without_its_password() -> None:
    async def check() -> None:
        with pytest.raises(Unavailable, match=r"postgresql://me:\*\*\*@127\.0\.0\.1:1/none cannot be used"):
            await SQLStore.open("postgresql://me:secret@127.0.0.1:1/none")
        for wrong in ("mysql://x/y", "postgresql://me@host:port/x"):
            with pytest.raises(UsageError):
                await SQLStore.open(wrong)

    asyncio.run(check())
