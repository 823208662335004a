"""Spans in memory, and how many of each attempt are still to be stored, wherever they are."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from leyden.runners.failures import describe
from leyden.runners.tracer import Item, LeftOut, line_of
from leyden.types import LeaseRef

DELAY = 0.25  # seconds a span waits for others to go with it
BATCH = 500  # spans of one request
BATCH_BYTES = 1 << 20
FULL = "the store was away, and there was no room for more"

Lot = tuple[LeaseRef, list[bytes]]
"""Spans of one attempt, each as JSON."""


@dataclass
class _Attempt:
    left: int = 0  # spans that are neither stored nor given up
    waiting: deque[Item] = field(default_factory=deque)  # those of them that are here
    due_at: float = 0.0  # in monotonic seconds: when these are to go
    refused: LeftOut = field(default_factory=LeftOut)
    flushed: Future[None] | None = None  # somebody waits for ``left`` to be 0
    over: bool = False  # nobody will ask what was refused


class Buffer:
    """Filled by any thread, emptied by one. It holds ``max_spans`` spans of together ``max_bytes`` at most."""

    def __init__(self, max_spans: int, max_bytes: int) -> None:
        self.spans = 0
        self.bytes = 0
        self.dropped = 0  # for want of room
        self._max_spans = max_spans
        self._max_bytes = max_bytes
        self._attempts: dict[LeaseRef, _Attempt] = {}
        self._waiting: dict[LeaseRef, _Attempt] = {}  # those with something here, in the order it came
        self._hurried: dict[LeaseRef, _Attempt] = {}  # of those
        self._closed: str | None = None
        self._lock = threading.Lock()

    @property
    def left(self) -> int:
        """Spans of all attempts that are neither stored nor given up."""
        with self._lock:
            return sum(attempt.left for attempt in self._attempts.values())

    def put(self, ref: LeaseRef, item: Item) -> tuple[str | None, bool]:
        """Take a span, or the reason why not; and whether whoever empties this has to look."""
        size = _size(item)
        with self._lock:
            if self._closed is not None:
                return self._closed, False
            if self.spans >= self._max_spans or self.bytes + size > self._max_bytes:
                self.dropped += 1
                return FULL, self.dropped == 1
            attempt = self._attempts.get(ref)
            if attempt is None:
                attempt = self._attempts[ref] = _Attempt()
            attempt.left += 1
            attempt.waiting.append(item)
            self.spans += 1
            self.bytes += size
            look = not self._waiting
            if ref not in self._waiting:
                self._waiting[ref] = attempt
                attempt.due_at = time.monotonic() + DELAY
            if len(attempt.waiting) == BATCH:
                self._hurried[ref] = attempt
                look = True
            return None, look

    def take(self, due: bool = True) -> Lot | None:
        """Up to a batch of what is ``due``; or of whatever is here."""
        while (taken := self._take(due)) is not None:
            ref, items = taken
            lines: list[bytes] = []
            size = 0
            while items and (not lines or size < BATCH_BYTES):
                item = items.popleft()
                try:
                    line = line_of(item)
                except Exception as error:  # whoever made it: it costs no other span
                    self.settle(ref, 1, [describe(error)])
                else:
                    lines.append(line)
                    size += len(line)
            if items:
                self._put_back(ref, items)
            if lines:
                return ref, lines
        return None

    def take_rest(self, ref: LeaseRef, most_spans: int, most_bytes: int) -> list[bytes] | None:
        """All that is left of the attempt, to be settled by whoever takes it; None: some of it is elsewhere, it is more than that, or
        something was refused."""
        with self._lock:
            attempt = self._attempts.get(ref)
            if attempt is None:
                return []
            size = sum(map(_size, attempt.waiting))
            if attempt.left != len(attempt.waiting) or attempt.left > most_spans or size > most_bytes or attempt.refused.n:
                return None
            items = list(attempt.waiting)
            try:
                lines = [line_of(item) for item in items]
            except Exception:  # whoever sends it by itself says which, and why
                return None
            attempt.waiting.clear()
            self._waiting.pop(ref, None)
            self._hurried.pop(ref, None)
            self.spans -= len(items)
            self.bytes -= size
            return lines

    def _take(self, due: bool) -> tuple[LeaseRef, deque[Item]] | None:
        with self._lock:
            ref = next(iter(self._hurried), None)
            if ref is None:
                ref = next(iter(self._waiting), None)
                if ref is None or (due and self._waiting[ref].due_at > time.monotonic()):
                    return None
            attempt = self._waiting[ref]
            items = deque(attempt.waiting.popleft() for _ in range(min(BATCH, len(attempt.waiting))))
            self.spans -= len(items)
            self.bytes -= sum(map(_size, items))
            if not attempt.waiting:
                del self._waiting[ref]
                self._hurried.pop(ref, None)
            return ref, items

    def until_due(self) -> float | None:
        """Seconds until there is something to take; None: not before somebody puts something in."""
        with self._lock:
            first = next(iter(self._waiting.values()), None)
            if first is None:
                return None
            return 0.0 if self._hurried else max(0.0, first.due_at - time.monotonic())

    def put_back(self, lot: Lot) -> None:
        """What was taken could not be sent, nor kept elsewhere. There is always room for it."""
        self._put_back(*lot)

    def _put_back(self, ref: LeaseRef, items: Sequence[Item]) -> None:
        with self._lock:
            attempt = self._attempts[ref]
            attempt.waiting.extendleft(reversed(items))
            self._waiting = {ref: attempt} | self._waiting  # the oldest comes first
            self.spans += len(items)
            self.bytes += sum(map(_size, items))

    def settle(self, ref: LeaseRef, n: int, refused: Sequence[str] = ()) -> Sequence[str]:
        """``n`` spans are stored or, some of them, ``refused``. Returns the refusals that nobody will ask for: those of an attempt that is
        over, or was another runner's."""
        with self._lock:
            attempt = self._attempts.get(ref)
            if attempt is None:
                return refused
            attempt.left -= n
            if not attempt.over:
                for reason in refused:
                    attempt.refused.add(reason)
            if attempt.left == 0:
                if attempt.flushed is not None:
                    attempt.flushed.set_result(None)
                    attempt.flushed = None
                if attempt.over or not attempt.refused.n:  # what comes after its attempt has ended leaves nothing behind either
                    del self._attempts[ref]
            return refused if attempt.over else ()

    def flushed(self, ref: LeaseRef) -> Future[None] | None:
        """Done once every span of the attempt is settled; None: it has none that is not. They are due now."""
        with self._lock:
            attempt = self._attempts.get(ref)
            if attempt is None or not attempt.left:
                return None
            if ref in self._waiting:
                self._hurried[ref] = attempt
            if attempt.flushed is None:
                attempt.flushed = Future()
            return attempt.flushed

    def hurry(self) -> None:
        """Everything is due."""
        with self._lock:
            self._hurried = dict(self._waiting)

    def refused(self, ref: LeaseRef) -> LeftOut:
        """Spans of the attempt that the store has refused."""
        with self._lock:
            attempt = self._attempts.get(ref)
            return LeftOut() if attempt is None else attempt.refused

    def forget(self, ref: LeaseRef) -> None:
        """The attempt is over. What is left of it is sent all the same."""
        with self._lock:
            attempt = self._attempts.get(ref)
            if attempt is not None and attempt.left:
                attempt.over = True
            else:
                self._attempts.pop(ref, None)

    def close(self, reason: str) -> None:
        """Nothing is taken any more, and nobody waits for what is left."""
        with self._lock:
            self._closed = reason
            for attempt in self._attempts.values():
                if attempt.flushed is not None:
                    attempt.flushed.set_result(None)
                    attempt.flushed = None


def _size(item: Item) -> int:
    return len(item) if isinstance(item, bytes) else item.size
