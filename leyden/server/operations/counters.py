"""Rollouts by run, iteration, mode and state, kept in the transaction of the write they count. Nothing ever scans to count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from sqlalchemy import Row, bindparam, func, insert, select, update

from leyden.server.schema import counters
from leyden.server.transaction import Transaction
from leyden.types import Counts, Mode, RolloutState


class Bucket(NamedTuple):
    run_id: str
    iteration: int
    mode: str

    @classmethod
    def of(cls, row: Row[Any]) -> Bucket:
        return cls.named(row.run_id, row.iteration, row.mode)

    @classmethod
    def named(cls, run_id: str | None, iteration: int | None, mode: str) -> Bucket:
        return cls(run_id or "", -1 if iteration is None else iteration, mode)


_EXISTS = select(counters.c.n).where(
    counters.c.run_id == bindparam("run_id"),
    counters.c.iteration == bindparam("iteration"),
    counters.c.mode == bindparam("mode"),
    counters.c.state == RolloutState.QUEUED.value,
)
_ADD = (
    update(counters)
    .where(
        counters.c.run_id == bindparam("b_run_id"),
        counters.c.iteration == bindparam("b_iteration"),
        counters.c.mode == bindparam("b_mode"),
        counters.c.state == bindparam("b_state"),
    )
    .values(n=counters.c.n + bindparam("delta"))
)


def open_buckets(tx: Transaction, buckets: Iterable[Bucket]) -> None:
    """Make the rows of ``buckets``, so that every later change is a plain update."""
    for bucket in buckets:
        if tx.conn.execute(_EXISTS, bucket._asdict()).first() is None:
            tx.conn.execute(insert(counters), [{**bucket._asdict(), "state": state.value, "n": 0} for state in RolloutState])


def shift(tx: Transaction, deltas: Counter[tuple[Bucket, RolloutState]]) -> None:
    changes = [
        {"b_run_id": bucket.run_id, "b_iteration": bucket.iteration, "b_mode": bucket.mode, "b_state": state.value, "delta": delta}
        for (bucket, state), delta in sorted(deltas.items())
        if delta
    ]
    if changes:
        tx.conn.execute(_ADD, changes)


def count(tx: Transaction, run_id: str, iteration: int | None, mode: Mode | None) -> Counts:
    query = select(counters.c.state, func.sum(counters.c.n)).where(counters.c.run_id == run_id).group_by(counters.c.state)
    if iteration is not None:
        query = query.where(counters.c.iteration == iteration)
    if mode is not None:
        query = query.where(counters.c.mode == mode.value)
    return Counts(**{state: int(n) for state, n in tx.conn.execute(query)})
