"""New work goes to those who wait for it; where a store has its database for itself, in the transaction that brings it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from storekit import KINDS, Kit, hold_writer, run, task

from leyden.errors import NotFound
from leyden.server.waiting import FIRST_ROUND
from leyden.types import Lease, RolloutState


async def waiting(kit: Kit, worker: str, limit: int = 1, queue: str = "default", wait: float = 20.0) -> asyncio.Task[list[Lease]]:
    """A claim that waits at the desk, and is not being asked for."""
    before = kit.sql._desk.waiting
    claiming = asyncio.create_task(kit.store.claim(worker, limit, wait, queues=[queue]))
    while kit.sql._desk.waiting == before or kit.sql._desk._serving:
        await asyncio.sleep(0.001)
    return claiming


def commits(kit: Kit) -> int:
    return kit.sql._executor.metrics.done["commits", "committed"]


@pytest.mark.parametrize("kind", ["sqlite", "http-sqlite"])
def test_one_commit_queues_a_rollout_and_gives_it_to_who_waits(kind: str) -> None:
    async def check(kit: Kit) -> None:
        claiming = await waiting(kit, "idle")
        before = commits(kit)
        [brought] = await kit.store.enqueue([task()])
        [lease] = await claiming
        assert commits(kit) == before + 1
        assert lease.rollout == brought == await kit.store.get_rollout(brought.id)
        assert brought.state is RolloutState.RUNNING
        assert (await kit.store.complete(lease.ref)).state is RolloutState.SUCCEEDED

    run(check, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_who_waits_for_less_than_all_leaves_the_rest_to_the_others(kind: str) -> None:
    async def check(kit: Kit) -> None:
        claims = [await waiting(kit, f"w{n}", limit=FIRST_ROUND // 2) for n in range(4)]  # two of them fit into the first round
        brought = await kit.store.enqueue([task(n) for n in range(4 * FIRST_ROUND // 2 + 1)])
        given = [[lease.rollout.id for lease in await claim] for claim in claims]
        assert [rollout_id for ids in given for rollout_id in ids] == [rollout.id for rollout in brought[:-1]]  # the first come first
        assert (await kit.store.get_rollout(brought[-1].id)).state is RolloutState.QUEUED

    run(check, kind)


def test_what_cannot_be_queued_is_no_answer_to_who_waits() -> None:
    async def check(kit: Kit) -> None:
        claiming = await waiting(kit, "idle")
        with pytest.raises(NotFound):
            await kit.store.enqueue([task(resources_id="nowhere")])
        assert not claiming.done()
        [brought] = await kit.store.enqueue([task()])
        assert [lease.rollout.id for lease in await claiming] == [brought.id]

    run(check)


def test_whoever_is_chosen_is_asked_for_from_that_moment_on() -> None:
    """Else one whose time is up just then would be told that there is nothing, and be given something."""

    async def check(kit: Kit) -> None:
        claiming = await waiting(kit, "idle")
        bringing = asyncio.create_task(kit.store.enqueue([task()]))
        await asyncio.sleep(0)  # it has chosen; its transaction has not begun
        [waiter] = kit.sql._desk._waiters
        assert waiter.asked
        await kit.sql.stop_waiting()
        assert [lease.rollout.id for lease in await claiming] == [rollout.id for rollout in await bringing]

    run(check)


def test_a_wait_that_ends_while_work_is_refused_ends_with_nothing() -> None:
    async def check(kit: Kit) -> None:
        claiming = await waiting(kit, "idle", wait=2.0)
        gate, holding = await hold_writer(kit)
        bringing = asyncio.create_task(kit.store.enqueue([task(resources_id="nowhere")]))
        while not next(iter(kit.sql._desk._waiters)).last_round:  # its time is up, and it is part of what is being written
            await asyncio.sleep(0.001)
        assert not claiming.done()
        gate.set()
        await holding
        with pytest.raises(NotFound):
            await bringing
        assert await claiming == []

    run(check)


def test_whoever_brings_work_and_leaves_has_it_given_out_all_the_same() -> None:
    async def check(kit: Kit) -> None:
        claiming = await waiting(kit, "idle")
        gate, holding = await hold_writer(kit)
        bringing = asyncio.create_task(kit.store.enqueue([task()]))
        while not next(iter(kit.sql._desk._waiters)).asked:
            await asyncio.sleep(0)
        bringing.cancel()
        with suppress(asyncio.CancelledError):
            await bringing
        gate.set()
        await holding
        assert len(await claiming) == 1

    run(check)


def test_who_leaves_while_work_is_brought_to_him_hands_it_back() -> None:
    async def check(kit: Kit) -> None:
        leaving = await waiting(kit, "leaving")
        gate, holding = await hold_writer(kit)
        bringing = asyncio.create_task(kit.store.enqueue([task()]))
        while not next(iter(kit.sql._desk._waiters)).asked:
            await asyncio.sleep(0)
        leaving.cancel()
        staying = asyncio.create_task(kit.store.claim("staying", wait=20))
        gate.set()
        await holding
        assert [lease.rollout.id for lease in await staying] == [rollout.id for rollout in await bringing]

    run(check)


def test_who_waits_elsewhere_is_not_asked_for() -> None:
    async def check(kit: Kit) -> None:
        elsewhere = await waiting(kit, "elsewhere", queue="other")
        here = await waiting(kit, "here")
        before = commits(kit)
        await kit.store.enqueue([task()])
        assert len(await here) == 1
        assert commits(kit) == before + 1 and not elsewhere.done()
        await kit.store.enqueue([task(queue="other")])
        assert len(await elsewhere) == 1

    run(check)
