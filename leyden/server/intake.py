"""How much captured data may be on its way in at once, over all requests."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from leyden.errors import Busy

MAX_HELD = 128 << 20  # bytes of bodies, and of rows made of them
DECODERS = 2  # bodies decoded at the same time: that is what takes memory, up to 20 times a body's size


class Intake:
    """Take a turn of ``turns`` to decode."""

    def __init__(self) -> None:
        self.turns = asyncio.Semaphore(DECODERS)
        self._held = 0

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
