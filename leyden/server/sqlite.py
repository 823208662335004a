"""One SQLite file: who may open it, how its connections behave.

There is exactly one connection that writes, and it is also the only one that checkpoints: versions of SQLite before 3.51.3 can lose
committed pages when two connections write or checkpoint at the wrong moment (sqlite.org/wal.html, "The WAL-reset bug").
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import sqlite3
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool

from leyden.errors import Unavailable, UsageError
from leyden.server import migrations, schema
from leyden.server.clock import SteadyClock
from leyden.server.database import READ_SECONDS, Sizes, Start

log = logging.getLogger(__name__)

BUSY_TIMEOUT_MS = 10_000
_CHECK_EVERY = 10_000  # steps of SQLite's machine
WAL_LIMIT_BYTES = 64 << 20  # the log is cut back to this after a checkpoint
WAL_FOLD_BYTES = 128 << 20  # from here on the writer waits a moment for readers, and folds it back whole
WAL_FOLD_EVERY = 10.0  # seconds
WAL_FOLD_WAIT_MS = 100
WAL_MOST_BYTES = 4 << 30  # from here on nothing is taken that would have to be kept: only what ends or hands out work


class SQLiteFile:
    """An open database file, held by this process alone until ``close``.

    Raises ``UsageError`` if another process holds it, a newer Leyden wrote it, it is not ours, or it cannot be created or written.
    """

    writers = 1
    max_batch = 512
    shared = False

    def __init__(self, path: Path) -> None:
        path = path.resolve()  # one file has one lock, whatever the links to it
        self.path = path
        self.label = str(path)
        self._revision = 0
        self._writer: Engine | None = None
        self._lock = _take_lock(path)
        self._readers: list[sqlite3.Connection] = []
        self._readers_lock = threading.Lock()
        self._reading_stopped = False
        self._fold_at = 0.0  # when the log may be folded back next
        self._logged = 0  # bytes of the log when it was measured last: only this process makes it grow
        _make(path)
        try:
            self._writer = self._connect_writer()
            self.secret = self._prepare(self._writer)
        except BaseException as error:
            self.close()
            if not isinstance(error, sqlite3.DatabaseError | DBAPIError):
                raise
            cause = error.orig if isinstance(error, DBAPIError) else error
            raise UsageError(f"{path} is not a database Leyden can open: {cause}", "choose another file with --database") from error

    def _connect_writer(self) -> Engine:
        conn = _connect(self.path.absolute().as_uri())
        conn.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}").close()
        if conn.execute("PRAGMA user_version").fetchone() == (0,) and conn.execute("SELECT count(*) FROM sqlite_schema").fetchone() != (0,):
            conn.close()  # before anything is set that would stay
            raise UsageError(f"{self.path} is a database, but not one of Leyden's", "choose another file with --database")
        for pragma in (
            "journal_mode = WAL",
            "synchronous = FULL",
            "foreign_keys = ON",
            "cache_size = -32768",
            "wal_autocheckpoint = 1000",
            f"journal_size_limit = {WAL_LIMIT_BYTES}",
        ):
            conn.execute(f"PRAGMA {pragma}").close()
        # One connection for good; its owner is the writer thread, after this thread has prepared the schema.
        return _engine(conn, begin="BEGIN IMMEDIATE")

    def _prepare(self, writer: Engine) -> bytes:
        """Create or check the schema; returns the secret of this database."""
        with writer.connect() as conn, conn.begin():
            version = conn.exec_driver_sql("PRAGMA user_version").scalar_one()
            secret = migrations.bring_up(conn, version, self.label)
            conn.exec_driver_sql(f"PRAGMA user_version = {schema.SCHEMA_VERSION}")
            self._revision = conn.execute(select(func.coalesce(func.max(schema.rollouts.c.revision), 0))).scalar_one()
            seen = conn.execute(select(func.coalesce(func.max(schema.workers.c.last_seen_at), 0))).scalar_one()
            self._clock = SteadyClock(floor=max(self._revision, seen))  # revisions are times here
            return secret

    def open_writer(self) -> Connection:
        assert self._writer is not None
        return self._writer.connect()

    def start(self, conn: Connection) -> Start:
        now = self._clock()
        self._revision = max(self._revision + 1, now)
        return Start(now, self._revision)

    def now(self, conn: Connection) -> int:
        return self._clock()

    def is_passing(self, error: Exception) -> bool:
        return False  # nobody else writes: whatever it is, it stays

    def has_committed(self, conn: Connection, start: Start) -> bool:
        return False

    def leave(self, conn: Connection) -> None:
        driver = conn.connection.dbapi_connection
        assert isinstance(driver, sqlite3.Connection)
        if driver.in_transaction:
            driver.rollback()

    def describe(self, error: Exception) -> str:
        return str(error.orig if isinstance(error, DBAPIError) else error)

    def open_reader(self) -> Connection:
        """It can neither write nor checkpoint."""
        conn = _connect(self.path.absolute().as_uri() + "?mode=ro")
        for pragma in (f"busy_timeout = {BUSY_TIMEOUT_MS}", "wal_autocheckpoint = 0", "query_only = ON", "cache_size = -2048"):
            conn.execute(f"PRAGMA {pragma}").close()
        with self._readers_lock:
            self._readers.append(conn)
        engine = _engine(conn, begin="BEGIN")
        deadline = 0.0

        def start(*_: Any) -> None:
            nonlocal deadline
            deadline = time.monotonic() + READ_SECONDS

        event.listen(engine, "before_cursor_execute", start)
        conn.set_progress_handler(lambda: self._reading_stopped or time.monotonic() > deadline, _CHECK_EVERY)
        return engine.connect()

    def took_too_long(self, error: Exception) -> bool:
        cause = error.orig if isinstance(error, DBAPIError) else error
        return isinstance(cause, sqlite3.Error) and getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT

    def stop_reading(self) -> None:
        self._reading_stopped = True

    def tend(self, conn: Connection) -> None:
        """A checkpoint that waits for nobody starts the log anew only at a moment at which nobody reads: with many short reads that may
        never come (sqlite.org/wal.html, "Avoiding Excessively Large WAL Files")."""
        if self._measure_log() < WAL_FOLD_BYTES or time.monotonic() < self._fold_at:
            return
        self._fold_at = time.monotonic() + WAL_FOLD_EVERY
        driver = conn.connection.dbapi_connection
        assert isinstance(driver, sqlite3.Connection)
        driver.execute(f"PRAGMA busy_timeout = {WAL_FOLD_WAIT_MS}").close()
        try:
            busy, pages, folded = driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if busy:
                log.info("somebody reads an old snapshot: %d of %d pages of the log are folded back", folded, pages)
        except sqlite3.OperationalError as error:  # the disk: the next commit says so to those whom it concerns
            log.info("the log could not be folded back: %s", error)
        finally:
            driver.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}").close()
            self._measure_log()

    def overgrown(self) -> str | None:
        if self._logged < WAL_MOST_BYTES or self._measure_log() < WAL_MOST_BYTES:
            return None
        grown = f"the database's write-ahead log has {self._logged >> 20} MiB"
        return f"{grown}, since another process has been reading one snapshot of it for long"

    def _measure_log(self) -> int:
        self._logged = self._log_bytes()
        return self._logged

    def _log_bytes(self) -> int:
        try:
            return os.stat(f"{self.path}-wal").st_size
        except FileNotFoundError:
            return 0

    def sizes(self) -> Sizes:
        return Sizes(self.path.stat().st_size, self._log_bytes(), shutil.disk_usage(self.path.parent).free)

    def close(self) -> None:
        """Call when no thread uses the file any more. The last connection to close folds the log into the file."""
        for reader in self._readers:
            reader.close()
        if self._writer is not None:
            self._writer.dispose()
        os.close(self._lock)


def _make(path: Path) -> None:
    """For its owner alone: what agents said is nobody else's. SQLite gives its log and its index the mode of the file."""
    with suppress(OSError):  # it is there, or cannot be: SQLite says which
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _connect(uri: str) -> sqlite3.Connection:
    # isolation_level=None: the driver begins nothing by itself; every BEGIN is one we send.
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, cached_statements=256)


def _engine(conn: sqlite3.Connection, begin: str) -> Engine:
    # What agents said has no place in a log.
    engine = create_engine("sqlite://", creator=lambda: conn, poolclass=StaticPool, hide_parameters=True)

    def send_begin(connection: Any) -> None:
        connection.exec_driver_sql(begin)

    event.listen(engine, "begin", send_begin)
    return engine


def _take_lock(path: Path) -> int:
    """The side file's lock: two processes on one file would each wake only their own waiters, and both would checkpoint."""
    try:
        fd = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UsageError(f"cannot open {path}: {error.strerror}", "choose a writable place with --database") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
        os.close(fd)
        raise UsageError(
            f"{path} is already open in process {holder}", "use that store by its URL, or choose another --database"
        ) from error
    except OSError as error:
        os.close(fd)
        raise Unavailable(f"cannot lock {path}: {error.strerror}", "keep the database on a local disk") from error
    os.ftruncate(fd, 0)
    os.pwrite(fd, str(os.getpid()).encode(), 0)
    return fd
