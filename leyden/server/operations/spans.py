"""Spans: stored once each, under the attempt they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, select
from sqlalchemy.dialects import postgresql, sqlite

from leyden.server import records
from leyden.server.operations.blobs import load_pieces, store_pieces
from leyden.server.operations.captured import is_late, late_by_attempt
from leyden.server.operations.rejections import count_rejections
from leyden.server.rejected import Rejected
from leyden.server.rows import Batch
from leyden.server.schema import spans
from leyden.server.transaction import Transaction
from leyden.types import LeaseRef, Span


def _insert(insert: Any) -> Any:
    new = insert(spans).on_conflict_do_nothing(index_elements=["trace_id", "span_id"])
    return new.execution_options(preserve_rowcount=True)


_INSERT = {"sqlite": _insert(sqlite.insert), "postgresql": _insert(postgresql.insert)}


def add_spans(tx: Transaction, ref: LeaseRef, batch: Batch) -> int:
    """How many of the holder's, or former holder's, spans are new."""
    late = is_late(tx, ref)
    own = {"rollout_id": ref.rollout_id, "attempt": ref.attempt, "late": late}
    return _add(tx, [{**row, **own} for row in batch.rows], batch)


def add_exported(tx: Transaction, batch: Batch, rejected: Rejected) -> Rejected:
    """Store spans that name their attempts themselves, or none, and count what could not be read. Returns what else is rejected."""
    late = late_by_attempt(tx, list({row["rollout_id"] for row in batch.rows if row["rollout_id"] is not None}))
    unknown = Rejected()
    rows = []
    for row in batch.rows:
        rollout_id, number = row["rollout_id"], row["attempt"]
        if rollout_id is None:
            rows.append({**row, "late": False})
        elif (rollout_id, number) in late:
            rows.append({**row, "late": late[rollout_id, number]})
        else:
            unknown.add("its attempt does not exist", f"rollout {rollout_id}, attempt {number}, span {row['trace_id']}-{row['span_id']}")
    _add(tx, rows, batch)
    count_rejections(tx, "otlp", Rejected().merge([rejected, unknown]))
    return unknown


def _add(tx: Transaction, rows: list[dict[str, Any]], batch: Batch) -> int:
    if not rows:
        return 0
    store_pieces(tx, spans, rows, batch.pieces)
    rows = [{**row, "received_at": tx.now} for row in rows]
    rows.sort(key=lambda row: (row["start_ns"], row["trace_id"], row["span_id"]))  # everybody in one order: see ``store_pieces``
    return tx.conn.execute(_INSERT[tx.dialect], rows).rowcount


def list_spans(tx: Transaction, rollout_id: str, attempt: int | None) -> list[Span]:
    query = select(spans).where(spans.c.rollout_id == rollout_id).order_by(spans.c.attempt, spans.c.start_ns, spans.c.seq)
    if attempt is not None:
        query = query.where(spans.c.attempt == attempt)
    return read_spans(tx, tx.conn.execute(query).all())


def read_spans(tx: Transaction, rows: Sequence[Row[Any]]) -> list[Span]:
    pieces = load_pieces(tx, spans, (row._mapping for row in rows))
    return [records.span(row, pieces) for row in rows]
