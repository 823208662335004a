"""Small writes that are sent together: one request for each costs more than what is in it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from leyden.errors import LeydenError

T = TypeVar("T")


class Together(Generic[T]):
    """What comes while a request is under way goes with the next one; with none under way an item waits for no other.

    ``send`` sends items, and says what came of each: None, or why it was refused. It raises what is wrong with all of them.
    ``most``, ``most_bytes``: in a request, the latter by ``size`` and for more than one item. ``overlap``: a second request goes out beside
    the first once half as many wait as that one carries: else sender and receiver would work in turn, each idle half of the time. Use it in
    one event loop.
    """

    def __init__(
        self,
        send: Callable[[list[T]], Awaitable[Sequence[LeydenError | None]]],
        most: int,
        most_bytes: int,
        size: Callable[[T], int],
        overlap: bool = False,
    ) -> None:
        self._send = send
        self._most, self._most_bytes, self._size = most, most_bytes, size
        self._overlap = overlap
        self._waiting: deque[tuple[T, asyncio.Future[None]]] = deque()
        self._sending: dict[asyncio.Task[None], int] = {}  # items in each request under way

    async def add(self, item: T) -> None:
        """Returns once it is stored. Raises what it was refused for, or what was wrong with its request.

        An item whose adder is cancelled is sent nevertheless, like any request that is under way.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, done))
        asyncio.get_running_loop().call_soon(self._send_due)  # with all that comes in this step of the loop
        await done

    def stop(self) -> None:
        """Whoever waits is cancelled."""
        for task in self._sending:
            task.cancel()
        for _, done in self._waiting:
            done.cancel()
        self._waiting.clear()

    def _send_due(self) -> None:
        while self._waiting and (
            not self._sending or (self._overlap and len(self._sending) == 1 and 2 * len(self._waiting) >= sum(self._sending.values()))
        ):
            batch = self._take()
            task = asyncio.create_task(self._send_batch(batch))
            self._sending[task] = len(batch)
            task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        del self._sending[task]
        self._send_due()

    async def _send_batch(self, batch: list[tuple[T, asyncio.Future[None]]]) -> None:
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

    def _take(self) -> list[tuple[T, asyncio.Future[None]]]:
        batch: list[tuple[T, asyncio.Future[None]]] = []
        room = self._most_bytes
        while self._waiting and len(batch) < self._most:
            room -= self._size(self._waiting[0][0])
            if batch and room < 0:
                break
            batch.append(self._waiting.popleft())
        return batch
