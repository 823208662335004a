"""Runs operations: writes in one thread with group commit, reads in a few threads of their own.

An answer goes out only after the COMMIT that made it true. The writer takes what is waiting, up to ``MAX_BATCH`` operations, into one
transaction with a savepoint each: an operation that fails undoes itself alone, a commit that fails fails them all.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from leyden.errors import Busy, InvalidRequest, LeydenError, Unavailable
from leyden.server.clock import StoreClock
from leyden.server.sqlite import SQLiteFile
from leyden.server.transaction import Changes, Transaction

P = ParamSpec("P")
T = TypeVar("T")

MAX_BATCH = 512  # operations in one commit
MAX_PENDING = 8192  # operations that may wait; beyond it callers get Busy
READERS = 4

log = logging.getLogger(__name__)


@dataclass
class _Job:
    operation: Callable[..., Any]
    args: tuple[Any, ...]
    future: asyncio.Future[Any]


@dataclass
class _Outcome:
    result: Any = None
    error: Exception | None = None


class Executor:
    """Belongs to the event loop that made it. ``on_commit`` is called in that loop with what each commit changed."""

    def __init__(self, file: SQLiteFile, clock: StoreClock, jitter: Callable[[], float], on_commit: Callable[[Changes], None]) -> None:
        self._file = file
        self._clock = clock
        self._jitter = jitter
        self._on_commit = on_commit
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._closed = False
        self._reading = threading.local()
        self._readers = ThreadPoolExecutor(READERS, "leyden-store-reader")
        self._writer = threading.Thread(target=self._write_until_closed, name="leyden-store-writer", daemon=True)
        self._writer.start()

    async def write(self, operation: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Committed when it returns. A caller that is cancelled stops waiting; the operation goes on."""
        assert not kwargs
        if self._closed:
            raise Unavailable("the store is closed")
        if self._jobs.qsize() >= MAX_PENDING:
            raise Busy("the store is behind with its writes", "try again in a second")
        future: asyncio.Future[T] = self._loop.create_future()
        self._jobs.put(_Job(operation, args, future))
        return await future

    async def read(self, operation: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """One consistent snapshot, which holds every write that has returned."""
        assert not kwargs
        if self._closed:
            raise Unavailable("the store is closed")
        return await self._loop.run_in_executor(self._readers, self._read, operation, args)

    async def close(self) -> None:
        """Finish what is waiting, then let go of the file. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._jobs.put(None)
        await self._loop.run_in_executor(None, self._writer.join)
        await self._loop.run_in_executor(None, self._readers.shutdown)
        self._file.close()

    # -- the reader threads --------------------------------------------------------------------------------------------

    def _read(self, operation: Callable[..., T], args: tuple[Any, ...]) -> T:
        conn: Connection | None = getattr(self._reading, "conn", None)
        if conn is None:
            conn = self._reading.conn = self._file.open_reader().connect()
        try:
            with conn.begin():
                return operation(Transaction(conn, self._clock(), self._file.secret), *args)
        except OverflowError as error:
            raise _out_of_range(error) from error

    # -- the writer thread ---------------------------------------------------------------------------------------------

    def _write_until_closed(self) -> None:
        with self._file.writer.connect() as conn:
            while True:
                batch, more = self._next_batch()
                if batch:
                    changes = Changes()
                    outcomes = self._commit(conn, batch, changes)
                    self._loop.call_soon_threadsafe(self._deliver, batch, outcomes, changes)
                if not more:
                    return

    def _next_batch(self) -> tuple[list[_Job], bool]:
        """Waits for one job, then takes what else is there. Also says whether there is more to come."""
        batch: list[_Job] = []
        job = self._jobs.get()
        while job is not None:
            batch.append(job)
            if len(batch) == MAX_BATCH:
                return batch, True
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return batch, True
        return batch, False

    def _commit(self, conn: Connection, batch: list[_Job], changes: Changes) -> list[_Outcome]:
        try:
            with conn.begin():
                outcomes = [self._run(conn, job, changes) for job in batch]
            return outcomes
        except Exception as error:
            # The whole transaction is gone (disk full, I/O error, a failed COMMIT): nothing in it may be acknowledged.
            log.exception("a commit of %d operations failed", len(batch))
            _leave_transaction(conn)
            changes.work, changes.finished = False, set()
            cause = error.orig if isinstance(error, DBAPIError) else error
            failure = Unavailable(f"the store could not write: {cause}", f"check the disk of {self._file.path}")
            return [_Outcome(error=failure) for _ in batch]

    def _run(self, conn: Connection, job: _Job, changes: Changes) -> _Outcome:
        tx = Transaction(conn, self._clock(), self._file.secret, self._jitter)
        savepoint = conn.begin_nested()
        try:
            result = job.operation(tx, *job.args)
        except Exception as error:
            savepoint.rollback()  # raises where SQLite has ended the transaction itself, which then fails the batch
            if isinstance(error, OverflowError):
                return _Outcome(error=_out_of_range(error))
            if not isinstance(error, LeydenError):
                log.exception("operation %s failed", job.operation.__name__)
            return _Outcome(error=error)
        savepoint.commit()
        changes.add(tx.changes)
        return _Outcome(result)

    # -- back in the loop ----------------------------------------------------------------------------------------------

    def _deliver(self, batch: list[_Job], outcomes: list[_Outcome], changes: Changes) -> None:
        for job, outcome in zip(batch, outcomes, strict=True):
            if job.future.done():  # its caller was cancelled
                continue
            if outcome.error is not None:
                job.future.set_exception(outcome.error)
            else:
                job.future.set_result(outcome.result)
        self._on_commit(changes)


def _leave_transaction(conn: Connection) -> None:
    """After a failed COMMIT the driver's connection may still be inside the transaction."""
    driver = conn.connection.dbapi_connection
    assert isinstance(driver, sqlite3.Connection)
    if driver.in_transaction:
        driver.rollback()


def _out_of_range(error: OverflowError) -> InvalidRequest:
    return InvalidRequest(f"a number is beyond 64 bits: {error}")
