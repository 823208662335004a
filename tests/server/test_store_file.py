"""The database file: who may open it, and what lies in it."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
from storekit import open_kit, run, task

from leyden.errors import UsageError
from leyden.server import sqlite
from leyden.server.schema import SCHEMA_VERSION
from leyden.server.sqlstore import SQLStore
from leyden.server.transaction import Transaction


async def open_and_close(path: Path) -> None:
    async with await SQLStore.open(path):
        pass


def test_a_second_opener_is_refused_by_name(tmp_path: Path) -> None:
    async def check() -> None:
        path = tmp_path / "a.db"
        async with await SQLStore.open(path):
            with pytest.raises(UsageError, match=r"a\.db is already open in process \d+"):
                await SQLStore.open(path)
        await open_and_close(path)

    asyncio.run(check())


def test_a_second_opener_by_another_name_of_the_file_is_refused_too(tmp_path: Path) -> None:
    async def check() -> None:
        (tmp_path / "link.db").symlink_to(tmp_path / "a.db")
        async with await SQLStore.open(tmp_path / "a.db"):
            with pytest.raises(UsageError, match=r"a\.db is already open in process \d+"):
                await SQLStore.open(tmp_path / "link.db")

    asyncio.run(check())


def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    asyncio.run(open_and_close(path))
    with sqlite3.connect(path) as conn:
        conn.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    for _ in range(2):  # the refusal lets go of the lock
        with pytest.raises(UsageError, match="newer Leyden"):
            asyncio.run(open_and_close(path))


@pytest.mark.parametrize("content", ["other database", "no database", "no directory"])
def test_a_file_that_is_not_ours_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.db"
    if content == "other database":
        with sqlite3.connect(path) as conn:
            conn.execute("CREATE TABLE t (x)")
    elif content == "no database":
        path.write_bytes(b"hello" * 1000)
    else:
        path = tmp_path / "nowhere" / "x.db"
    before = path.read_bytes() if path.exists() else None
    with pytest.raises(UsageError, match=str(path)):
        asyncio.run(open_and_close(path))
    assert (path.read_bytes() if path.exists() else None) == before


def test_a_file_that_another_program_writes_to_is_refused_and_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_MS", 50)
    path = tmp_path / "x.db"
    asyncio.run(open_and_close(path))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(UsageError, match=r"x\.db .*: database is locked"):
        asyncio.run(open_and_close(path))
    other.close()
    asyncio.run(open_and_close(path))


def test_closing_twice_is_closing_once(tmp_path: Path) -> None:
    async def check() -> None:
        store = await SQLStore.open(tmp_path / "a.db")
        await store.close()
        await store.close()

    asyncio.run(check())


def test_a_closed_store_reads_back_in_the_next_one(tmp_path: Path) -> None:
    async def check() -> None:
        async with open_kit("sqlite", tmp_path / "a.db") as kit:
            made = await kit.store.enqueue([task(i) for i in range(3)])
            keys = [lease.key for lease in await kit.store.claim("w", 1)]
        assert not Path(f"{kit.sql.label}-wal").exists(), "the log is folded in"  # noqa: ASYNC240
        async with open_kit("sqlite", tmp_path / "a.db") as kit:
            assert [rollout.id for rollout in await kit.store.list_rollouts()] == [rollout.id for rollout in made]
            assert (await kit.store.resolve_key(keys[0])).ref.attempt == 1
        assert keys[0].encode() not in (tmp_path / "a.db").read_bytes(), "keys are stored hashed"

    asyncio.run(check())


def test_an_ephemeral_store_leaves_nothing() -> None:
    async def check() -> Path:
        async with await SQLStore.open() as store:
            await store.enqueue([task()])
            assert Path(store.label).exists()  # noqa: ASYNC240
            return Path(store.label)

    assert not asyncio.run(check()).parent.exists()


def test_readers_cannot_write() -> None:
    def write(tx: Transaction) -> None:
        tx.conn.exec_driver_sql("DELETE FROM meta")

    async def check(kit) -> None:  # type: ignore[no-untyped-def]
        with pytest.raises(Exception, match="readonly"):
            await kit.sql._executor.read(write)

    run(check)
