"""Rollouts by what they are for, how they stand and what changed, page by page, on every kind of store."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from sqlalchemy import update
from storekit import SECOND, Kit, run, task

from leyden.errors import InvalidRequest, NotFound
from leyden.server.interface import Store
from leyden.server.queries import Prune
from leyden.server.schema import rollouts
from leyden.server.transaction import Transaction
from leyden.types import FailureKind, Mode, Rollout, RolloutConfig, RolloutState


async def pages(store: Store, size: int, **filters: Any) -> list[Rollout]:
    found: list[Rollout] = []
    while page := await store.list_rollouts(**filters, after=found[-1].id if found else None, limit=size):
        assert len(page) <= size
        found += page
    return found


def ids(found: list[Rollout]) -> list[str]:
    return [rollout.id for rollout in found]


def test_a_page_after_one_that_was_pruned_says_to_begin_again(kind: str) -> None:
    async def check(kit: Kit) -> None:
        made = await kit.store.enqueue([task(n) for n in range(3)])
        await kit.store.cancel([made[0].id])
        kit.clock.advance(SECOND)
        assert (await kit.store.prune(Prune(older_than=0))).rollouts == 1
        with pytest.raises(NotFound, match=made[0].id) as error:
            await kit.store.list_rollouts(after=made[0].id)
        assert error.value.hint == "was it pruned? begin again with the first page"

    run(check, kind)


def test_every_filter_holds_and_all_of_them_together(kind: str) -> None:
    async def check(kit: Kit) -> None:
        once = RolloutConfig(max_attempts=1)
        made = await kit.store.enqueue(
            [
                task(1, run_id="a", iteration=0, mode=Mode.TRAIN, queue="fast", group="g", config=once),
                task(2, run_id="a", iteration=1, mode=Mode.VAL, queue="slow", group="g"),
                task(3, run_id="b", iteration=0, mode=Mode.TRAIN, queue="fast"),
                task(4),
            ]
        )
        (lease,) = await kit.store.claim("w", 1, queues=("fast",))
        await kit.store.fail(lease.ref, FailureKind.TOOL, "no")
        await kit.store.cancel([made[3].id])
        expected: list[tuple[dict[str, Any], list[int]]] = [
            ({}, [0, 1, 2, 3]),
            ({"run_id": "a"}, [0, 1]),
            ({"run_id": "a", "iteration": 1}, [1]),
            ({"iteration": 0}, [0, 2]),
            ({"mode": Mode.VAL}, [1]),
            ({"queue": "fast"}, [0, 2]),
            ({"group": "g"}, [0, 1]),
            ({"state": RolloutState.QUEUED}, [1, 2]),
            ({"failure": FailureKind.TOOL}, [0]),
            ({"failure": FailureKind.CANCELLED}, [3]),
            ({"failure": FailureKind.TOOL, "state": RolloutState.CANCELLED}, []),
            ({"ids": [made[2].id, made[0].id, "nobody"]}, [0, 2]),
            ({"ids": [made[2].id, made[0].id], "run_id": "b"}, [2]),
            ({"id_prefix": made[1].id}, [1]),
            ({"queue": "fast", "group": "g", "state": RolloutState.FAILED}, [0]),
        ]
        for filters, places in expected:
            wanted = [made[place].id for place in places]
            assert ids(await kit.store.list_rollouts(**filters)) == wanted, filters
            assert ids(await kit.store.list_rollouts(**filters, newest_first=True)) == wanted[::-1], filters
            assert ids(await pages(kit.store, 1, **filters)) == wanted, filters

    run(check, kind)


def test_a_page_keeps_its_place_while_more_is_queued(kind: str) -> None:
    async def check(kit: Kit) -> None:
        made = await kit.store.enqueue([task(n, run_id="r") for n in range(6)])
        for filters in ({}, {"run_id": "r"}, {"created_from": 0}):
            first = await kit.store.list_rollouts(**filters, newest_first=True, limit=2)  # type: ignore[arg-type]
            await kit.store.enqueue([task(run_id="r")])
            second = await kit.store.list_rollouts(**filters, newest_first=True, after=first[-1].id, limit=2)  # type: ignore[arg-type]
            both = [rollout.created_at for rollout in first + second]
            assert both == sorted(both, reverse=True) and len(set(ids(first + second))) == 4
            made = await kit.store.list_rollouts()
            assert ids(second) == ids(made[::-1])[3:5], "the new one stands before the first page, and moves nothing"

    run(check, kind)


def test_a_range_of_time_has_its_start_and_not_its_end(kind: str) -> None:
    async def check(kit: Kit) -> None:
        made = []
        for n in range(4):
            made += await kit.store.enqueue([task(n), task(n)])
            kit.clock.advance(10)
        start, end = made[2].created_at, made[6].created_at
        assert ids(await kit.store.list_rollouts(created_from=start, created_to=end)) == ids(made[2:6])
        assert ids(await pages(kit.store, 3, created_from=start)) == ids(made[2:])
        assert ids(await kit.store.list_rollouts(created_to=start + 1, newest_first=True)) == ids(made[:4])[::-1]
        assert await kit.store.list_rollouts(created_from=end + 20 * SECOND) == []

    run(check, kind)


def test_what_changed_since_is_told_once_and_in_order(kind: str) -> None:
    async def check(kit: Kit) -> None:
        made = await kit.store.enqueue([task(n) for n in range(5)])
        everything = await pages_of_changes(kit.store, 0, 2)
        assert sorted(ids(everything)) == sorted(ids(made)) and len(everything) == 5
        seen = everything[-1].revision
        assert await kit.store.list_rollouts(changed_after=seen) == []
        (lease,) = await kit.store.claim("w", 1)
        await kit.store.cancel([made[3].id])
        changed = await kit.store.list_rollouts(changed_after=seen)
        assert ids(changed) == [lease.ref.rollout_id, made[3].id]
        assert [rollout.state for rollout in changed] == [RolloutState.RUNNING, RolloutState.CANCELLED]
        assert changed[0].revision < changed[1].revision

    run(check, kind)


async def pages_of_changes(store: Store, revision: int, size: int) -> list[Rollout]:
    found: list[Rollout] = []
    after = None
    while page := await store.list_rollouts(changed_after=revision, after=after, limit=size):
        found += page
        revision, after = page[-1].revision, page[-1].id
    return found


def test_a_change_that_is_committed_late_is_not_passed_over() -> None:
    """PostgreSQL: a transaction that began first commits last. Until then nothing is told that stands behind it."""

    async def check(kit: Kit) -> None:
        first, second = await kit.store.enqueue([task(1), task(2)])
        seen = max(rollout.revision for rollout in await kit.store.list_rollouts(changed_after=0))
        entered, gate = threading.Event(), threading.Event()

        def slow(tx: Transaction) -> None:
            tx.conn.execute(update(rollouts).where(rollouts.c.id == first.id).values(revision=tx.revision))
            entered.set()
            assert gate.wait(30)

        holding = asyncio.create_task(kit.sql._executor.write(slow))
        await asyncio.to_thread(entered.wait, 30)
        try:
            await kit.store.cancel([second.id])
            assert await kit.store.list_rollouts(changed_after=seen) == []
        finally:
            gate.set()
            await holding
        assert ids(await kit.store.list_rollouts(changed_after=seen)) == [first.id, second.id]

    run(check, "postgres")


def test_a_bad_question_is_refused_by_its_name(kind: str) -> None:
    async def check(kit: Kit) -> None:
        for bad in (0, 10_001):
            with pytest.raises(InvalidRequest, match="limit: must be between 1 and 10000"):
                await kit.store.list_rollouts(limit=bad)
        with pytest.raises(InvalidRequest, match="state"):
            await kit.store.list_rollouts(state="lost")  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="colour"):
            await kit.store.list_rollouts(colour="red")  # type: ignore[call-arg]
        with pytest.raises(InvalidRequest, match="id_prefix"):
            await kit.store.list_rollouts(id_prefix="")
        with pytest.raises(InvalidRequest, match="newest_first"):
            await kit.store.list_rollouts(changed_after=0, newest_first=True)
        with pytest.raises(NotFound):
            await kit.store.list_rollouts(after="nobody")

    run(check, kind)
