"""Ways in which other queues and stores are known to have failed, as issues of theirs tell; named after what happens here instead."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from contextlib import AsyncExitStack

import psycopg
import pytest
from storekit import FakeClock, Kit, make_generation, make_span, new_postgres_database, open_kit, run, task

from leyden.errors import Conflict, LeaseLost
from leyden.server import schema
from leyden.server.operations.transitions import ALLOWED, Move, move, rows_by_id
from leyden.server.transaction import Transaction
from leyden.types import AttemptState, Counts, FailureKind, RolloutConfig, RolloutState, Verdict

both = pytest.mark.parametrize("kind", ["sqlite", "postgres"])


def _deadlocks(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("SELECT pg_stat_force_next_flush()")
        row = conn.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").fetchone()
        assert row is not None
        return int(row[0])


@both
def test_an_overdue_lease_is_swept_however_many_live_ones_there_are(kind: str) -> None:
    """riverqueue/river#1258: a rescuer that looked at one page of long jobs left 5,133 others running for up to 91 days."""

    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task(i) for i in range(1200)])
        live = [lease for _ in range(3) for lease in await kit.store.claim("live", 400, lease_seconds=3600)]
        (lost,) = await kit.store.enqueue([task("lost")])
        await kit.store.claim("dead", lease_seconds=2)
        await kit.pass_time(3)
        item = await kit.store.get_rollout(lost.id)
        assert (len(live), item.state, item.lost) == (1200, RolloutState.QUEUED, 1)

    run(check, kind)


def test_two_stores_that_sweep_at_once_end_each_attempt_once() -> None:
    """dbos-transact-py#742, apache/airflow#32289: two clean-ups of the same zombies."""

    async def go() -> None:
        url, clock = await asyncio.to_thread(new_postgres_database), FakeClock()
        async with open_kit("postgres", url, clock=clock) as one, open_kit("postgres", url, clock=clock) as two:
            before = _deadlocks(url)
            made = await one.store.enqueue([task(i, run_id="run", config=RolloutConfig(max_lost=2)) for i in range(900)])
            for _ in range(2):
                for kit in (one, two):
                    assert len(await kit.store.claim("w", 450, lease_seconds=1)) == 450
                clock.advance(1.5)
                await asyncio.gather(*(kit.sql.sweep() for kit in (one, two) * 4))
            counts = await one.store.count("run")
            assert (counts.failed, counts.lost) == (900, 900)
            for item in made[::100]:
                assert [attempt.state for attempt in await two.store.list_attempts(item.id)] == [AttemptState.LOST] * 2
            assert _deadlocks(url) == before

    asyncio.run(asyncio.wait_for(go(), 60))


def test_beats_in_opposite_orders_beside_endings_and_cancels_never_wait_in_a_circle() -> None:
    """zulip#19054, openobserve#13487: the same rows updated in two orders."""

    async def go() -> None:
        url = await asyncio.to_thread(new_postgres_database)
        async with AsyncExitStack() as stack:
            kits = [await stack.enter_async_context(open_kit("postgres", url)) for _ in range(2)]
            before = _deadlocks(url)
            await kits[0].store.enqueue([task(i, run_id="run", group="g") for i in range(60)])
            leases = await kits[0].store.claim("w", 60)
            refs = [lease.ref for lease in leases]
            beats = [
                kit.store.heartbeat(worker, order)
                for _ in range(8)
                for kit, worker, order in ((kits[0], "v", refs), (kits[1], "w", refs[::-1]))
            ]
            endings = [kits[i % 2].store.complete(ref) for i, ref in enumerate(refs[:20])]
            cancels = [kits[1].store.cancel([ref.rollout_id for ref in refs[40:][::-1]]), kits[0].store.cancel(group="g", run_id="nobody")]
            answers = await asyncio.gather(*beats, *endings, *cancels)
            for verdicts in answers[: len(beats)]:
                assert len(verdicts) == 60  # type: ignore[arg-type]
            assert await kits[1].store.heartbeat("w", refs) == [Verdict.LOST] * 20 + [Verdict.HELD] * 20 + [Verdict.CANCEL] * 20
            assert _deadlocks(url) == before

    asyncio.run(asyncio.wait_for(go(), 60))


@both
def test_of_two_workers_with_one_name_each_holds_its_own(kind: str) -> None:
    """dbos-transact-py#804, oban-bg/oban#862: in a rolling restart, old and new share their name."""

    async def check(kit: Kit) -> None:
        for worker in ("runner-1-old", "runner-1-new"):
            await kit.store.register_worker(worker, "runner-1", 2)
        await kit.store.enqueue([task(i) for i in range(4)])
        old, new = await kit.store.claim("runner-1-old", 2), await kit.store.claim("runner-1-new", 2)
        assert not {lease.rollout.id for lease in old} & {lease.rollout.id for lease in new}
        await kit.store.stop_worker("runner-1-old")
        assert await kit.store.heartbeat("runner-1-new", [lease.ref for lease in (*old, *new)]) == [Verdict.LOST] * 2 + [Verdict.HELD] * 2
        assert {lease.rollout.id for lease in await kit.store.claim("runner-1-new", 4)} == {lease.rollout.id for lease in old}

    run(check, kind)


def test_many_who_wait_for_many_rollouts_cost_no_thread() -> None:
    """agent-lightning 0.3.0: a thread for each id, so that 60 ids and a timeout of 1 s took 10 s."""

    async def check(kit: Kit) -> None:
        ids = [rollout.id for rollout in await kit.store.enqueue([task(i) for i in range(60)])]
        assert await kit.store.wait_rollouts(ids, wait=0.01) == []
        before = threading.active_count()
        waits = [asyncio.create_task(kit.store.wait_rollouts(ids, wait=20)) for _ in range(100)]
        while len(kit.sql._watch._watchers.get(ids[0], ())) < 100:
            await asyncio.sleep(0.001)
        assert threading.active_count() <= before + 4, "those that read"
        for lease in await kit.store.claim("w", 60):
            await kit.store.complete(lease.ref)
        assert [len(done) for done in await asyncio.gather(*waits)] == [60] * 100

    run(check)


def test_a_wait_ends_with_the_timeout_of_an_attempt_and_with_the_loss_of_a_runner(kind: str) -> None:
    """agent-lightning 0.3.0: the watchdog ran when the wait began, and never again while it lasted."""

    async def check(kit: Kit) -> None:
        configs = (RolloutConfig(attempt_timeout=3), RolloutConfig(max_lost=1))
        late, lost = await kit.store.enqueue([task(i, config=config) for i, config in enumerate(configs)])
        leases = await kit.store.claim("w", 2, lease_seconds=5)
        waiting = asyncio.create_task(kit.store.wait_rollouts([late.id, lost.id], wait=20))
        while not kit.sql._watch._watchers:
            await asyncio.sleep(0.001)
        await kit.pass_time(6)
        assert [item.failure for item in await waiting] == [FailureKind.TIMEOUT, FailureKind.LOST]
        assert [(await kit.store.list_attempts(lease.rollout.id))[0].ended_at is not None for lease in leases] == [True, True]

    run(check, kind)


@pytest.mark.parametrize("before", RolloutState)
@pytest.mark.parametrize("after", RolloutState)
def test_only_the_moves_in_the_table_are_made(before: RolloutState, after: RolloutState) -> None:
    """agent-lightning 0.3.0: cancelled became succeeded, and succeeded became running again."""

    async def check(kit: Kit) -> None:
        (item,) = await kit.store.enqueue([task()])

        def put(tx: Transaction) -> None:
            values = {"state": before.value, "finished_at": tx.now if before.final else None}
            tx.conn.execute(schema.rollouts.update().where(schema.rollouts.c.id == item.id).values(**values))

        def go(tx: Transaction) -> None:
            move(tx, [Move(rows_by_id(tx, [item.id])[item.id], after)])

        await kit.sql._executor.write(put)
        if after in ALLOWED[before]:
            await kit.sql._executor.write(go)
            assert (await kit.store.get_rollout(item.id)).state is after
        else:
            with pytest.raises(Conflict):
                await kit.sql._executor.write(go)
            assert (await kit.store.get_rollout(item.id)).state is before
        assert not before.final or not ALLOWED[before]

    run(check)


def test_what_comes_late_leaves_an_attempt_timed_out(kind: str) -> None:
    """agent-lightning #160, #218: a late span turned a timed-out attempt back to running, a late answer broke the batch."""

    async def check(kit: Kit) -> None:
        config = RolloutConfig(attempt_timeout=2, max_attempts=2, retry_delay=0, retry_on=(FailureKind.TIMEOUT,))
        (item,) = await kit.store.enqueue([task(run_id="run", config=config)])
        (old,) = await kit.store.claim("w")
        await kit.pass_time(3)
        await kit.store.add_spans(old.ref, [make_span()])
        with pytest.raises(LeaseLost):
            await kit.store.complete(old.ref)
        (attempt,) = await kit.store.list_attempts(item.id)
        assert (attempt.state, (await kit.store.get_rollout(item.id)).state) == (AttemptState.TIMED_OUT, RolloutState.QUEUED)
        (new,) = await kit.store.claim("w")
        await kit.store.complete(new.ref)
        await kit.store.add_generations(old.ref, [make_generation(old.ref, "late")])
        assert [attempt.state for attempt in await kit.store.list_attempts(item.id)] == [AttemptState.TIMED_OUT, AttemptState.SUCCEEDED]
        assert await kit.store.count("run") == Counts(succeeded=1)

    run(check, kind)


def test_a_reason_once_given_is_not_overwritten_by_what_is_found_later(kind: str) -> None:
    """agent-lightning #585: a timeout was reported as the exit status of the kill that followed it."""

    async def check(kit: Kit) -> None:
        (item,) = await kit.store.enqueue([task()])
        (lease,) = await kit.store.claim("w", lease_seconds=2)
        await kit.store.fail(lease.ref, FailureKind.TIMEOUT, "no answer within 2 s")
        with pytest.raises(LeaseLost):
            await kit.store.fail(lease.ref, FailureKind.LOST, "exit status -9")
        await kit.pass_time(5)
        final = await kit.store.get_rollout(item.id)
        assert (final.failure, final.error) == (FailureKind.TIMEOUT, "no answer within 2 s")

    run(check, kind)


def test_retries_never_make_more_ended_rollouts_than_were_queued(kind: str) -> None:
    """agent-lightning #355: 33 of 32 were completed, since a failure and its retry both counted. #448: what a failed attempt captured
    was taken for the rollout's."""

    async def check(kit: Kit) -> None:
        made = await kit.store.enqueue([task(i, run_id="run") for i in range(8)])
        for n in range(3):
            for lease in await kit.store.claim("w", 8):
                await kit.store.add_generations(lease.ref, [make_generation(lease.ref, f"{lease.rollout.id}-{n}")])
                if n == 0 and lease.rollout.input % 2:
                    await kit.store.fail(lease.ref, FailureKind.INFRASTRUCTURE, "400: context too long")
                else:
                    await kit.store.complete(lease.ref)
        counts = await kit.store.count("run")
        assert (counts, counts.total) == (Counts(succeeded=8), 8)
        taken = await kit.store.list_generations([item.id for item in made])
        assert Counter(generation.rollout_id for generation in taken) == {item.id: 1 for item in made}
        assert {generation.id[-1] for generation in taken if generation.attempt == 2} == {"1"}

    run(check, kind)


def test_no_history_refers_to_the_workers() -> None:
    """procrastinate#1454: a foreign key from 13 million jobs to their workers made each start of one take minutes."""
    assert not [key for table in schema.metadata.tables.values() for key in table.foreign_keys if key.column.table is schema.workers]
