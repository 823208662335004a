"""One query somebody thought of, over the views: read-only by construction, bounded in time and rows, beside a running store."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leyden.errors import EXTRAS, LeydenError, MissingExtra, Unavailable, UsageError
from leyden.server.databases import is_url, parameters, parse_url
from leyden.server.sqlguard import VIEWS_HINT, check_file_query, check_query

if TYPE_CHECKING:
    import psycopg

SECONDS = 30.0  # a query may take: a reader that stays on keeps a SQLite log from being folded in, and dead rows in PostgreSQL
BUSY_TIMEOUT_MS = 5000
MAX_VALUE = 64 << 20  # bytes of one value
_TABLE_FUNCTIONS = frozenset({"json_each", "json_tree"})
_FUNCTIONS = """
    avg count group_concat json_group_array json_group_object max min string_agg sum total
    cume_dist dense_rank first_value lag last_value lead nth_value ntile percent_rank rank row_number

    abs acos asin atan atan2 ceil ceiling cos degrees exp floor ln log log10 log2 mod pi pow power radians random round sign sin sqrt tan
    trunc

    char concat concat_ws format glob hex instr length like lower ltrim octet_length printf quote replace rtrim substr substring trim
    unhex unicode upper

    coalesce ifnull iif nullif typeof

    -> ->> json json_array json_array_length json_each json_extract json_object json_patch json_pretty json_quote json_tree json_type
    json_valid

    current_date current_time current_timestamp date datetime julianday strftime time timediff unixepoch
"""
_CALLABLE = frozenset(_FUNCTIONS.split())
_CHECK_EVERY = 10_000  # steps of SQLite's machine


@dataclass(frozen=True)
class Answer:
    """``more``: rows were left out."""

    columns: list[str]
    rows: list[tuple[Any, ...]]
    more: bool


def ask(database: str, statement: str, limit: int, seconds: float = SECONDS) -> Answer:
    """Run ``statement`` in ``database``: the path of a SQLite file, or ``postgresql://…``.

    Raises ``UsageError`` for what is no query, reads anything but the views, or takes longer than ``seconds``; ``Unavailable`` for a
    database that cannot be reached.
    """
    if is_url(database):
        return _ask_postgres(database, statement, limit, seconds)
    return _ask_file(Path(database), statement, limit, seconds)


# -- SQLite ------------------------------------------------------------------------------------------------------------


def open_file(path: Path) -> sqlite3.Connection:
    """A connection that cannot write, whatever it is told. Raises ``UsageError`` for a file that is not a store's."""
    if not path.is_file():
        raise UsageError(f"there is no file {path}", "name the store's database: --database FILE")
    conn = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
    try:
        conn.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}").close()
        made_by_us = conn.execute("SELECT count(*) FROM sqlite_schema WHERE name IN ('meta', 'rollouts', 'leases')").fetchone() == (3,)
    except sqlite3.DatabaseError as error:
        conn.close()
        raise UsageError(f"{path} cannot be read: {error}", "name the store's database: --database FILE") from error
    if not made_by_us:
        conn.close()
        raise UsageError(f"{path} is not a store's database", "name the store's database: --database FILE")
    return conn


@dataclass
class _Authorizer:
    """Lets a statement read what the views read, through a view, and call functions that compute.

    SQLite tells the innermost view a read is for, but by name, and of what is only counted not even that: ``check_file_query`` sees to
    these. Only the very columns that the views show are readable at all.
    """

    views: frozenset[str]
    tables: frozenset[str]
    readable: set[tuple[str, str]] = field(default_factory=set)
    learning: bool = True
    refused: str | None = None

    def __call__(self, action: int, first: str | None, second: str | None, database: str | None, inner: str | None) -> int:
        if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE):
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_FUNCTION and second is not None:
            if second.lower() in _CALLABLE:
                return sqlite3.SQLITE_OK
            self.refused = self.refused or f"the function {second} is not let through"
        if action == sqlite3.SQLITE_READ and first is not None:
            if self.learning:
                self.readable.add((first, second or ""))
            if self._may_read(first, second or "", inner):
                return sqlite3.SQLITE_OK
            self.refused = self.refused or f"{first} is not one of the views"
        return sqlite3.SQLITE_DENY

    def _may_read(self, table: str, column: str, inner: str | None) -> bool:
        if table in self.views or table in _TABLE_FUNCTIONS:
            return True
        if not column:  # only counted: a view then looks like its table, and a WITH of the query's own like a table of that name
            return (table, "") in self.readable or not (table in self.tables or table.startswith(("sqlite_", "pragma_")))
        return (table, column) in self.readable and inner in self.views


def _ask_file(path: Path, statement: str, limit: int, seconds: float) -> Answer:
    check_file_query(statement)
    with closing(open_file(path)) as conn:
        conn.execute("PRAGMA query_only = ON").close()
        conn.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE)
        conn.execute("SELECT 1 FROM json_each('[]'), json_tree('[]')").close()  # made known before nothing can be made any more
        views, tables = (
            frozenset(name for (name,) in conn.execute("SELECT name FROM sqlite_schema WHERE type = ?", (kind,)))
            for kind in ("view", "table")
        )
        if not views:
            raise UsageError(
                f"{path} was written by an older Leyden and has no views", f"start a store on it once: store --database {path}"
            )
        authorizer = _Authorizer(views, tables)
        conn.set_authorizer(authorizer)
        for view in sorted(views):
            conn.execute(f"EXPLAIN SELECT * FROM {view}").close()
            conn.execute(f"EXPLAIN SELECT count(*) FROM {view}").close()
        authorizer.learning = False
        deadline = time.monotonic() + seconds
        conn.set_progress_handler(lambda: time.monotonic() > deadline, _CHECK_EVERY)
        try:
            with closing(conn.execute(statement)) as cursor:
                rows = cursor.fetchmany(limit + 1)
                columns = [name for name, *_ in cursor.description or ()]
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise _sqlite_error(error, authorizer, seconds) from error
    if not columns:
        raise UsageError("only a query is run here: SELECT …, WITH … or VALUES …", VIEWS_HINT)
    return Answer(columns, rows[:limit], len(rows) > limit)


def _sqlite_error(error: sqlite3.Error | sqlite3.Warning, authorizer: _Authorizer, seconds: float) -> LeydenError:
    said = str(error)
    if said == "interrupted":
        return _too_long(seconds)
    if said.startswith(("not authorized", "cannot modify")) or said.endswith("prohibited"):
        return UsageError(authorizer.refused or "only a query is run here: SELECT …, WITH … or VALUES …", VIEWS_HINT)
    return UsageError(said, VIEWS_HINT)


# -- PostgreSQL --------------------------------------------------------------------------------------------------------


def _ask_postgres(url: str, statement: str, limit: int, seconds: float) -> Answer:
    query = check_query(statement)
    conn = connect(url)

    import psycopg
    from psycopg.types.string import TextLoader

    for name in ("date", "timestamp", "timestamptz", "interval"):  # there are more of them than Python has: infinity, years of 5 digits
        conn.adapters.register_loader(name, TextLoader)
    try:
        with closing(conn), conn.cursor() as cursor:
            conn.read_only = True
            cursor.execute(f"SET LOCAL statement_timeout = {max(1, round(seconds * 1000))}")
            cursor.execute("SET LOCAL standard_conforming_strings = on")
            # Prepared, so that the server itself takes no second statement; and a cursor takes nothing but a query.
            cursor.execute(f"DECLARE leyden_sql NO SCROLL CURSOR FOR {query}".encode(), prepare=True)
            cursor.execute(f"FETCH FORWARD {limit + 1} FROM leyden_sql")
            rows = [tuple(map(_number, row)) for row in cursor.fetchall()]
            columns = [column.name for column in cursor.description or ()]
    except psycopg.errors.QueryCanceled as error:
        raise _too_long(seconds) from error
    except psycopg.Error as error:
        raise UsageError(_one_line(error), VIEWS_HINT) from error
    return Answer(columns, rows[:limit], len(rows) > limit)


def connect(url: str) -> psycopg.Connection:
    """Raises ``UsageError`` for what is no URL of PostgreSQL, ``Unavailable`` if it does not answer."""
    place = parameters(parse_url(url))
    try:
        import psycopg
    except ModuleNotFoundError as error:
        raise MissingExtra("psycopg", EXTRAS["psycopg"]) from error
    settings = {"connect_timeout": "10", "application_name": "leyden", **place, "client_encoding": "utf8"}
    try:
        return psycopg.connect(**settings)  # type: ignore[arg-type]
    except psycopg.ProgrammingError as error:
        raise UsageError(f"the URL of the database is not understood: {_one_line(error)}", "leave out what follows the ?") from error
    except psycopg.Error as error:
        raise Unavailable(f"the database cannot be reached: {_one_line(error)}", "see that PostgreSQL runs and the URL is right") from error


def _number(value: Any) -> Any:
    """Sums and means come as decimals there, where SQLite has whole numbers and floats."""
    if not isinstance(value, Decimal) or not value.is_finite():
        return value
    return int(value) if value.as_tuple().exponent == 0 else float(value)


def _one_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _too_long(seconds: float) -> UsageError:
    return UsageError(f"the query took longer than {seconds:g} s", "narrow it: WHERE created_at > …, a run_id, a LIMIT")
