"""Rollouts by run, iteration, mode and state, kept in the transaction of the write they count. Nothing ever scans to count."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from sqlalchemy import Row, func, select
from sqlalchemy.dialects import postgresql, sqlite

from leyden.server.schema import counters
from leyden.server.transaction import Transaction
from leyden.types import Counts, Mode, RolloutState


_KEY = [column.name for column in counters.primary_key]


def _upsert(insert: Any) -> Any:
    new = insert(counters)
    return new.on_conflict_do_update(index_elements=_KEY, set_={"n": counters.c.n + new.excluded.n})


_ADD = {"sqlite": _upsert(sqlite.insert), "postgresql": _upsert(postgresql.insert)}
NONE = ""  # as failure: of a rollout that is not final, or succeeded


class Bucket(NamedTuple):
    run_id: str
    iteration: int
    mode: str
    queue: str

    @classmethod
    def of(cls, row: Row[Any]) -> Bucket:
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
    if changes:
        tx.conn.execute(_ADD[tx.dialect], changes)


def count(tx: Transaction, run_id: str, iteration: int | None, mode: Mode | None) -> Counts:
    query = select(counters.c.state, func.sum(counters.c.n)).where(counters.c.run_id == run_id).group_by(counters.c.state)
    if iteration is not None:
        query = query.where(counters.c.iteration == iteration)
    if mode is not None:
        query = query.where(counters.c.mode == mode.value)
    return Counts(**{state: int(n) for state, n in tx.conn.execute(query)})
