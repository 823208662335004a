"""Older schemas: brought up to date in one go, whatever happens in the middle, with every record still readable."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import psycopg
import pytest
from storekit import new_postgres_database, open_kit, task

from leyden.errors import NotFound, UsageError
from leyden.server.schema import SCHEMA_VERSION
from leyden.server.sqlstore import SQLStore
from leyden.types import AttemptState, LeaseRef, RolloutConfig, RolloutState

SCHEMAS = Path(__file__).parent / "schemas"

# Opens a database as a store does, in one child process after the other, each of which dies at its next statement; prints how many did.
DIES = """
import os, signal, sys
from sqlalchemy import Engine, event
from leyden.server.databases import open_database
import leyden.server.postgres

left = 0

@event.listens_for(Engine, "before_cursor_execute")
def count(*args):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

deaths, status = 0, -1
while status != 0:
    pid = os.fork()
    if pid == 0:
        left = deaths + 1
        open_database(sys.argv[1])
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    if status not in (0, signal.SIGKILL):
        sys.exit(f"it ended with status {status}")
    if status:
        deaths += 1
        exec(sys.argv[2])
print(deaths)
"""


def die_at_every_statement(database: str, check: str) -> int:
    """``check`` is run after each death, as a statement."""
    died = subprocess.run([sys.executable, "-c", DIES, database, check], timeout=300, capture_output=True, text=True)
    assert died.returncode == 0, died.stderr
    return int(died.stdout)


@pytest.fixture
def version_1(tmp_path: Path) -> Path:
    return old_store(tmp_path, 1)


def old_store(directory: Path, version: int) -> Path:
    path = directory / f"v{version}.db"
    with sqlite3.connect(path) as conn:
        conn.executescript((SCHEMAS / f"v{version}.sql").read_text())
    conn.close()
    return path


def schema_of(path: Path) -> set[tuple[str, ...]]:
    with sqlite3.connect(path) as conn:
        tables = [name for (name,) in conn.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")]
        columns = {("column", t, c[1], c[2], str(c[3]), str(c[5])) for t in tables for c in conn.execute(f"PRAGMA table_info({t})")}
        indexes = {
            ("index", " ".join(sql.split())) for (sql,) in conn.execute("SELECT sql FROM sqlite_schema WHERE type = 'index' AND sql > ''")
        }
        return columns | indexes


async def make_new(path: Path) -> None:
    async with await SQLStore.open(path):
        pass


def test_a_store_of_version_1_reads_back_whole(version_1: Path) -> None:
    async def check() -> None:
        async with open_kit("sqlite", version_1) as kit:
            rollouts = await kit.store.list_rollouts()
            assert [rollout.input for rollout in rollouts] == [{"n": n} for n in range(9)]
            assert Counter(rollout.state for rollout in rollouts) == {
                RolloutState.SUCCEEDED: 1, RolloutState.FAILED: 1, RolloutState.CANCELLED: 1, RolloutState.QUEUED: 3,
                RolloutState.SCHEDULED: 1, RolloutState.RUNNING: 2,
            }  # fmt: skip
            assert {rollout.queue for rollout in rollouts} == {"default"}
            assert [(rollout.failures, rollout.lost, rollout.released) for rollout in rollouts] == [
                (0, 0, 0), (1, 0, 0), (0, 0, 0), (1, 0, 0), (0, 0, 1), (0, 0, 0), (0, 1, 0), (0, 0, 0), (0, 0, 0),
            ]  # fmt: skip
            counts = await kit.store.count("run-1")
            assert (counts.queued, counts.scheduled, counts.running, counts.final) == (3, 1, 2, 3)
            first = rollouts[0].id
            (span,) = await kit.store.list_spans(first)
            assert (span.attributes, span.events) == ({"gen_ai.request.model": "m", "k": "v"}, [{"name": "e"}])
            (generation,) = await kit.store.list_generations([first])
            assert (generation.prompt_token_ids, generation.response_token_ids, generation.logprobs) == ([1, 2, 3], [4, 5], [-0.5, -0.25])
            assert generation.request == {"messages": [{"role": "user", "content": "hi"}]}
            (reward,) = await kit.store.list_rewards([first])
            assert reward.value == 1.0
            assert (await kit.store.get_run("run-1")).config == {"a": 1}
            assert (await kit.store.get_resources()).resources["main"].kind == "llm"

    asyncio.run(check())


def test_what_version_1_left_undone_goes_on(version_1: Path) -> None:
    async def check() -> None:
        async with open_kit("sqlite", version_1) as kit:
            config = RolloutConfig(max_attempts=2, retry_delay=0)
            keyed = [task({"n": n}, run_id="run-1", iteration=0, group="g", idempotency_key=f"key-{n}", config=config) for n in range(9)]
            before = [rollout.id for rollout in await kit.store.list_rollouts()]
            assert [rollout.id for rollout in await kit.store.enqueue(keyed)] == before, "a client that repeats itself queues nothing twice"
            leases = await kit.store.claim("worker-2", 9)
            assert [lease.rollout.input["n"] for lease in leases] == [3, 6, 8]
            running = [rollout for rollout in await kit.store.list_rollouts(state=RolloutState.RUNNING) if rollout.attempt == 1]
            attempts = [await kit.store.list_attempts(rollout.id) for rollout in running]
            assert AttemptState.RUNNING in {attempt[0].state for attempt in attempts}
            for lease in leases:
                await kit.store.complete(lease.ref)
            assert (await kit.store.count("run-1")).succeeded == 4

    asyncio.run(check())


@pytest.mark.parametrize(("version", "running"), [(1, 2), (2, 1), (5, 1)])
def test_what_ran_while_its_store_was_upgraded_keeps_its_key(version: int, running: int, tmp_path: Path) -> None:
    """Keys did not say whose they are before schema 6; of each a hash was stored."""
    path = old_store(tmp_path, version)
    with sqlite3.connect(path) as conn:
        (secret,) = conn.execute("SELECT value FROM meta WHERE key = 'secret'").fetchone()
        rows = conn.execute("SELECT rollout_id, number, token, key_hash, state FROM attempts").fetchall()
    conn.close()
    messages = [f"{rollout_id}|{number}|{token}".encode() for rollout_id, number, token, _, _ in rows]
    keys = [base64.urlsafe_b64encode(hmac.digest(secret, message, "sha256")).rstrip(b"=").decode() for message in messages]
    assert [hashlib.sha256(key.encode()).hexdigest() for key in keys] == [key_hash for *_, key_hash, _ in rows]

    async def check() -> None:
        async with open_kit("sqlite", path) as kit:
            held = []
            for key, (rollout_id, number, token, _, state) in zip(keys, rows, strict=True):
                if state == "running":
                    held.append(LeaseRef(rollout_id=rollout_id, attempt=number, token=token))
                    assert (await kit.store.resolve_key(key)).ref == held[-1]
                else:
                    with pytest.raises(NotFound, match="never issued"):
                        await kit.store.resolve_key(key)
            assert len(held) == running
            await kit.store.complete(held[0])
            kit.clock.advance(1.0)
            await kit.store.enqueue([task()])
            (lease,) = await kit.store.claim("worker-2", 1)
            assert (await kit.store.resolve_key(lease.key)).ref == lease.ref
            with pytest.raises(NotFound, match="never issued"):
                await kit.store.resolve_key(lease.key.rpartition(".")[2])

    asyncio.run(check())


def test_a_postgres_database_of_version_5_loses_its_stored_hashes_of_keys() -> None:
    async def check() -> None:
        url = new_postgres_database()
        async with await SQLStore.open(url) as store:
            await store.enqueue([task()])
            (lease,) = await store.claim("w")
        with psycopg.connect(url) as conn:
            conn.execute("ALTER TABLE attempts ADD COLUMN key_hash text UNIQUE")
            conn.execute("UPDATE meta SET value = '5' WHERE key = 'schema_version'")
        async with await SQLStore.open(url) as store:
            assert (await store.resolve_key(lease.key)).ref == lease.ref
        with psycopg.connect(url) as conn:
            columns = conn.execute("SELECT column_name FROM information_schema.columns WHERE table_name = 'attempts'").fetchall()
        assert ("token",) in columns and ("key_hash",) not in columns

    asyncio.run(check())


@pytest.mark.parametrize("version", sorted(int(path.stem[1:]) for path in SCHEMAS.glob("v*.sql")))
def test_an_old_schema_brought_up_is_a_new_one(version: int, tmp_path: Path) -> None:
    old = old_store(tmp_path, version)
    asyncio.run(make_new(old))
    asyncio.run(make_new(tmp_path / "new.db"))
    assert schema_of(old) == schema_of(tmp_path / "new.db")


def test_killed_at_any_statement_an_old_store_is_still_whole_and_comes_up_the_next_time(version_1: Path) -> None:
    before = schema_of(version_1)
    check = (
        "import sqlite3; conn = sqlite3.connect(sys.argv[1]); "
        "assert conn.execute('PRAGMA integrity_check').fetchone() == ('ok',) and conn.execute('PRAGMA user_version').fetchone() == (1,); "
        "assert conn.execute('SELECT count(*) FROM spans').fetchone() == (1,); conn.close()"
    )
    assert die_at_every_statement(str(version_1), check) > 20
    after = schema_of(version_1)
    assert after != before
    with sqlite3.connect(version_1) as conn:
        assert conn.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)


def test_killed_at_any_statement_a_postgres_database_is_empty_or_whole() -> None:
    url = new_postgres_database()
    check = (
        "import psycopg; conn = psycopg.connect(sys.argv[1]); "
        "assert conn.execute('SELECT count(*) FROM pg_tables WHERE schemaname = current_schema()').fetchone() == (0,); conn.close()"
    )
    assert die_at_every_statement(url, check) > 20

    async def check_store() -> None:
        async with await SQLStore.open(url) as store:
            assert len(await store.enqueue([task()])) == 1

    asyncio.run(check_store())


def test_many_stores_that_make_a_postgres_database_at_once_make_one() -> None:
    async def check() -> None:
        url = new_postgres_database()
        stores = await asyncio.gather(*(SQLStore.open(url) for _ in range(4)))
        (rollout,) = await stores[0].enqueue([task()])
        assert [(await store.get_rollout(rollout.id)).id for store in stores] == [rollout.id] * 4
        assert len({store._database.secret for store in stores}) == 1
        for store in stores:
            await store.close()

    asyncio.run(check())


def test_of_two_that_open_an_old_file_at_once_one_is_refused_and_one_brings_it_up(version_1: Path) -> None:
    async def check() -> None:
        answers = await asyncio.gather(SQLStore.open(version_1), SQLStore.open(version_1), return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, UsageError)]
        opened = [answer for answer in answers if isinstance(answer, SQLStore)]
        assert (len(refused), len(opened)) == (1, 1) and "already open" in str(refused[0])
        assert len(await opened[0].list_rollouts()) == 9
        await opened[0].close()

    asyncio.run(check())


def test_a_postgres_database_of_a_newer_version_or_of_somebody_else_is_refused_and_left_alone() -> None:
    async def check() -> None:
        newer, other = new_postgres_database(), new_postgres_database()
        async with await SQLStore.open(newer):
            pass
        with psycopg.connect(newer) as conn:
            conn.execute("UPDATE meta SET value = %s WHERE key = 'schema_version'", [str(SCHEMA_VERSION + 1).encode()])
        with psycopg.connect(other) as conn:
            conn.execute("CREATE TABLE runs (x int)")
        for url, message in ((newer, "newer Leyden"), (other, "table runs that is not Leyden's")):
            with pytest.raises(UsageError, match=message):
                await SQLStore.open(url)
        with psycopg.connect(other) as conn:
            (tables,) = conn.execute("SELECT count(*) FROM pg_tables WHERE schemaname = current_schema()").fetchone() or (0,)
            assert tables == 1

    asyncio.run(check())
