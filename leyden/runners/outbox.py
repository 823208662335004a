"""Spans on their way to the store: taken from any thread, sent by one of its own while the attempts still run.

While the store is away they are moved to the spool, on the disk. What neither that nor memory has room for is left out, and counted under
its attempt. One span that the store refuses costs neither the others nor the attempt.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from leyden.errors import Busy, Unavailable
from leyden.runners.buffer import DELAY, FULL, Buffer, Lot
from leyden.runners.delivery import left_out_span, send
from leyden.runners.failures import describe
from leyden.runners.spool import LIMIT, Spool, read
from leyden.runners.tracer import Item, LeftOut, Recorder
from leyden.server.interface import Store
from leyden.types import LeaseRef

SENDERS = 8  # requests at once
REST, REST_BYTES = 64, 64 << 10  # spans, and bytes of them, that may go with their attempt's ending: encoded in the runner's event loop
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 5.0  # seconds between tries while the store is away
ENDED = "its runner had ended"
UNREADABLE = "what was kept on the disk could not be read again"


@dataclass(frozen=True)
class Limits:
    """What one runner keeps of spans that are not stored yet."""

    spans: int = 50_000  # in memory
    bytes: int = 64 << 20
    spool: int = LIMIT  # bytes on the disk


class Outbox:
    """``connect`` makes its client of the store. ``directory``: its spool's; None: without the store there is only memory."""

    def __init__(self, connect: Callable[[], Store], name: str, directory: Path | None = None, limits: Limits = Limits()) -> None:
        self.buffer = Buffer(limits.spans, limits.bytes)
        self._connect = connect
        self._name = name
        self._spool = Spool(directory, limits.spool) if directory else None
        self._home = os.getpid()
        self._seconds = 0.0  # to send the rest in, once asked to stop
        self._thread = threading.Thread(target=self._work, name="spans", daemon=True)
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.away = False  # the store has not taken what it was sent last
        self._sending: set[asyncio.Task[None]] = set()
        self._recovering: asyncio.Task[None] | None = None
        self._kept = 0  # spans that went to the spool, since the store was last there
        self._complained = False  # of the disk, since then

    def start(self) -> None:
        self._thread.start()
        self._started.wait()

    def put(self, ref: LeaseRef, item: Item) -> str | None:
        """Take one span, or the reason why not. Costs microseconds, and never waits for the store or the disk."""
        if os.getpid() != self._home:
            return None  # in a fork nobody sends, and nobody counts
        refusal, look = self.buffer.put(ref, item)
        if look:
            self._look()
        return refusal

    async def finish(self, ref: LeaseRef, recorder: Recorder, give_up: Callable[[], bool]) -> None:
        """Return once all that was recorded is stored, with a note of what is not; or when ``give_up`` says so: then it comes late."""
        await self._flush(ref, give_up)
        left_out = LeftOut()
        for some in (self.buffer.refused(ref), recorder.left_out):
            if some.n:
                left_out.add(some.reason, some.n)
        if left_out.n:
            self._say(f"rollout {ref.rollout_id}, attempt {ref.attempt}: {left_out.n} spans left out: {left_out.reason}")
            self.put(ref, left_out_span(recorder, left_out, time.time_ns()))
            await self._flush(ref, give_up)
        self.buffer.forget(ref)

    def take_rest(self, ref: LeaseRef, recorder: Recorder) -> list[bytes] | None:
        """What is left of an attempt, where that is little and all here, to go with its ending: ``settle`` it, or ``put_back``. None: it
        has to be sent, by ``finish``."""
        if self.away or recorder.left_out.n:
            return None
        return self.buffer.take_rest(ref, REST, REST_BYTES)

    def settle(self, ref: LeaseRef, lines: list[bytes]) -> None:
        """They are stored, and the attempt is over."""
        self.buffer.settle(ref, len(lines))
        self.buffer.forget(ref)

    def put_back(self, ref: LeaseRef, lines: list[bytes]) -> None:
        if lines:
            self.buffer.put_back((ref, lines))
            self._look()

    async def _flush(self, ref: LeaseRef, give_up: Callable[[], bool]) -> None:
        flushed = self.buffer.flushed(ref)
        if flushed is None:
            return
        self._look()
        told = asyncio.wrap_future(flushed)
        while not told.done() and not give_up():
            await asyncio.wait({told}, timeout=0.5)

    async def stop(self, seconds: float) -> None:
        """Send what waits, for so many seconds while the store answers. The rest goes to the spool; what has no place there is left out."""
        self._seconds = seconds
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._stop.set)
            await asyncio.to_thread(self._thread.join)

    def _look(self) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._wake.set)

    # -- in its own thread ------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        reason = ENDED
        try:
            asyncio.run(self._run())
        except BaseException as error:  # nobody may wait for a thread that is dead
            reason = f"what sends spans has failed: {describe(error)}"
            self._say(reason)
            raise
        finally:
            self.buffer.close(reason)
            self._started.set()

    async def _run(self) -> None:
        self._loop, self._wake, self._stop = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        self._slots = asyncio.Semaphore(SENDERS)
        self._store = self._connect()
        try:
            async with asyncio.TaskGroup() as self._tasks:
                if self._spool is not None and self._spool.adopt():
                    self._say(f"sending the spans that an earlier runner has left in {self._spool.directory}")
                    self._recover()
                dispatching = self._tasks.create_task(self._dispatch())
                self._started.set()
                await self._stop.wait()
                self.buffer.hurry()
                self._wake.set()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._all_sent(), self._seconds)
                for task in (dispatching, self._recovering, *self._sending):
                    if task is not None:
                        task.cancel()
            self._spill()
            if self.buffer.spans:
                self._say(f"{self.buffer.spans} spans left out: {FULL}")
        finally:
            if self._spool is not None:
                self._spool.close()
            await self._store.close()

    async def _all_sent(self) -> None:
        while self.buffer.left and not self.away:
            await asyncio.sleep(0.01)

    async def _dispatch(self) -> None:
        while True:
            await self._slots.acquire()
            lot = await self._next()
            self._sending.add(task := self._tasks.create_task(self._deliver(lot)))
            task.add_done_callback(partial(self._delivered, lot))

    async def _next(self) -> Lot:
        """What is due, once the store is there. While it is away, all goes to the spool."""
        while True:
            self._wake.clear()
            if self.away:
                self._spill()
                pause: float | None = DELAY
            elif lot := self.buffer.take():
                return lot
            else:
                pause = self.buffer.until_due()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), pause)

    async def _deliver(self, lot: Lot) -> None:
        try:
            await self._send(lot)
        except (Busy, Unavailable):
            self.away = True
            self._keep(lot)
            self._recover()

    def _delivered(self, lot: Lot, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        self._slots.release()
        if task.cancelled():  # perhaps before it had begun
            self.buffer.put_back(lot)

    async def _send(self, lot: Lot) -> None:
        ref, lines = lot
        self._settle(ref, len(lines), await send(self._store, ref, lines))

    def _settle(self, ref: LeaseRef, n: int, refused: Sequence[str]) -> None:
        untold = self.buffer.settle(ref, n, refused)
        if untold:
            self._say(f"rollout {ref.rollout_id}, attempt {ref.attempt}: {len(untold)} spans left out: {untold[0]}")

    def _recover(self) -> None:
        if self._recovering is None or self._recovering.done():
            self._recovering = self._tasks.create_task(self._send_what_was_kept())

    async def _send_what_was_kept(self) -> None:
        """The oldest first, again and again until the store takes it."""
        while (lots := self._kept_lots()) is not None:
            segment, kept = lots
            for lot in kept:
                try:
                    await self._until_sent(lot)
                except asyncio.CancelledError:
                    if segment is None:
                        self.buffer.put_back(lot)
                    raise
            if segment is not None and self._spool is not None:
                for ref, n in self._spool.drop(segment, kept).items():
                    self._settle(ref, n, [UNREADABLE] * n)
        self.away = False
        self._wake.set()
        if self._kept:
            self._say(f"the store has the {self._kept} spans that were kept on the disk")
        self._kept, self._complained = 0, False

    def _kept_lots(self) -> tuple[Path | None, list[Lot]] | None:
        """A file of the spool; without one, and while the store is still away, something from memory."""
        segment = self._spool.oldest() if self._spool is not None else None
        if segment is not None:
            try:
                return segment, list(read(segment))
            except OSError as error:
                self._say(f"what was kept in {segment} cannot be read: {error}")
                return segment, []
        lot = self.buffer.take(due=False) if self.away else None
        return None if lot is None else (None, [lot])

    async def _until_sent(self, lot: Lot) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                await self._send(lot)
            except (Busy, Unavailable) as error:
                self.away = True
                least = error.retry_after if isinstance(error, Busy) else 0.0
                await asyncio.sleep(max(least, pause * random.uniform(0.5, 1.5)))
                pause = min(pause * 2, LONGEST_PAUSE)
            else:
                if self.away:
                    self.away = False
                    self._wake.set()
                return

    # -- the disk ---------------------------------------------------------------------------------------------------------

    def _spill(self) -> None:
        while lot := self.buffer.take(due=False):
            if not self._keep(lot):
                return

    def _keep(self, lot: Lot) -> bool:
        """Move to the spool what it has room for, the rest back to memory; whether that was all."""
        ref, lines = lot
        n = self._write(ref, lines)
        if n < len(lines):
            self.buffer.put_back((ref, lines[n:]))
        return n == len(lines)

    def _write(self, ref: LeaseRef, lines: list[bytes]) -> int:
        if self._spool is None:
            return 0
        try:
            n = self._spool.append(ref, lines)
            problem = f"it holds {self._spool.limit >> 20} MiB, which is its limit"
        except OSError as error:
            n, problem = 0, str(error)
        if n and not self._kept:
            self._say(f"the store takes no spans; keeping them in {self._spool.directory}")
        if n < len(lines) and not self._complained:
            self._complained = True
            self._say(f"no more spans can be kept in {self._spool.directory} ({problem}); beyond what memory holds, they will be left out")
        self._kept += n
        return n

    def _say(self, text: str) -> None:
        print(f"{self._name}: {text}", file=sys.stderr, flush=True)
