"""Runs operations: writes in threads of their own, reads in a few others.

An answer goes out only after the COMMIT that made it true. A writer takes what is waiting, up to the database's ``max_batch`` operations,
into one transaction with a savepoint each: an operation that fails undoes itself alone, a commit that fails fails them all. Where a
transaction may fail for a passing reason (a deadlock, a restart of the server), its operations are run again from their start.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DataError, DBAPIError, OperationalError

from leyden.errors import Busy, InvalidRequest, LeydenError, Unavailable
from leyden.failpoint import failpoint
from leyden.server.backlog import Backlog, Job, Waiting
from leyden.server.database import Database, Start
from leyden.server.metrics import Metrics
from leyden.server.transaction import Changes, Transaction

P = ParamSpec("P")
T = TypeVar("T")

READERS = 4
PATIENCE = 10.0  # seconds a write is tried again for passing reasons; then its caller is told, and may repeat it
MAX_PAUSE = 0.5

log = logging.getLogger(__name__)


@dataclass
class _Outcome:
    result: Any = None
    error: Exception | None = None


class Executor:
    """Belongs to the event loop that made it. ``on_commit`` is called in that loop with what each commit changed.

    ``clock`` stands in for the database's own time, in microseconds.
    """

    def __init__(
        self, database: Database, clock: Callable[[], int] | None, jitter: Callable[[], float], on_commit: Callable[[Changes], None]
    ) -> None:
        self._database = database
        self._clock = clock
        self._jitter = jitter
        self._on_commit = on_commit
        self._loop = asyncio.get_running_loop()
        self._backlog = Backlog()
        self.metrics = Metrics()
        self._closed = False
        self._closing: asyncio.Task[None]
        self._own = threading.local()
        self._readers = ThreadPoolExecutor(READERS, "leyden-store-reader")
        self._connections: list[Connection] = []
        self._writers = [
            threading.Thread(target=self._write_until_closed, name=f"leyden-store-writer-{n}", daemon=True)
            for n in range(1, database.writers + 1)
        ]
        for writer in self._writers:
            writer.start()

    async def write(self, operation: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Committed when it returns. A caller that is cancelled stops waiting; the operation goes on."""
        assert not kwargs
        return await self._put(operation, args, 0)

    async def write_bulk(self, size: int, operation: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same for ``size`` bytes of captured data, which never stand before the queue's own operations."""
        assert not kwargs
        return await self._put(operation, args, max(1, size))

    async def write_together(self, operation: Callable[[Transaction, Sequence[T]], None], items: Sequence[T], size: int) -> None:
        """``operation(tx, items)``, as bulk. All that waits for the same operation is given to it at once, which is far cheaper; where it
        fails for several calls of this, each is tried alone."""
        await self._put(operation, (items,), max(1, size), together=True)

    def waiting(self) -> Waiting:
        """The writes that wait now."""
        return self._backlog.waiting()

    def check_room(self) -> None:
        """Raises ``Busy`` once half of what may wait does: whoever would bring more work should ask before there is no room to end it."""
        self._backlog.check_room()

    def check_growth(self) -> None:
        """Raises ``Busy`` while the database cannot keep more: whoever ends work, or hands it out, need not ask."""
        if (reason := self._database.overgrown()) is not None:
            raise Busy(reason, "end that: see LeydenLogGrows in docs/operating.md", random.randint(1, 3))

    async def _put(self, operation: Callable[..., T], args: tuple[Any, ...], size: int, together: bool = False) -> T:
        if self._closed:
            raise Unavailable("the store is closed")
        future: asyncio.Future[T] = self._loop.create_future()
        self._backlog.put(Job(operation, args, size, future, together))
        return await future

    async def read(self, operation: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """One consistent snapshot, which holds every write that has returned."""
        assert not kwargs
        if self._closed:
            raise Unavailable("the store is closed")
        return await self._loop.run_in_executor(self._readers, self._read, operation, args)

    async def close(self) -> None:
        """Finish what is waiting, then let go of the database. Safe to call twice."""
        if not self._closed:
            self._closed = True
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._backlog.close()
        for writer in self._writers:
            await self._loop.run_in_executor(None, writer.join)
        await self._loop.run_in_executor(None, self._database.stop_reading)
        await self._loop.run_in_executor(None, self._readers.shutdown)
        for conn in self._connections:
            conn.close()
        self._database.close()

    # -- the reader threads --------------------------------------------------------------------------------------------

    def _read(self, operation: Callable[..., T], args: tuple[Any, ...]) -> T:
        if self._closed:  # it waited for a thread until now
            raise Unavailable("the store is closed")
        try:
            return self._until_settled(lambda: self._read_once(operation, args))
        except OperationalError as error:
            if self._database.took_too_long(error):
                if self._closed:
                    raise Unavailable("the store is closed") from error
                hint = "ask for less: a rollout, a trace, a shorter time, a smaller limit"
                raise Unavailable("the question takes too long", hint) from error
            raise self._unavailable("read", error) from error

    def _read_once(self, operation: Callable[..., T], args: tuple[Any, ...]) -> T:
        conn = self._connection(self._database.open_reader)
        try:
            with conn.begin():
                now = self._database.now(conn) if self._clock is None else self._clock()
                return operation(Transaction(conn, now, 0, self._database.secret), *args)
        except Exception as error:
            self._database.leave(conn)
            raise _plain(error) from error

    # -- the writer threads --------------------------------------------------------------------------------------------

    def _write_until_closed(self) -> None:
        try:
            self._connection(self._database.open_writer)
        except DBAPIError as error:  # it is away, or full: the first write tries again
            log.info("a writer has no connection yet: %s", self._database.describe(error))
        while batch := self._backlog.take(self._database.max_batch):
            began = time.perf_counter()
            outcomes, changes = self._commit(batch)
            self._loop.call_soon_threadsafe(self._deliver, batch, outcomes, changes, time.perf_counter() - began)
            conn: Connection | None = getattr(self._own, "conn", None)
            if conn is not None:
                self._database.tend(conn)

    def _commit(self, batch: list[Job]) -> tuple[list[_Outcome], Changes]:
        """Never fails itself: whatever happens is the outcome of each of the batch."""
        try:
            return self._until_settled(lambda: self._commit_once(batch))
        except Exception as error:
            # The whole transaction is gone (disk full, I/O error, a failed COMMIT): nothing in it may be acknowledged.
            log.exception("a commit of %d operations failed", len(batch))
            failure = self._unavailable("write", error)
            failed = Changes()
            failed.count("commits", "failed")
            return [_Outcome(error=failure) for _ in batch], failed

    def _commit_once(self, batch: list[Job]) -> tuple[list[_Outcome], Changes]:
        conn = self._connection(self._database.open_writer)
        changes = Changes()
        outcomes: list[_Outcome] = []
        start: Start | None = None
        try:
            with conn.begin() as transaction:
                start = self._start(conn)
                alone = len(batch) == 1  # then the transaction does what its savepoint would
                outcomes = self._run_all(conn, start, batch, changes, alone)
                if alone and outcomes[0].error is not None:
                    transaction.rollback()
                for job in batch:
                    failpoint(f"{job.name}:before-commit")
        except Exception as error:
            self._database.leave(conn)
            # Nothing but the COMMIT is left when every operation has its outcome: then its answer may be all that was lost.
            if len(outcomes) < len(batch) or start is None or not self._was_committed(conn, start, error):
                raise
        for job in batch:
            failpoint(f"{job.name}:after-commit")
        refused = alone and outcomes[0].error is not None
        changes.count("commits", "refused" if refused else "committed")
        return outcomes, changes

    def _was_committed(self, conn: Connection, start: Start, error: Exception) -> bool:
        if not self._database.is_passing(error):
            return False
        return self._until_settled(lambda: self._database.has_committed(conn, start))

    def _start(self, conn: Connection) -> Start:
        start = self._database.start(conn)
        return start if self._clock is None else replace(start, now=self._clock())

    def _run_all(self, conn: Connection, start: Start, batch: list[Job], changes: Changes, alone: bool) -> list[_Outcome]:
        """One outcome for each of the batch."""
        if len(same := [job for job in batch if job.together and job.operation is batch[-1].operation]) < 2:
            return [self._run(conn, start, job, changes, alone) for job in batch]
        joined = replace(batch[-1], args=([item for job in same for item in job.args[0]],))
        outcome = self._run(conn, start, joined, changes, False)
        if outcome.error is not None:
            return [self._run(conn, start, job, changes, False) for job in batch]
        done = {id(job) for job in same}
        return [outcome if id(job) in done else self._run(conn, start, job, changes, False) for job in batch]

    def _run(self, conn: Connection, start: Start, job: Job, changes: Changes, alone: bool) -> _Outcome:
        tx = Transaction(conn, start.now, start.revision, self._database.secret, self._jitter)
        savepoint = None if alone else conn.begin_nested()
        try:
            result = job.operation(tx, *job.args)
        except Exception as error:
            if self._database.is_passing(error):
                raise
            if savepoint is not None:
                savepoint.rollback()  # raises where the database has ended the transaction itself, which then fails the batch
            elif isinstance(error, OperationalError):
                raise  # the disk, the connection, the server
            plain = _plain(error)
            if not isinstance(plain, LeydenError):
                log.exception("operation %s failed", job.name)
            return _Outcome(error=plain)
        if savepoint is not None:
            savepoint.commit()
        changes.add(tx.changes)
        return _Outcome(result)

    # -- all threads ---------------------------------------------------------------------------------------------------

    def _connection(self, connect: Callable[[], Connection]) -> Connection:
        """This thread's own, for good. Made where a failure is tried again: the database may be away, or full, just now."""
        conn: Connection | None = getattr(self._own, "conn", None)
        if conn is None:
            conn = self._own.conn = connect()
            self._connections.append(conn)
        return conn

    def _unavailable(self, what: str, error: Exception) -> Unavailable:
        message = f"the store could not {what}: {self._database.describe(error)}"
        return Unavailable(message, f"look after the database: {self._database.label}")

    def _until_settled(self, attempt: Callable[[], T]) -> T:
        """``attempt``, again and again while it fails for passing reasons; once while the store closes."""
        deadline = time.monotonic() + PATIENCE
        pause = 0.005
        while True:
            try:
                return attempt()
            except Exception as error:
                if not self._database.is_passing(error) or time.monotonic() > deadline or self._closed:
                    raise
                log.info("once more: %s", self._database.describe(error))
            time.sleep(pause * random.random())
            pause = min(pause * 2, MAX_PAUSE)

    # -- back in the loop ----------------------------------------------------------------------------------------------

    def _deliver(self, batch: list[Job], outcomes: list[_Outcome], changes: Changes, seconds: float) -> None:
        size = 0
        for job, outcome in zip(batch, outcomes, strict=True):
            if outcome.error is None:
                size += job.size
            if job.future.done():  # its caller was cancelled
                continue
            if outcome.error is not None:
                job.future.set_exception(outcome.error)
            else:
                job.future.set_result(outcome.result)
        self.metrics.committed(len(batch), size, seconds, changes.done)
        self._on_commit(changes)


def _plain(error: Exception) -> Exception:
    """A number that the database cannot hold is the caller's mistake, whichever way its driver says so."""
    if isinstance(error, OverflowError):
        return InvalidRequest(f"a number is beyond 64 bits: {error}")
    if isinstance(error, DataError):
        return InvalidRequest(f"a value is out of range: {error.orig}")
    return error
