"""Counts of what was sent and not stored."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite

from leyden.server import records
from leyden.server.rejected import Rejected
from leyden.server.schema import rejections
from leyden.server.transaction import Transaction
from leyden.types import Rejection


def _upsert(insert: Any) -> Any:
    new = insert(rejections)
    now = {"n": rejections.c.n + new.excluded.n, "example": new.excluded.example, "last_at": new.excluded.last_at}
    return new.on_conflict_do_update(index_elements=["source", "reason"], set_=now)


_ADD = {"sqlite": _upsert(sqlite.insert), "postgresql": _upsert(postgresql.insert)}


def count_rejections(tx: Transaction, source: str, rejected: Rejected) -> None:
    """Always the last rows a transaction locks, and in order."""
    rows = [
        {"source": source, "reason": reason, "n": n, "example": example, "last_at": tx.now}
        for reason, (n, example) in sorted(rejected.reasons.items())
    ]
    if rows:
        tx.conn.execute(_ADD[tx.dialect], rows)


def list_rejections(tx: Transaction) -> list[Rejection]:
    """The latest first."""
    query = select(rejections).order_by(rejections.c.last_at.desc(), rejections.c.source, rejections.c.reason)
    return [records.rejection(row) for row in tx.conn.execute(query)]
