"""A plain line now and then, for what may take long and has no board."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from leyden.cli.printing import say

EVERY = 30.0  # seconds

T = TypeVar("T")


class Progress:
    """``step`` once for each of the things that are done; ``what`` names them."""

    def __init__(self, what: str, total: int | None = None) -> None:
        self._what = what
        self._of = "" if total is None else f" of {total}"
        self._done = 0
        self._told = time.monotonic()

    def step(self) -> None:
        self._done += 1
        if time.monotonic() - self._told > EVERY:
            self._told = time.monotonic()
            say(f"{self._done}{self._of} {self._what}")

    def watch(self, items: Iterable[T]) -> Iterator[T]:
        for item in items:
            yield item
            self.step()
