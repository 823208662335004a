"""One statement for many rows, straight to the driver.

SQLAlchemy looks at every value of every row, which costs five times what SQLite then does with them (measured). What it would do for these
tables is little: texts are cleaned, which is done here for a whole column at once. And Python's SQLite driver gives the interpreter's lock
away at each row; a busy event loop then keeps it, up to 5 ms. So many rows are inserted in one step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any

from sqlalchemy import Dialect, Executable

from leyden.server.codec import clean_text
from leyden.server.schema import SafeText
from leyden.server.transaction import Transaction

MOST = 64  # rows in one step: a power of two, as smaller numbers of them are made of, so that few statements have to be kept prepared
_VALUES = re.compile(r"VALUES (\([?, ]+\))(?=[^?]*$)")  # of an INSERT in SQLite's form whose parameters are all in there


@dataclass(frozen=True)
class _Prepared:
    sql: str
    as_parameters: Callable[[Mapping[str, Any]], Any]
    texts: tuple[str, ...]  # names of the values that have to be cleaned

    def inserting(self, n: int) -> str:
        """The same with ``n`` rows."""
        return _VALUES.sub(lambda found: f"VALUES {', '.join([found[1]] * n)}", self.sql)


class Bulk:
    """``statement``: an INSERT, UPDATE or DELETE, one for all dialects or one for each, all of whose parameters are given with the rows."""

    def __init__(self, statement: Executable | Mapping[str, Executable]) -> None:
        self._statement = statement
        self._prepared: dict[tuple[str, tuple[str, ...]], _Prepared] = {}

    def run(self, tx: Transaction, rows: Sequence[Mapping[str, Any]]) -> int:
        """With each of ``rows``, which all have the same names. Returns how many rows of the table it changed."""
        if not rows:
            return 0
        key = tx.dialect, tuple(rows[0])
        prepared = self._prepared.get(key)
        if prepared is None:
            prepared = self._prepared[key] = self._prepare(tx.conn.dialect, key[1])
        parameters = [prepared.as_parameters(row) for row in _cleaned(rows, prepared.texts)]
        options = {"preserve_rowcount": True}
        if not _VALUES.search(prepared.sql):
            return tx.conn.exec_driver_sql(prepared.sql, parameters, execution_options=options).rowcount
        return sum(
            tx.conn.exec_driver_sql(prepared.inserting(len(part)), tuple(chain.from_iterable(part)), execution_options=options).rowcount
            for part in _parts(parameters)
        )

    def _prepare(self, dialect: Dialect, names: tuple[str, ...]) -> _Prepared:
        statement: Any = self._statement[dialect.name] if isinstance(self._statement, Mapping) else self._statement
        compiled: Any = statement.compile(dialect=dialect, column_keys=list(names))
        assert set(compiled.params) == set(names), f"{set(compiled.params) ^ set(names)}"
        texts = tuple(name for name in names if isinstance(compiled.binds[name].type, SafeText))
        if compiled.positiontup is None:
            return _Prepared(str(compiled), dict, texts)
        order = tuple(compiled.positiontup)
        return _Prepared(str(compiled), itemgetter(*order) if len(order) > 1 else lambda row: (row[order[0]],), texts)


def _parts(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Each a power of two long, and no longer than ``MOST``."""
    start = 0
    while left := len(rows) - start:
        size = min(MOST, 1 << left.bit_length() - 1)
        yield rows[start : start + size]
        start += size


def _cleaned(rows: Sequence[Mapping[str, Any]], texts: Sequence[str]) -> Sequence[Mapping[str, Any]]:
    """As ``SafeText`` would have it."""
    joined = "".join([row[name] for name in texts for row in rows if row[name] is not None])
    if joined.isascii() and "\0" not in joined:
        return rows
    return [{**row, **{name: clean_text(row[name]) for name in texts if row[name] is not None}} for row in rows]
