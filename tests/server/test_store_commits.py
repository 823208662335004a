"""Group commit, savepoints, and what a lost transaction means, seen in the statements that reach SQLite."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from storekit import Kit, hold_writer, run, task

from leyden.errors import Conflict, Unavailable
from leyden.server.operations import rollouts
from leyden.server.transaction import Transaction
from leyden.types import Counts, NewRollout


async def trace(kit: Kit) -> list[str]:
    statements: list[str] = []

    def install(tx: Transaction) -> None:
        driver = tx.conn.connection.dbapi_connection
        assert isinstance(driver, sqlite3.Connection)
        driver.set_trace_callback(statements.append)

    await kit.sql._executor.write(install)
    return statements


def test_a_batch_is_one_begin_and_one_commit_with_a_savepoint_each() -> None:
    async def check(kit: Kit) -> None:
        gate, holding = await hold_writer(kit)
        writes = [asyncio.create_task(kit.store.enqueue([task(i)])) for i in range(5)]
        await asyncio.sleep(0)
        gate.set()
        await holding
        await asyncio.gather(*writes)

        statements = await trace(kit)
        gate, holding = await hold_writer(kit)
        writes = [asyncio.create_task(kit.store.enqueue([task(i)])) for i in range(5)]
        await asyncio.sleep(0)
        mark = len(statements)
        gate.set()
        await holding
        await asyncio.gather(*writes)
        batch = [statement.split()[0] for statement in statements[mark:]]
        assert batch.count("COMMIT") == 2, "the one of the operation that held the writer, and one for all five"
        batch = batch[batch.index("COMMIT") + 1 :]
        assert batch[0] == "BEGIN" and batch[-1] == "COMMIT"
        assert (batch.count("BEGIN"), batch.count("SAVEPOINT"), batch.count("RELEASE")) == (1, 5, 5)
        assert [statement for statement in statements[mark:] if statement.startswith("BEGIN")] == ["BEGIN IMMEDIATE"]

    run(check)


def test_an_operation_that_fails_undoes_itself_alone() -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task(1, idempotency_key="k")])
        gate, holding = await hold_writer(kit)
        good = asyncio.create_task(kit.store.enqueue([task("good")]))
        bad = asyncio.create_task(kit.store.enqueue([task("half"), task(2, idempotency_key="k")]))
        late = asyncio.create_task(kit.store.enqueue([task("late")]))
        await asyncio.sleep(0)
        gate.set()
        await holding
        results = await asyncio.gather(good, bad, late, return_exceptions=True)
        assert isinstance(results[1], Conflict)
        assert [rollout.input for rollout in await kit.store.list_rollouts()] == [1, "good", "late"]

    run(check)


def test_a_bug_in_an_operation_undoes_what_it_wrote() -> None:
    def enqueue_and_break(tx: Transaction, new: list[NewRollout]) -> None:
        rollouts.enqueue(tx, new)
        raise ZeroDivisionError

    async def check(kit: Kit) -> None:
        with pytest.raises(ZeroDivisionError):
            await kit.sql._executor.write(enqueue_and_break, [task(run_id="run")])
        assert await kit.store.list_rollouts() == []
        assert await kit.store.count("run") == Counts()

    run(check)


def test_a_full_disk_fails_the_whole_batch_and_the_store_goes_on(tmp_path: Path) -> None:
    def limit_pages(tx: Transaction, spare: int | None) -> None:
        pages = tx.conn.exec_driver_sql("PRAGMA page_count").scalar_one()
        tx.conn.exec_driver_sql(f"PRAGMA max_page_count = {pages + spare if spare is not None else 2**30}")

    async def check(kit: Kit) -> None:
        (before,) = await kit.store.enqueue([task("before")])
        await kit.sql._executor.write(limit_pages, 2)
        gate, holding = await hold_writer(kit)
        small = asyncio.create_task(kit.store.enqueue([task("small")]))
        large = asyncio.create_task(kit.store.enqueue([task("x" * 1_000_000)]))
        await asyncio.sleep(0)
        gate.set()
        await holding
        results: list[Any] = await asyncio.gather(small, large, return_exceptions=True)
        failed = [result for result in results if isinstance(result, Unavailable)]
        stored = [rollout.input for rollout in await kit.store.list_rollouts()]
        assert failed, "the disk was full"
        assert stored == ["before"] + (["small"] if len(failed) == 1 else []), "acknowledged is stored, and nothing else is"
        await kit.sql._executor.write(limit_pages, None)
        (after,) = await kit.store.enqueue([task("after")])
        (lease,) = await kit.store.claim("w")
        assert lease.rollout.id == before.id and (await kit.store.get_rollout(after.id)).input == "after"

    run(check, path=tmp_path / "full.db")
