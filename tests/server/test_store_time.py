"""Time as the store sees it: its clock, its own absences, and the jitter of retries."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError
from storekit import SECOND, Kit, open_kit, run, task

from leyden.errors import Unavailable
from leyden.server.clock import MonotoneClock, SteadyClock
from leyden.server.sqlstore import SQLStore
from leyden.types import AttemptState, FailureKind, Rollout, RolloutConfig, RolloutState, Verdict


def test_the_clock_never_goes_back() -> None:
    times = iter([5, 3, 9, 1])
    clock = MonotoneClock(lambda: next(times))
    assert [clock() for _ in range(4)] == [5, 5, 9, 9]


@pytest.mark.parametrize("jump", [3600, -3600])
def test_a_wall_clock_that_is_set_while_the_store_runs_changes_nothing(jump: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SteadyClock()
    before = clock()
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + jump * 1_000_000_000)
    assert before <= clock() < before + 60 * SECOND


def test_a_wall_clock_set_back_between_two_starts_repeats_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def created(path: Path) -> Rollout:
        async with await SQLStore.open(path, sweep_every=None) as store:
            return (await store.enqueue([task()]))[0]

    first = asyncio.run(created(tmp_path / "a.db"))
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() - 3600 * 1_000_000_000)
    second = asyncio.run(created(tmp_path / "a.db"))
    assert first.created_at < second.created_at < first.created_at + 60 * SECOND
    assert second.revision > first.revision


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_time_the_store_did_not_live_through_is_not_an_attempts(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task(config=RolloutConfig(attempt_timeout=60))])
        (lease,) = await kit.store.claim("w", lease_seconds=10)
        await kit.pass_time(5)
        kit.clock.advance(3600)
        await kit.sql.sweep()
        for _ in range(54):
            await kit.pass_time(1)
            assert await kit.store.heartbeat("w", [lease.ref]) == [Verdict.HELD]
        await kit.pass_time(2)
        (attempt,) = await kit.store.list_attempts(lease.ref.rollout_id)
        assert attempt.state is AttemptState.TIMED_OUT

    run(check, kind)


def test_a_stall_of_the_store_expires_no_lease_that_could_not_beat() -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task()])
        (lease,) = await kit.store.claim("w", lease_seconds=10)
        await kit.sql.sweep()
        kit.clock.advance(300)  # no sweep and no beat was handled for so long
        await kit.sql.sweep()
        await kit.pass_time(8)
        assert await kit.store.heartbeat("w", [lease.ref]) == [Verdict.HELD]
        await kit.pass_time(11)
        assert await kit.store.heartbeat("w", [lease.ref]) == [Verdict.LOST]

    run(check)


def test_a_stall_right_after_another_expires_no_lease_either() -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task()])
        (lease,) = await kit.store.claim("w", lease_seconds=2)
        for _ in range(4):
            kit.clock.advance(4.3)  # two sweeps with hardly a moment of life between the two stalls
            await kit.sql.sweep()
            assert await kit.store.heartbeat("w", [lease.ref]) == [Verdict.HELD]

    run(check)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_store_that_is_slow_all_the_time_still_loses_leases(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task()])
        (lease,) = await kit.store.claim("w", lease_seconds=10)
        for _ in range(12):
            kit.clock.advance(3)  # a sweep each 3 s instead of each second
            await kit.sql.sweep()
        assert await kit.store.heartbeat("w", [lease.ref]) == [Verdict.LOST]

    run(check, kind)


def test_a_beat_of_another_length_is_no_reason_to_forgive_more_at_the_next_start(tmp_path: Path) -> None:
    async def check() -> None:
        async with open_kit("sqlite", tmp_path / "a.db") as kit:
            await kit.store.enqueue([task(), task(delay=3000)])
            (lease,) = await kit.store.claim("w", lease_seconds=60)
            await kit.store.heartbeat("w", [lease.ref], 3600)
            clock = kit.clock
        async with open_kit("sqlite", tmp_path / "a.db", clock=clock) as kit:
            await kit.pass_time(2)
            assert await kit.store.heartbeat("w", [lease.ref]) == [Verdict.HELD]
            assert len(await kit.store.list_rollouts(state=RolloutState.SCHEDULED)) == 1

    asyncio.run(check())


def test_a_sweep_that_could_not_be_committed_was_none(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task()])
        (lease,) = await kit.store.claim("w", lease_seconds=5)
        with monkeypatch.context() as full:

            def fail(*args: object) -> None:
                raise OperationalError("COMMIT", None, Exception("database or disk is full"))

            full.setattr(Connection, "_commit_impl", fail)
            for _ in range(20):
                kit.clock.advance(1)
                with pytest.raises(Unavailable):
                    await kit.sql.sweep()
        await kit.sql.sweep()
        assert await kit.store.heartbeat("w", [lease.ref]) == [Verdict.HELD], "its beats were refused meanwhile, as all writes were"

    run(check)


def test_after_a_restart_holders_get_their_full_time(tmp_path: Path) -> None:
    async def check() -> None:
        async with open_kit("sqlite", tmp_path / "a.db") as kit:
            await kit.store.enqueue([task()])
            (lease,) = await kit.store.claim("w", lease_seconds=10)
            clock = kit.clock
        clock.advance(500)
        async with open_kit("sqlite", tmp_path / "a.db", clock=clock) as kit:
            await kit.pass_time(9)
            assert await kit.store.heartbeat("w", [lease.ref]) == [Verdict.HELD]

    asyncio.run(check())


def test_retries_are_spread_over_a_doubling_delay() -> None:
    async def check(kit: Kit) -> None:
        config = RolloutConfig(retry_delay=4, max_attempts=4)
        ids = [rollout.id for rollout in await kit.store.enqueue([task(i, config=config) for i in range(60)])]
        for number in (1, 2, 3):
            leases = await kit.store.claim("w", 60)
            assert len(leases) == 60
            for lease in leases:
                await kit.store.fail(lease.ref, FailureKind.TOOL)
            longest = 4 * 2 ** (number - 1)
            promoted = []
            for _ in range(longest):
                before = sum(r.state is RolloutState.QUEUED for r in await kit.store.list_rollouts(ids=ids))
                await kit.pass_time(1)
                promoted.append(sum(r.state is RolloutState.QUEUED for r in await kit.store.list_rollouts(ids=ids)) - before)
            assert sum(promoted) == 60, "none waits longer than the longest delay"
            assert sum(promoted[: longest // 2]) > 15 and sum(promoted[longest // 2 :]) > 15, "spread over the whole of it"

    run(check, jitter=random.Random(1).random)


def test_a_lost_rollout_is_ready_with_the_sweep_after_its_lease() -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task(config=RolloutConfig(retry_delay=60))])
        await kit.store.claim("w", lease_seconds=10)
        before = kit.clock.now
        while not (leases := await kit.store.claim("w2")):
            await kit.pass_time(1)
        assert leases[0].ref.attempt == 2 and kit.clock.now - before <= 11 * SECOND

    run(check)


def test_losses_end_a_rollout_after_its_budget_of_them() -> None:
    async def check(kit: Kit) -> None:
        (rollout,) = await kit.store.enqueue([task(config=RolloutConfig(max_lost=2))])
        for _ in range(2):
            assert await kit.store.claim("w", lease_seconds=5)
            await kit.pass_time(6)
        final = await kit.store.get_rollout(rollout.id)
        assert (final.state, final.failure) == (RolloutState.FAILED, FailureKind.LOST)

    run(check)


def test_a_sweep_ends_more_than_it_takes_in_one_go() -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task(i, run_id="run") for i in range(1100)])
        for _ in range(3):
            await kit.store.claim("w", 400, lease_seconds=5)
        await kit.pass_time(6)
        assert (await kit.store.count("run")).queued == 1100

    run(check)
