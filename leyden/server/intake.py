"""Captured data on its way in: how much of it may be under way at once, over all requests, and the threads that work on it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from leyden.errors import Busy, Unavailable

P = ParamSpec("P")
T = TypeVar("T")

MAX_HELD = 128 << 20  # bytes of bodies, and of rows made of them
THREADS = 4
DECODERS = 2  # exports decoded at the same time: that may take 20 times a body's memory. The other threads are there for everybody else


class Intake:
    """Belongs to one event loop. Take a turn of ``turns`` to decode an export.

    The threads are its own: those that asyncio keeps may all be taken by agents, each of which waits for its spans to be stored.
    """

    def __init__(self) -> None:
        self.turns = asyncio.Semaphore(DECODERS)
        self._threads = ThreadPoolExecutor(THREADS, "leyden-store-intake")
        self._closed = False
        self._held = 0

    async def work(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """``function(*args)`` in a thread. Raises ``Unavailable`` once it is closed."""
        assert not kwargs
        if self._closed:
            raise Unavailable("the store is closed")
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)

    @contextmanager
    def holding(self) -> Iterator[Callable[[int], None]]:
        """What is yielded counts bytes in, until the context ends. It raises ``Busy`` when there is no room."""
        mine = 0

        def hold(size: int) -> None:
            nonlocal mine
            if self._held > mine and self._held + size > MAX_HELD:  # a body alone has room, however large
                raise Busy("the store is behind with its captured data", "try again after the time it names", random.randint(1, 3))
            self._held += size
            mine += size

        try:
            yield hold
        finally:
            self._held -= mine

    @property
    def held(self) -> int:
        """Bytes under way now."""
        return self._held

    def close(self) -> None:
        self._closed = True
        self._threads.shutdown(wait=False)
