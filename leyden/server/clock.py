"""Time as a store counts it: microseconds since the Unix epoch, never backwards."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

# Goes on while the machine sleeps, where there is one that does: a lease of before is stale after.
_ELAPSING = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def system_time() -> int:
    return time.time_ns() // 1000


def microseconds(seconds: float) -> int:
    return round(seconds * 1_000_000)


class SteadyClock:
    """The wall clock as it was at the start, moved on by what has elapsed since: a wall clock that is set meanwhile changes nothing.

    Begins no earlier than ``floor``, the last time that was written: a wall clock set back between two starts repeats nothing.
    """

    def __init__(self, floor: int = 0) -> None:
        self._offset = max(system_time(), floor) - _elapsed()

    def __call__(self) -> int:
        return self._offset + _elapsed()


def _elapsed() -> int:
    return time.clock_gettime_ns(_ELAPSING) // 1000


class MonotoneClock:
    """``read``, held where it would go backwards. Any thread may call it."""

    def __init__(self, read: Callable[[], int]) -> None:
        self._read = read
        self._last = 0
        self._lock = threading.Lock()

    def __call__(self) -> int:
        with self._lock:
            self._last = max(self._last, self._read())
            return self._last
