"""One PostgreSQL database, shared by any number of stores.

Writers run at READ COMMITTED, one operation a transaction, and lock what they change (``operations.transitions.rows_by_id``); PostgreSQL
itself lets commits that come together share a flush. The time is the database's own, so that no store's clock can steal a lease.
"""

from __future__ import annotations

import zlib
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo
from sqlalchemy import Connection, Engine, create_engine, event, func, insert, inspect, select, text, update
from sqlalchemy.engine.interfaces import IsolationLevel
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from leyden.errors import Unavailable, UsageError
from leyden.server import migrations, schema
from leyden.server.database import READ_SECONDS, Start
from leyden.server.databases import parameters, parse_url, shown

CONNECT_SECONDS = 10
# A store that hangs must not hold others up for long: it loses its locks with its connection.
SETTINGS = {
    "statement_timeout": "60s",
    "lock_timeout": "5s",
    "idle_in_transaction_session_timeout": "10s",
    "client_min_messages": "warning",
}
OLDEST = 14  # major version; tested with 18

# Another transaction may do better: deadlock, serialization, a lock not had in time, a value somebody else inserted or deleted at this
# very moment, a transaction in which we slept too long, a server that ends, starts, follows (read-only after a failover) or is full.
_PASSING = {"40001", "40P01", "55P03", "23505", "23503", "25P03", "57P01", "57P02", "57P03", "57P05", "25006", "53300"}

_NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_START = text(f"SELECT {_NOW}, pg_current_xact_id()::text::bigint, redo_lsn::text FROM pg_control_checkpoint()")
_TIME = text(f"SELECT {_NOW}")
# A server that crashed gives the transaction ids that had not reached its log to others, and what it then says of ours is about theirs.
# Every crash ends with a checkpoint: after any, nothing is known, and an operation that is run again finds itself done.
_OUTCOME = text(
    "SELECT CASE WHEN redo_lsn = CAST(:mark AS pg_lsn) THEN pg_xact_status(CAST(:xid AS text)::xid8) ELSE 'unknown' END "
    "FROM pg_control_checkpoint()"
)
_REVISION_BASE = schema.meta.c.key == "revision_base"
_VERSION = schema.meta.c.key == "schema_version"


class PostgresDatabase:
    """Raises ``Unavailable`` when the server does not answer, ``UsageError`` for a database that is not a store's or a newer Leyden's."""

    writers = 8
    max_batch = 1
    shared = True

    def __init__(self, url: str) -> None:
        self.url = parse_url(url).set(drivername="postgresql+psycopg")
        self.label = shown(url)
        self._engine = self._make_engine("READ COMMITTED", default_transaction_read_only="off")
        self._reading = self._make_engine(  # one snapshot for all of a question
            "REPEATABLE READ", default_transaction_read_only="on", statement_timeout=f"{READ_SECONDS:g}s"
        )
        self._readers: list[psycopg.Connection[Any]] = []
        event.listen(self._reading, "connect", self._note_reader)
        self._base = 0  # added to transaction ids, which begin anew in a database that was restored elsewhere
        self.schema_name = ""
        try:
            self.secret = self._prepare()
        except DBAPIError as error:
            raise Unavailable(
                f"{self.label} cannot be used: {self.describe(error)}", "see that PostgreSQL runs and the URL is right"
            ) from error

    @property
    def conninfo(self) -> str:
        """For libpq, password included."""
        return make_conninfo(**parameters(self.url))

    def open_writer(self) -> Connection:
        return self._engine.connect()

    def open_reader(self) -> Connection:
        return self._reading.connect()

    def start(self, conn: Connection) -> Start:
        now, xid, mark = conn.execute(_START).one()
        return Start(now, self._base + xid, mark)

    def now(self, conn: Connection) -> int:
        return int(conn.execute(_TIME).scalar_one())

    def is_passing(self, error: Exception) -> bool:
        if not isinstance(error, DBAPIError):
            return False
        state = getattr(error.orig, "sqlstate", None)
        lost = state is None and isinstance(error.orig, psycopg.OperationalError)
        return lost or error.connection_invalidated or (state is not None and (state in _PASSING or state.startswith("08")))

    def has_committed(self, conn: Connection, start: Start) -> bool:
        """Raises an error that passes while the server has not decided yet."""
        with conn.begin():
            status = conn.execute(_OUTCOME, {"xid": start.revision - self._base, "mark": start.mark}).scalar_one()
        if status == "in progress":
            raise DBAPIError("COMMIT", None, psycopg.OperationalError("the transaction is still in progress"))
        return bool(status == "committed")

    def leave(self, conn: Connection) -> None:
        pass  # SQLAlchemy has rolled back, or given the connection up and makes a new one

    def took_too_long(self, error: Exception) -> bool:
        return isinstance(error, DBAPIError) and isinstance(error.orig, psycopg.errors.QueryCanceled)

    def stop_reading(self) -> None:
        for reader in self._readers:
            with suppress(psycopg.Error):  # the server is away: then the read has failed already
                reader.cancel_safe(timeout=CONNECT_SECONDS)

    def _note_reader(self, reader: psycopg.Connection[Any], _: Any) -> None:
        self._readers = [*(known for known in self._readers if not known.closed), reader]

    def describe(self, error: Exception) -> str:
        cause = error.orig if isinstance(error, DBAPIError) else error
        return " ".join(str(cause).split())

    def tend(self, conn: Connection) -> None:
        """The server does that."""

    def overgrown(self) -> None:
        return None

    def sizes(self) -> None:
        return None

    def close(self) -> None:
        self._engine.dispose()
        self._reading.dispose()

    def _make_engine(self, isolation: IsolationLevel, **settings: str) -> Engine:
        given = self.url.query.get("options", "")
        options = [given if isinstance(given, str) else " ".join(given)]
        options += [f"-c {name}={value}" for name, value in (SETTINGS | settings).items()]
        return create_engine(
            self.url.difference_update_query(["options"]),
            poolclass=NullPool,  # a thread keeps its connection
            isolation_level=isolation,
            hide_parameters=True,  # what agents said has no place in a log
            connect_args={"options": " ".join(options).strip(), "connect_timeout": CONNECT_SECONDS, "application_name": "leyden-store"},
        )

    # -- the schema ----------------------------------------------------------------------------------------------------

    def _prepare(self) -> bytes:
        """Create the tables or bring them up to date, one store at a time; returns the secret of this database."""
        with self._engine.connect() as conn, conn.begin():
            version = int(conn.execute(text("SHOW server_version_num")).scalar_one()) // 10_000
            if version < OLDEST:
                raise UsageError(f"{self.label} runs PostgreSQL {version}", f"use version {OLDEST} or newer")
            conn.execute(text("SET LOCAL lock_timeout = 0"))  # another store may be at it: wait for it
            conn.execute(text("SET LOCAL statement_timeout = 0"))
            where = conn.execute(text("SELECT current_schema()")).scalar()
            if where is None:
                raise UsageError(f"the search_path of {self.label} names no schema that exists", "create the schema, or leave it out")
            self.schema_name = where
            conn.execute(select(func.pg_advisory_xact_lock(zlib.crc32(b"leyden"), zlib.crc32(where.encode()) - 2**31)))
            found = self._schema_version(conn, set(inspect(conn).get_table_names(schema=where)))
            secret = migrations.bring_up(conn, found, self.label)
            _put(conn, "schema_version", schema.SCHEMA_VERSION)
            self._base = self._revision_base(conn)
            return secret

    def _schema_version(self, conn: Connection, tables: set[str]) -> int:
        if schema.meta.name in tables:
            found = conn.execute(select(schema.meta.c.value).where(_VERSION)).scalar()
            if found is not None:
                return int(found)
        taken = sorted(tables & set(schema.metadata.tables))
        if taken:
            raise UsageError(f"{self.label} has a table {taken[0]} that is not Leyden's", "use a database or a schema of its own")
        return 0

    def _revision_base(self, conn: Connection) -> int:
        """What keeps revisions growing when the transaction ids began anew."""
        found = conn.execute(select(schema.meta.c.value).where(_REVISION_BASE)).scalar()
        base = int(found) if found is not None else 0
        latest = conn.execute(select(func.coalesce(func.max(schema.rollouts.c.revision), 0))).scalar_one()
        next_id = conn.execute(text("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")).scalar_one()
        if latest > base + next_id:
            base = latest - next_id + 1
        _put(conn, "revision_base", base)
        return base


def _put(conn: Connection, key: str, value: int) -> None:
    data: dict[str, Any] = {"value": str(value).encode()}
    if conn.execute(update(schema.meta).where(schema.meta.c.key == key).values(**data)).rowcount == 0:
        conn.execute(insert(schema.meta).values(key=key, **data))
