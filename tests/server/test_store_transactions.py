"""What becomes of a write when its transaction fails for a passing reason, or when only the answer to its COMMIT is lost."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import psycopg
import pytest
from psycopg import errors
from sqlalchemy.exc import DBAPIError, OperationalError
from storekit import Kit, hold_writer, open_kit, postgres_server, run, task

from leyden.errors import Busy, Unavailable
from leyden.server import backlog, executor
from leyden.server.backlog import Backlog, Job
from leyden.server.operations import rollouts
from leyden.server.postgres import PostgresDatabase
from leyden.server.transaction import Transaction
from leyden.types import NewRollout, Rollout


class Counted:
    """An operation that queues one rollout without a key, so that running it twice would show, and fails as it is told."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.runs = 0

    def __call__(self, tx: Transaction) -> Rollout:
        self.runs += 1
        (made,) = rollouts.enqueue(tx, [NewRollout(input=1, run_id="r")])
        if self.failures:
            raise DBAPIError("statement", None, self.failures.pop(0))
        return made

    __module__, __name__ = "tests", "counted"


def lose_answer(monkeypatch: pytest.MonkeyPatch, after: bool) -> None:
    """The next COMMIT of a transaction that queued something loses its connection, before or after the server has made it."""
    real, lost = psycopg.Connection.commit, threading.Event()

    def commit(self: psycopg.Connection[Any]) -> None:
        queued = not lost.is_set() and threading.current_thread().name.startswith("leyden-store-writer") and queued_by(self)
        if not queued:
            return real(self)
        lost.set()
        if after:
            real(self)
        self.close()
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    def queued_by(conn: psycopg.Connection[Any]) -> bool:
        row = conn.execute("SELECT EXISTS (SELECT 1 FROM rollouts WHERE run_id = 'r')").fetchone()
        return bool(row and row[0])

    monkeypatch.setattr(psycopg.Connection, "commit", commit)


@pytest.mark.parametrize("after", [True, False], ids=["after-the-commit", "before-the-commit"])
def test_a_commit_whose_answer_is_lost_counts_once(after: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(kit: Kit) -> None:
        operation = Counted()
        lose_answer(monkeypatch, after)
        made = await kit.sql._executor.write(operation)
        assert [rollout.id for rollout in await kit.store.list_rollouts()] == [made.id]
        assert operation.runs == (1 if after else 2), "the server says whether it was committed"

    run(check, "postgres")


@pytest.mark.parametrize(
    "failure", [errors.DeadlockDetected("x"), errors.SerializationFailure("x"), errors.LockNotAvailable("x"), errors.AdminShutdown("x")]
)
def test_an_operation_that_fails_for_a_passing_reason_is_run_again_from_its_start(failure: Exception) -> None:
    async def check(kit: Kit) -> None:
        operation = Counted(failure, failure)
        made = await kit.sql._executor.write(operation)
        assert operation.runs == 3
        assert [rollout.id for rollout in await kit.store.list_rollouts()] == [made.id]
        assert (await kit.store.count("r")).queued == 1

    run(check, "postgres")


def test_a_reason_that_does_not_pass_is_told_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "PATIENCE", 0.2)

    async def check(kit: Kit) -> None:
        with pytest.raises(Unavailable, match="could not write"):
            await kit.sql._executor.write(Counted(*[errors.DeadlockDetected("x")] * 10_000))
        assert await kit.store.list_rollouts() == []
        assert len(await kit.store.enqueue([task()])) == 1

    run(check, "postgres")


def test_connections_that_the_server_ends_cost_nothing_but_time() -> None:
    async def check(kit: Kit) -> None:
        def end_all() -> None:
            with psycopg.connect(postgres_server(), autocommit=True) as conn:
                conn.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'leyden-store'")

        await kit.store.enqueue([task(run_id="r")])
        for _ in range(5):
            await asyncio.to_thread(end_all)
            assert len(await kit.store.list_rollouts()) == (await kit.store.count("r")).queued
            await kit.store.enqueue([task(run_id="r")])
        assert (await kit.store.count("r")).queued == 6

    run(check, "postgres")


@pytest.mark.parametrize("door", ["open_writer", "open_reader"])
def test_a_thread_that_cannot_connect_at_first_connects_later(door: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real, refused = getattr(PostgresDatabase, door), 0

    def connect(self: PostgresDatabase) -> Any:
        nonlocal refused
        refused += 1
        if refused <= 20:  # more than there are threads
            raise DBAPIError("connect", None, psycopg.OperationalError("too many clients already"))
        return real(self)

    monkeypatch.setattr(PostgresDatabase, door, connect)

    async def check(kit: Kit) -> None:
        await asyncio.gather(*(kit.store.enqueue([task(n)]) for n in range(20)))
        assert len(await kit.store.list_rollouts()) == 20

    run(check, "postgres")


def test_a_read_that_the_database_does_not_answer_is_told_as_a_write_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "PATIENCE", 0.2)

    def fail(tx: Transaction) -> None:
        raise OperationalError("statement", None, errors.AdminShutdown("x"))

    async def check(kit: Kit) -> None:
        with pytest.raises(Unavailable, match="could not read"):
            await kit.sql._executor.read(fail)

    run(check, "postgres")


def test_a_store_that_closes_does_not_wait_for_a_database_that_is_away() -> None:
    async def check() -> None:
        async with open_kit("postgres") as kit:
            writes = [asyncio.create_task(kit.sql._executor.write(Counted(*[errors.AdminShutdown("x")] * 100_000))) for _ in range(40)]
            await asyncio.sleep(0)
            await asyncio.wait_for(kit.sql.close(), 60)  # 40 of them, 8 at a time, would take 50 s one after the other
            assert all(isinstance(result, Unavailable) for result in await asyncio.gather(*writes, return_exceptions=True))

    asyncio.run(check())


def test_a_beat_does_not_wait_behind_captured_data() -> None:
    order: list[str] = []

    def note(tx: Transaction, what: str) -> None:
        order.append(what)

    async def check(kit: Kit) -> None:
        gate, holding = await hold_writer(kit)
        size = backlog.MAX_COMMIT_BYTES  # so that a commit takes one of them
        bulk = [asyncio.create_task(kit.sql._executor.write_bulk(size, note, f"span {n}")) for n in range(3)]
        await asyncio.sleep(0)
        beat = asyncio.create_task(kit.sql._executor.write(note, "beat"))
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(holding, beat, *bulk)
        assert order == ["beat", "span 0", "span 1", "span 2"]

    run(check)


def test_captured_data_that_nobody_writes_is_refused_before_it_fills_the_memory_and_the_queue_goes_on() -> None:
    async def check(kit: Kit) -> None:
        gate, holding = await hold_writer(kit)
        part = backlog.MAX_BULK_BYTES // 4

        def nothing(tx: Transaction) -> None:
            pass

        accepted = [asyncio.create_task(kit.sql._executor.write_bulk(part, nothing)) for _ in range(4)]
        await asyncio.sleep(0)
        with pytest.raises(Busy) as refused:
            await kit.sql._executor.write_bulk(part, nothing)
        assert 1 <= refused.value.retry_after <= 3
        beat = asyncio.create_task(kit.sql._executor.write(nothing))
        gate.set()
        await asyncio.gather(holding, beat, *accepted)
        await kit.sql._executor.write_bulk(part, nothing)

    run(check)


def test_one_value_larger_than_the_whole_lane_is_still_taken_alone() -> None:
    lane = Backlog()
    loop = asyncio.new_event_loop()
    huge = Job(len, ((),), 2 * backlog.MAX_BULK_BYTES, loop.create_future())
    lane.put(huge)
    with pytest.raises(Busy):
        lane.put(huge)
    assert lane.take(10) == [huge]
    lane.put(huge)
    loop.close()


@pytest.mark.parametrize("limit", [1, 8])
def test_captured_data_has_its_turn_however_much_else_there_is(limit: int) -> None:
    lane = Backlog()
    loop = asyncio.new_event_loop()
    bulk = Job(len, ((),), 1, loop.create_future())
    for _ in range(100):
        lane.put(Job(len, ((),), 0, loop.create_future()))
    lane.put(bulk)
    taken = [job for _ in range(6) for job in lane.take(limit)]
    assert bulk in taken
    loop.close()
