"""Small writes that are sent together: one request for each costs more than what is in it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from leyden.errors import LeydenError

MOST_BYTES = 4 << 20

_Waiting = tuple[bytes, asyncio.Future[None]]

Send = Callable[[list[bytes]], Awaitable[Sequence[LeydenError | None]]]
"""Sends items, and says what came of each: None, or why it was refused. Raises what is wrong with all of them."""


class Together:
    """What comes while a request is under way goes with the next one; with none under way an item waits for no other.

    ``most``: items in a request. Use it in one event loop.
    """

    def __init__(self, send: Send, most: int) -> None:
        self._send = send
        self._most = most
        self._waiting: deque[_Waiting] = deque()
        self._sending: asyncio.Task[None] | None = None

    async def add(self, item: bytes) -> None:
        """Returns once it is stored. Raises what it was refused for, or what was wrong with its request.

        An item whose adder is cancelled is sent nevertheless, like any request that is under way.
        """
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((item, done))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send_all())
        await done

    def stop(self) -> None:
        """Whoever waits is cancelled."""
        if self._sending is not None:
            self._sending.cancel()
        for _, done in self._waiting:
            done.cancel()

    async def _send_all(self) -> None:
        while self._waiting:
            batch = self._take()
            outcomes: Sequence[Exception | None]
            try:
                outcomes = await self._send([item for item, _ in batch])
            except asyncio.CancelledError:
                for _, done in batch:
                    done.cancel()
                raise
            except Exception as error:  # each adder has to deal with it
                outcomes = [error] * len(batch)
            for (_, done), outcome in zip(batch, outcomes, strict=True):
                if done.done():  # its adder left
                    continue
                if outcome is None:
                    done.set_result(None)
                else:
                    done.set_exception(outcome)

    def _take(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        size = 0
        while self._waiting and len(batch) < self._most and (not batch or size + len(self._waiting[0][0]) <= MOST_BYTES):
            batch.append(self._waiting.popleft())
            size += len(batch[-1][0])
        return batch
