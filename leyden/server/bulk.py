"""One statement for many rows, straight to the driver.

SQLAlchemy looks at every value of every row, which costs five times what SQLite then does with them (measured). What it would do for these
tables is little: texts are cleaned, which is done here for a whole column at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from sqlalchemy import Dialect, Executable

from leyden.server.codec import clean_text
from leyden.server.schema import SafeText
from leyden.server.transaction import Transaction


@dataclass(frozen=True)
class _Prepared:
    sql: str
    as_parameters: Callable[[Mapping[str, Any]], Any]
    texts: tuple[str, ...]  # names of the values that have to be cleaned


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
        return tx.conn.exec_driver_sql(prepared.sql, parameters, execution_options={"preserve_rowcount": True}).rowcount

    def _prepare(self, dialect: Dialect, names: tuple[str, ...]) -> _Prepared:
        statement: Any = self._statement[dialect.name] if isinstance(self._statement, Mapping) else self._statement
        compiled: Any = statement.compile(dialect=dialect, column_keys=list(names))
        assert set(compiled.params) == set(names), f"{set(compiled.params) ^ set(names)}"
        texts = tuple(name for name in names if isinstance(compiled.binds[name].type, SafeText))
        if compiled.positiontup is None:
            return _Prepared(str(compiled), dict, texts)
        order = tuple(compiled.positiontup)
        return _Prepared(str(compiled), itemgetter(*order) if len(order) > 1 else lambda row: (row[order[0]],), texts)


def _cleaned(rows: Sequence[Mapping[str, Any]], texts: Sequence[str]) -> Sequence[Mapping[str, Any]]:
    """As ``SafeText`` would have it."""
    joined = "".join([row[name] for name in texts for row in rows if row[name] is not None])
    if joined.isascii() and "\0" not in joined:
        return rows
    return [{**row, **{name: clean_text(row[name]) for name in texts if row[name] is not None}} for row in rows]
