"""Endings on their way to the store: what ends while a request is under way goes together in the next one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from leyden.server.interface import MAX_ENDS, AttemptEnd, Store

MOST_BYTES = 1 << 20  # of spans in one request

Waiting = tuple[AttemptEnd, asyncio.Future[None]]


class Endings:
    """Belongs to the event loop of ``store``."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: deque[Waiting] = deque()
        self._sending: asyncio.Task[None] | None = None

    async def end(self, end: AttemptEnd) -> None:
        """Committed when it returns. Raises what ``Store.end_attempts`` says of this one, or why the request failed."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((end, done))
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())
        await done

    async def _send(self) -> None:
        while self._waiting:
            batch = self._next()
            outcomes: Sequence[Exception | None]
            try:
                outcomes = await self._store.end_attempts([end for end, _ in batch])
            except Exception as error:  # whatever it is, each of them is told
                outcomes = [error] * len(batch)
            for (_, done), outcome in zip(batch, outcomes, strict=True):
                if done.cancelled():
                    continue
                if outcome is None:
                    done.set_result(None)
                else:
                    done.set_exception(outcome)
        self._sending = None

    def _next(self) -> list[Waiting]:
        batch: list[Waiting] = []
        size = 0
        while self._waiting and len(batch) < MAX_ENDS and size < MOST_BYTES:
            end, done = self._waiting.popleft()
            batch.append((end, done))
            size += sum(len(span) for span in end.spans if isinstance(span, bytes))
        return batch
