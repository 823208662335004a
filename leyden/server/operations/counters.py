"""Rollouts by run, iteration, mode, queue, state and failure, kept in the transaction of the write they count: nothing scans to count."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

from sqlalchemy import Row, func, select
from sqlalchemy.dialects import postgresql, sqlite

from leyden.server.bulk import Bulk
from leyden.server.records import RolloutRow
from leyden.server.schema import counters
from leyden.server.transaction import Transaction
from leyden.types import Counts, FailureKind, Mode, RolloutState

_KEY = [column.name for column in counters.primary_key]


def _upsert(insert: Any) -> Any:
    new = insert(counters)
    return new.on_conflict_do_update(index_elements=_KEY, set_={"n": counters.c.n + new.excluded.n})


_ADD = Bulk({"sqlite": _upsert(sqlite.insert), "postgresql": _upsert(postgresql.insert)})
_SUM = select(counters.c.state, counters.c.failure, func.sum(counters.c.n).label("n")).group_by(counters.c.state, counters.c.failure)
NONE = ""  # as failure: of a rollout that is not final, or succeeded


class Bucket(NamedTuple):
    run_id: str
    iteration: int
    mode: str
    queue: str

    @classmethod
    def of(cls, row: Row[Any] | RolloutRow) -> Bucket:
        return cls.named(row.run_id, row.iteration, row.mode, row.queue)

    @classmethod
    def named(cls, run_id: str | None, iteration: int | None, mode: str, queue: str) -> Bucket:
        return cls(run_id or "", -1 if iteration is None else iteration, mode, queue)


def shift(tx: Transaction, deltas: Counter[tuple[Bucket, RolloutState, str]]) -> None:
    """Add to the counts of (bucket, state, failure). Always the last rows a transaction locks, and in order, so that no two wait for each
    other."""
    changes = [
        {**bucket._asdict(), "state": state.value, "failure": failure, "n": delta}
        for (bucket, state, failure), delta in sorted(deltas.items())
        if delta
    ]
    _ADD.run(tx, changes)


def count(tx: Transaction, run_id: str | None, iteration: int | None, mode: Mode | None, queue: str | None) -> Counts:
    """None: all of them."""
    query = _SUM
    for column, value in (
        (counters.c.run_id, run_id),
        (counters.c.iteration, iteration),
        (counters.c.mode, mode),
        (counters.c.queue, queue),
    ):
        if value is not None:
            query = query.where(column == value)
    return _counts((row.state, row.failure, int(row.n)) for row in tx.conn.execute(query))


def by_queue(tx: Transaction) -> dict[str, Counts]:
    found: defaultdict[str, list[tuple[str, str, int]]] = defaultdict(list)
    for row in tx.conn.execute(_SUM.add_columns(counters.c.queue).group_by(counters.c.queue)):
        found[row.queue].append((row.state, row.failure, int(row.n)))
    return {name: _counts(rows) for name, rows in found.items()}


def _counts(rows: Iterable[tuple[str, str, int]]) -> Counts:
    states: Counter[str] = Counter()
    failures: dict[FailureKind, int] = {}
    for state, failure, n in rows:
        states[state] += n
        if state == RolloutState.FAILED and n:
            failures[FailureKind(failure)] = n
    return Counts(**states, failures=failures)
