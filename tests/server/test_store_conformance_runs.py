"""What every ``Store`` promises of runs and workers, asked of each kind of it."""

from __future__ import annotations

import pytest
from storekit import Kit, run, task

from leyden.errors import Conflict, LeaseLost, NotFound
from leyden.types import (
    RolloutState,
    RunState,
    Verdict,
)


def test_a_run_has_one_driver(kind: str) -> None:
    async def check(kit: Kit) -> None:
        first = await kit.store.start_run("run", {"lr": 1}, lease_seconds=10)
        assert (first.epoch, first.state, first.config) == (1, RunState.RUNNING, {"lr": 1})
        with pytest.raises(Conflict):
            await kit.store.start_run("run", {})
        kit.clock.advance(11)
        assert (await kit.store.start_run("run", {"lr": 2})).epoch == 2
        assert (await kit.store.start_run("run", {"lr": 3}, take_over=True)).epoch == 3
        for stale in (kit.store.keep_run("run", 2), kit.store.finish_run("run", 2, RunState.FAILED)):
            with pytest.raises(LeaseLost):
                await stale
        await kit.store.keep_run("run", 3)
        done = await kit.store.finish_run("run", 3, RunState.SUCCEEDED, {"champion": "version_1"})
        assert await kit.store.finish_run("run", 3, RunState.SUCCEEDED, {"champion": "version_1"}) == done
        assert await kit.store.get_run("run") == done and await kit.store.list_runs() == [done]
        with pytest.raises(LeaseLost):
            await kit.store.keep_run("run", 3)
        with pytest.raises(NotFound):
            await kit.store.get_run("nobody")

    run(check, kind)


def test_workers_are_seen_while_they_beat(kind: str) -> None:
    async def check(kit: Kit) -> None:
        for name in ("a", "b", "c"):
            await kit.store.register_worker(name, f"runner {name}", 2)
        await kit.store.enqueue([task()])
        await kit.store.claim("a")
        kit.clock.advance(30)
        await kit.store.heartbeat("a", [])
        await kit.store.heartbeat("c", [])
        await kit.store.stop_worker("c")
        (alive,) = await kit.store.list_workers(alive_within=15)
        assert (alive.id, alive.running, alive.last_seen_at) == ("a", 1, kit.clock.now)
        assert [worker.id for worker in await kit.store.list_workers()] == ["a", "b", "c"]

    run(check, kind)


def test_a_worker_that_has_ended_holds_nothing_any_more_and_nobody_lost_an_attempt(kind: str) -> None:
    async def check(kit: Kit) -> None:
        for name in ("a", "b"):
            await kit.store.register_worker(name, f"runner {name}", 2)
        await kit.store.enqueue([task() for _ in range(3)])
        left = await kit.store.claim("a", limit=2)
        (other,) = await kit.store.claim("b")
        for _ in range(2):  # a repeat is a no-op
            assert (await kit.store.stop_worker("a")).running == 0
        assert await kit.store.heartbeat("b", [other.ref]) == [Verdict.HELD]
        for lease in left:
            item = await kit.store.get_rollout(lease.rollout.id)
            assert (item.state, item.released) == (RolloutState.QUEUED, 1)
            with pytest.raises(LeaseLost):
                await kit.store.complete(lease.ref, [])

    run(check, kind)
