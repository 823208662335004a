"""How stores on one PostgreSQL wake each other's waiters: one NOTIFY for many commits, and a slow look around for those that got lost.

NOTIFY takes a lock of the whole server at commit, so there is at most one each ``QUIET`` seconds from each store, whatever it commits.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import zlib
from collections.abc import Callable, Coroutine
from typing import Any

import psycopg
from sqlalchemy import func, select

from leyden.errors import LeydenError
from leyden.server.postgres import PostgresDatabase
from leyden.server.transaction import Transaction

QUIET = 0.03  # seconds between two notifications
LOOK_AROUND = (1.0, 5.0)  # seconds, drawn anew each time: stores that polled in step would storm the database
RECONNECT = (0.1, 1.0)

log = logging.getLogger(__name__)


class Replicas:
    """Belongs to the event loop that made it. ``on_news`` is called there whenever another store may have changed something."""

    def __init__(
        self,
        database: PostgresDatabase,
        run: Callable[[Callable[[Transaction], None]], Coroutine[Any, Any, None]],
        on_news: Callable[[], None],
    ) -> None:
        self._conninfo = database.conninfo
        self._channel = f"leyden_{zlib.crc32(database.schema_name.encode()):08x}"  # channels belong to the database, not to a schema
        self._me = secrets.token_hex(4)
        self._run = run
        self._on_news = on_news
        self._changed = asyncio.Event()
        self._tasks = [asyncio.create_task(work()) for work in (self._tell, self._listen, self._look_around)]

    def announce(self) -> None:
        """Something was committed that others may be waiting for."""
        self._changed.set()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    async def _tell(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._run(self.notify)
            except LeydenError as error:  # the others look around by themselves
                log.warning("other stores were not told of a change: %s", error)
            await asyncio.sleep(QUIET)

    def notify(self, tx: Transaction) -> None:
        tx.conn.execute(select(func.pg_notify(self._channel, self._me)))

    async def _listen(self) -> None:
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(self._conninfo, autocommit=True) as conn:
                    await conn.execute(f"LISTEN {self._channel}")
                    self._on_news()  # whatever was said before
                    async for notice in conn.notifies():
                        if notice.payload != self._me:
                            self._on_news()
            except psycopg.Error as error:
                log.info("listening again: %s", error)
            await asyncio.sleep(random.uniform(*RECONNECT))

    async def _look_around(self) -> None:
        """The net under the notifications: a store may be killed between its COMMIT and its NOTIFY, and we may be unable to listen."""
        while True:
            await asyncio.sleep(random.uniform(*LOOK_AROUND))
            self._on_news()
