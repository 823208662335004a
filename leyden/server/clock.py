"""The store's one clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


def system_time() -> int:
    """Microseconds since the Unix epoch."""
    return time.time_ns() // 1000


def microseconds(seconds: float) -> int:
    return round(seconds * 1_000_000)


class StoreClock:
    """``read``, made monotone: a wall clock set back must not lengthen or reorder anything. Any thread may call it."""

    def __init__(self, read: Callable[[], int] = system_time) -> None:
        self._read = read
        self._last = 0
        self._lock = threading.Lock()

    def __call__(self) -> int:
        with self._lock:
            self._last = max(self._last, self._read())
            return self._last
