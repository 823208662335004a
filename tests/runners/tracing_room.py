"""What the tests of tracing share: a store over HTTP with attempts that run, and runners in this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leyden.runners import Agent, Runner, RunnerConfig
from leyden.runners.hooks import Hook, Observers
from leyden.runners.outbox import Limits, Outbox
from leyden.runners.tracer import Tracer
from leyden.server.client import StoreClient
from leyden.server.codec import encode
from leyden.server.serving import listening
from leyden.server.sqlstore import SQLStore
from leyden.types import LeaseRef, NewRollout, Resource, Rollout, RolloutConfig, Span

LIMIT = 60.0  # seconds until a test that hangs is told so


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), LIMIT))


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


@dataclass
class Room:
    """``url``: where the store answers, and where nobody does while it is away."""

    path: Path
    url: str
    port: int
    sql: SQLStore | None = None

    async def attempts(self, n: int) -> list[LeaseRef]:
        assert self.sql is not None
        await self.sql.enqueue([NewRollout(input=i) for i in range(n)])
        return [lease.ref for lease in await self.sql.claim("w", n)]

    async def spans(self, ref: LeaseRef) -> list[Span]:
        assert self.sql is not None
        return await self.sql.list_spans(ref.rollout_id, ref.attempt)

    @asynccontextmanager
    async def store(self) -> AsyncIterator[SQLStore]:
        async with await SQLStore.open(self.path, sweep_every=0.1) as sql, listening(sql, port=self.port) as where:
            self.url, self.port, self.sql = where.url, where.port, sql
            try:
                yield sql
            finally:
                self.sql = None


def room(tmp_path: Path) -> Room:
    return Room(tmp_path / "store.db", "", 0)


@asynccontextmanager
async def outbox(url: str, spool: Path | None = None, limits: Limits = Limits()) -> AsyncIterator[Outbox]:
    box = Outbox(lambda: StoreClient(url, deadline=0.1), "test", spool, limits)
    box.start()
    try:
        yield box
    finally:
        await box.stop(2.0)


def line(n: int, trace: int = 1, **attributes: Any) -> bytes:
    now = time.time_ns()
    ids = {"trace_id": f"{trace:032x}", "span_id": f"{n + 1:016x}"}
    return encode({**ids, "name": "said", "start_ns": now, "end_ns": now, "attributes": {"n": n, **attributes}})


async def traced(
    agent: Agent,
    inputs: Sequence[Any],
    resources: dict[str, Resource] | None = None,
    tracer: Tracer | None = None,
    hooks: Sequence[Hook] = (),
    concurrency: int = 64,
) -> list[tuple[Rollout, list[Span]]]:
    """Each input once, by a runner in this process; the rollouts as they ended, and their spans."""
    async with await SQLStore.open(sweep_every=0.1) as store, listening(store) as where:
        if resources:
            await store.add_resources(resources)
        items = await store.enqueue([NewRollout(input=item, config=RolloutConfig(max_attempts=1)) for item in inputs])
        config = RunnerConfig(max_rollouts=len(items), concurrency=concurrency)
        await Runner(agent, lambda: StoreClient(where.url), config, observers=Observers(hooks, tracer)).run()
        return [(await store.get_rollout(item.id), await store.list_spans(item.id)) for item in items]
