"""Small writes that are sent together: one request for each costs more than what is in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

from leyden.errors import LeydenError

T = TypeVar("T")
_Item = tuple[T, asyncio.Future[None]]


class Together(Generic[T]):
    """What comes while a request is under way goes with the next one; with none under way an item waits for no other.

    ``send`` sends items, and says what came of each: None, or why it was refused. It raises what is wrong with all of them.
    ``most``, ``most_bytes``: in a request, the latter by ``size`` and for more than one item. ``overlap``: a second request goes out beside
    the first once half as many wait as that one carries: else sender and receiver would work in turn, each idle half of the time. Use it in
    one event loop.
    """

    def __init__(
        self,
        send: Callable[[list[T]], Coroutine[Any, Any, Sequence[LeydenError | None]]],
        most: int,
        most_bytes: int,
        size: Callable[[T], int],
        overlap: bool = False,
    ) -> None:
        self._send = send
        self._most, self._most_bytes, self._size = most, most_bytes, size
        self._overlap = overlap
        self._waiting: list[_Item[T]] = []
        self._sending: dict[asyncio.Task[Sequence[LeydenError | None]], list[_Item[T]]] = {}  # what each request under way carries

    async def add(self, item: T) -> None:
        """Returns once it is stored. Raises what it was refused for, or what was wrong with its request.

        An item whose adder is cancelled is sent nevertheless, like any request that is under way.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._waiting.append((item, done))
        loop.call_soon(self._send_due)  # with all that comes in this step of the loop
        await done

    def stop(self) -> None:
        """Whoever waits is cancelled."""
        for task in self._sending:
            task.cancel()
        _leave(self._waiting)
        self._waiting = []

    def _send_due(self) -> None:
        while self._waiting and self._may_send():
            batch = self._take()
            self._sending[task := asyncio.create_task(self._send_batch(batch))] = batch
            task.add_done_callback(self._sent)

    def _may_send(self) -> bool:
        if not self._sending:
            return True
        (first, *others) = self._sending.values()
        return self._overlap and not others and 2 * len(self._waiting) >= len(first)

    async def _send_batch(self, batch: list[_Item[T]]) -> Sequence[LeydenError | None]:
        outcomes = await self._send([item for item, _ in batch])
        if len(outcomes) != len(batch):
            raise LeydenError(f"{len(outcomes)} outcomes of {len(batch)} items", "check that both sides run the same version")
        return outcomes

    def _sent(self, task: asyncio.Task[Sequence[LeydenError | None]]) -> None:
        batch = self._sending.pop(task)
        if task.cancelled():  # by ``stop``, or because the loop ends: nothing more is sent
            _leave(batch + self._waiting)
            self._waiting = []
            return
        error = task.exception()  # each adder has to deal with it
        outcomes: Sequence[BaseException | None] = task.result() if error is None else [error] * len(batch)
        for (_, done), outcome in zip(batch, outcomes, strict=True):
            if done.done():  # its adder left
                continue
            if outcome is None:
                done.set_result(None)
            else:
                done.set_exception(outcome)
        self._send_due()

    def _take(self) -> list[_Item[T]]:
        room, n = self._most_bytes, 0
        for item, _ in self._waiting[: self._most]:
            room -= self._size(item)
            if n and room < 0:
                break
            n += 1
        batch, self._waiting = self._waiting[:n], self._waiting[n:]
        return batch


def _leave(items: Sequence[_Item[T]]) -> None:
    for _, done in items:
        done.cancel()
