"""A store with as many finished rollouts as are asked for: rows of the form that the store itself writes, put straight into its tables.

One rollout goes through the store in the usual way, with two spans of 1 KB and a reward; all others are its copies, with ids, times, runs,
groups, states and failures of their own. The indexes are made at the end, as a restore would.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Column, Connection, Engine, Table, create_engine, delete, event, insert, select, text

from leyden.server import schema
from leyden.server.databases import is_url, parse_url
from leyden.server.sqlstore import SQLStore
from leyden.types import NewRollout, Reward, Span

DAYS = 30  # over which they were created, up to an hour ago
FILLED = (schema.rollouts, schema.attempts, schema.rewards, schema.spans)


@dataclass(frozen=True)
class Words:
    """What SQLite and PostgreSQL say differently. ``i`` is a row's number."""

    numbers: str
    random: str  # hex digits, of the length that stands in it

    def hex(self, digits: int, salt: str) -> str:
        return self.random.format(digits=digits, bytes=digits // 2, salt=salt)


WORDS = {
    "sqlite": Words(
        "(WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c LIMIT {n}) SELECT i FROM c)", "lower(hex(randomblob({bytes})))"
    ),
    "postgresql": Words(
        "(SELECT i FROM generate_series(1::bigint, {n}) AS g(i))",
        "substr(encode(sha256(convert_to('{salt}' || i, 'UTF8')), 'hex'), 1, {digits})",
    ),
}


def fill(database: str, rollouts: int, spans: int, runs: int) -> float:
    """Into an empty database. Returns the seconds it took."""
    began = time.perf_counter()
    asyncio.run(_make_one(database))
    engine = _engine(database)
    with engine.begin() as conn:
        ours = {table: [dict(row._mapping) for row in conn.execute(select(table))] for table in FILLED}
        indexes = [index for table in FILLED for index in table.indexes]
        for index in indexes:
            index.drop(conn)
        _copy(conn, ours, rollouts, spans // rollouts, runs)
        _count(conn)
        for index in indexes:
            index.create(conn)
        if engine.dialect.name == "postgresql":
            conn.execute(text("ANALYZE"))  # autovacuum would, in a minute
    engine.dispose()
    return time.perf_counter() - began


async def _make_one(database: str) -> None:
    async with await SQLStore.open(database) as store:
        (queued,) = await store.enqueue([NewRollout(input={"question": "What is 12 + 30?", "answer": 42}, metadata={"source": "growth"})])
        (lease,) = await store.claim("w-0")
        usage = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "policy", "gen_ai.usage.input_tokens": 412}
        forms: tuple[tuple[str, dict[str, Any]], ...] = (
            ("chat policy", usage | {"gen_ai.usage.output_tokens": 35}),
            ("execute_tool calculator", {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "calculator"}),
        )
        made = [
            Span(trace_id=f"{1:032x}", span_id=f"{n:016x}", name=name, start_ns=1, end_ns=2, attributes={**form, "text": "word " * 160})
            for n, (name, form) in enumerate(forms, 1)
        ]
        await store.add_spans(lease.ref, made)
        await store.complete(lease.ref, [Reward(value=1.0)])
        assert queued.id == lease.ref.rollout_id


def _engine(database: str) -> Engine:
    if is_url(database):
        return create_engine(parse_url(database).set(drivername="postgresql+psycopg"))
    engine = create_engine(f"sqlite:///{Path(database).absolute()}")

    def hurry(conn: Any, _: Any) -> None:
        for pragma in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -2000000"):  # what fails is filled anew
            conn.execute(f"PRAGMA {pragma}").close()

    event.listen(engine, "connect", hurry)
    return engine


def _copy(conn: Connection, ours: Mapping[Table, list[dict[str, Any]]], n: int, spans_each: int, runs: int) -> None:
    words = WORDS[conn.dialect.name]
    step = (DAYS * 86_400_000_000 - 3_600_000_000) // n
    start = int(time.time() * 1e6) - 3_600_000_000 - n * step
    failed, cancelled = "i % 10 = 1", "i % 50 = 0"
    created = f"{start} + i * {step}"
    rollout = {
        "id": f"'ro-' || {words.hex(20, 'id')}",
        "idempotency_key": f"'k-' || {words.hex(32, 'key')}",
        "state": f"CASE WHEN {failed} THEN 'failed' WHEN {cancelled} THEN 'cancelled' ELSE 'succeeded' END",
        "failure": f"CASE WHEN {failed} THEN CASE i % 3 WHEN 0 THEN 'agent' WHEN 1 THEN 'tool' ELSE 'timeout' END"
        f" WHEN {cancelled} THEN 'cancelled' END",
        "mode": "CASE i % 10 WHEN 2 THEN 'val' ELSE 'train' END",
        "queue": f"CASE WHEN i < {n // 10} AND i % 100 = 7 THEN 'eval' ELSE 'default' END",  # a queue that nobody uses any more
        "run_id": f"'run-' || (i * {runs} / {n})",
        "iteration": f"(i * {runs * 10} / {n}) % 10",
        "group_key": "'group-' || (i / 8)",
        "created_at": created,
        "finished_at": f"{created} + 60000000",
        "revision": f"{created} + 60000000",
    }
    _insert(conn, schema.rollouts, ours[schema.rollouts], rollout, f"{words.numbers.format(n=n)} AS numbers", "0")
    own = ours[schema.rollouts][0]["seq"]
    finished = f"(SELECT seq AS i, id, state, failure, created_at, finished_at FROM rollouts WHERE seq > {own} ORDER BY seq) AS r"
    attempt = {
        "rollout_id": "r.id",
        "state": "CASE r.failure WHEN 'timeout' THEN 'timed_out' ELSE r.state END",
        "failure": "r.failure",
        "worker_id": "'w-' || (i % 50)",
        "request_id": f"'rq-' || {words.hex(16, 'request')}",
        "started_at": "r.created_at + 1000000",
        "ended_at": "r.finished_at",
    }
    _insert(conn, schema.attempts, ours[schema.attempts], attempt, finished, "0")
    reward = {"rollout_id": "r.id", "value": "(i % 11) / 10.0", "created_at": "r.finished_at"}
    _insert(conn, schema.rewards, ours[schema.rewards], reward, f"{finished} WHERE r.state = 'succeeded'", "0")
    rare = f"i < {max(2000, n // 10)} AND i % 1000 = 3"
    span = {
        "rollout_id": "r.id",
        "trace_id": "'000000000000' || substr(r.id, 4)",
        "span_id": "substr(r.id, 4, 12) || CAST(1000 + k AS TEXT)",
        "parent_id": "CASE k WHEN 0 THEN NULL ELSE substr(r.id, 4, 12) || '1000' END",
        "name": f"CASE WHEN k % 2 = 0 THEN 'chat policy' WHEN {rare} THEN 'execute_tool search' ELSE 'execute_tool calculator' END",
        "model": f"CASE WHEN k % 2 = 0 THEN CASE WHEN {rare} THEN 'policy-0' ELSE 'policy' END END",
        "status": f"CASE WHEN k = 1 AND {rare} THEN 'error' ELSE 'unset' END",
        "start_ns": "r.created_at * 1000 + k",
        "end_ns": "r.finished_at * 1000 + k",
        "received_at": "r.finished_at",
    }
    each = " UNION ALL ".join(f"SELECT {k} AS k" for k in range(spans_each))
    _insert(conn, schema.spans, ours[schema.spans], span, f"{finished} CROSS JOIN ({each}) AS each_span ORDER BY i, k", "k % 2")


def _insert(conn: Connection, table: Table, forms: list[dict[str, Any]], own: Mapping[str, str], source: str, which: str) -> None:
    """What ``own`` does not say is as in one of ``forms``: the one of the number ``which``."""
    given: dict[str, Any] = {}

    def value(column: Column[Any]) -> str:
        if column.name in own:
            return own[column.name]
        kind = column.type.compile(conn.dialect).partition(" COLLATE")[0]
        names = [f"{column.name}_{number}" for number in range(len(forms))]
        given.update((name, form[column.name]) for name, form in zip(names, forms, strict=True))
        cases = " ".join(f"WHEN {number} THEN CAST(:{name} AS {kind})" for number, name in enumerate(names))
        return f"CASE {which} {cases} END" if len(forms) > 1 else f"CAST(:{names[0]} AS {kind})"

    columns = {column.name: value(column) for column in table.columns if column.name != "seq"}
    statement = f"INSERT INTO {table.name} ({', '.join(columns)}) SELECT {', '.join(columns.values())} FROM {source}"
    conn.execute(text(statement), given)


def _count(conn: Connection) -> None:
    conn.execute(delete(schema.counters))
    rows = text(
        "SELECT coalesce(run_id, ''), coalesce(iteration, -1), mode, queue, state, coalesce(failure, ''), count(*)"
        " FROM rollouts GROUP BY 1, 2, 3, 4, 5, 6"
    )
    names = ("run_id", "iteration", "mode", "queue", "state", "failure", "n")
    conn.execute(insert(schema.counters), [dict(zip(names, row, strict=True)) for row in conn.execute(rows)])
