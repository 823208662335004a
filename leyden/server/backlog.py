"""The writes that wait: two lanes, both bounded, the urgent one first."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from leyden.errors import Busy

MAX_URGENT = 8192  # operations that may wait
MAX_BULK_BYTES = 64 << 20  # of captured data that may wait
MAX_PASSED_OVER = 4  # urgent operations, one by one, before one of the others has its turn
# Where several operations that can be joined come at a time, a commit waits for a few more of them: what it costs by itself, ten times what
# one of them adds to it, is then shared by more (PostgreSQL's commit_delay and commit_siblings).
LINGER = 0.005  # seconds
FEW = 2
MAX_COMMIT_BYTES = 8 << 20  # of it in one commit, so that a beat never waits long behind it


@dataclass(frozen=True)
class Job:
    """One operation with its arguments. ``size``: bytes of captured data it writes; 0 for the queue's own operations."""

    operation: Callable[..., Any]
    args: tuple[Any, ...]
    size: int
    future: asyncio.Future[Any]
    together: bool = False  # its one argument is a list: those of several jobs may be joined

    @property
    def name(self) -> str:
        return f"{self.operation.__module__.rpartition('.')[2]}.{self.operation.__name__}"


@dataclass(frozen=True)
class Waiting:
    """How much waits in each lane: operations, and bytes of captured data."""

    urgent: int
    bulk: int
    bulk_bytes: int

    @property
    def full(self) -> bool:
        """One of the lanes takes nothing more."""
        return self.urgent >= MAX_URGENT or self.bulk_bytes >= MAX_BULK_BYTES


class Backlog:
    """Filled by the event loop, emptied by writer threads."""

    def __init__(self) -> None:
        self._urgent: deque[Job] = deque()
        self._bulk: deque[Job] = deque()
        self._bulk_bytes = 0
        self._passed_over = 0  # urgent operations taken while others waited
        self._closed = False
        self._joined = 0  # operations of the last batch that were run as one
        self._changed = threading.Condition()

    def put(self, job: Job) -> None:
        """Raises ``Busy`` when the job's lane is full."""
        with self._changed:
            if job.size == 0 and len(self._urgent) >= MAX_URGENT:
                raise _behind("writes")
            if job.size and self._bulk_bytes + job.size > MAX_BULK_BYTES and self._bulk:
                raise _behind("captured data")
            if job.size:
                self._bulk.append(job)
                self._bulk_bytes += job.size
            else:
                self._urgent.append(job)
            self._changed.notify()

    def check_room(self) -> None:
        """Raises ``Busy`` when a lane is half full."""
        if len(self._urgent) >= MAX_URGENT // 2:
            raise _behind("writes")
        if self._bulk_bytes >= MAX_BULK_BYTES // 2:
            raise _behind("captured data")

    def waiting(self) -> Waiting:
        with self._changed:
            return Waiting(len(self._urgent), len(self._bulk), self._bulk_bytes)

    def take(self, limit: int) -> list[Job]:
        """Waits for work, then takes up to ``limit`` operations: urgent ones first, and one of the others with them, or, where one
        operation is all, in its turn. Empty once closed."""
        with self._changed:
            while not self._urgent and not self._bulk:
                if self._closed:
                    return []
                self._changed.wait()
            if limit > 1 and self._joined > FEW and not self._urgent and self._bulk[0].together:
                self._changed.wait_for(lambda: self._urgent or self._closed, LINGER)
            batch: list[Job] = []
            due = self._bulk and (limit > 1 or self._passed_over >= MAX_PASSED_OVER)
            while self._urgent and len(batch) < (limit - 1 if due else limit):
                batch.append(self._urgent.popleft())
            self._passed_over = self._passed_over + len(batch) if self._bulk and not due else 0
            size = 0
            while self._bulk and len(batch) < limit and (size == 0 or size + self._bulk[0].size <= MAX_COMMIT_BYTES):
                job = self._bulk.popleft()
                batch.append(job)
                size += job.size
            self._bulk_bytes -= size
            self._joined = sum(job.together for job in batch)
            return batch

    def close(self) -> None:
        """What waits is still taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def _behind(what: str) -> Busy:
    return Busy(f"the store is behind with its {what}", "try again after the time it names", retry_after=random.randint(1, 3))
