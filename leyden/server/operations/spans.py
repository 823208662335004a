"""Spans: stored once each, under the attempt they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, Select, select
from sqlalchemy.dialects import postgresql, sqlite

from leyden.errors import TooLarge
from leyden.server import records
from leyden.server.bulk import Bulk
from leyden.server.operations.blobs import has_pieces, load_pieces, size_of, store_pieces
from leyden.server.operations.captured import is_late, late_by_attempt
from leyden.server.operations.rejections import count_rejections
from leyden.server.rejected import Rejected
from leyden.server.rows import Batch
from leyden.server.schema import spans
from leyden.server.transaction import Transaction
from leyden.types import LeaseRef, Span


def _insert(insert: Any) -> Any:
    return insert(spans).on_conflict_do_nothing(index_elements=["trace_id", "span_id"])


_INSERT = {"sqlite": _insert(sqlite.insert), "postgresql": _insert(postgresql.insert)}
_INSERT_RETURNING = {dialect: new.returning(spans.c.trace_id, spans.c.span_id) for dialect, new in _INSERT.items()}
_INSERT_PLAIN = Bulk(_INSERT)
MAX_PAGE = 64 << 20  # bytes of the spans of one answer, as they are when their pieces are put together


def add_spans(tx: Transaction, ref: LeaseRef, batch: Batch) -> int:
    """How many of the holder's, or former holder's, spans are new."""
    late = is_late(tx, ref)
    own = {"rollout_id": ref.rollout_id, "attempt": ref.attempt, "late": late}
    return insert_spans(tx, [{**row, **own} for row in batch.rows], batch)


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
    insert_spans(tx, rows, batch)
    count_rejections(tx, "otlp", Rejected().merge([rejected, unknown]))
    return unknown


def insert_spans(tx: Transaction, rows: list[dict[str, Any]], batch: Batch) -> int:
    """The caller has looked at their attempts. Returns how many are new."""
    if not rows:
        return 0
    rows = [{**row, "received_at": tx.now} for row in rows]
    rows.sort(key=lambda row: (row["start_ns"], row["trace_id"], row["span_id"]))  # everybody in one order: see ``store_pieces``
    packed = [row for row in rows if has_pieces(spans, row)]
    plain = [row for row in rows if not has_pieces(spans, row)]
    new = (_insert_packed(tx, packed, batch) if packed else 0) + _INSERT_PLAIN.run(tx, plain)
    tx.changes.count("ingested", "spans", new)
    return new


def _insert_packed(tx: Transaction, rows: list[dict[str, Any]], batch: Batch) -> int:
    """A span that is there already uses no more pieces than it did: those of its repetition would be kept for nobody."""
    new = {(trace_id, span_id) for trace_id, span_id in tx.conn.execute(_INSERT_RETURNING[tx.dialect], rows)}
    first = {(row["trace_id"], row["span_id"]): row for row in reversed(rows)}  # of those that repeat themselves in one batch
    store_pieces(tx, spans, [first[ids] for ids in new], batch.pieces)
    return len(new)


def list_spans(tx: Transaction, rollout_id: str, attempt: int | None) -> list[Span]:
    """Raises ``TooLarge`` where one answer cannot hold them."""
    query = select(spans).where(spans.c.rollout_id == rollout_id).order_by(spans.c.attempt, spans.c.start_ns, spans.c.seq)
    if attempt is not None:
        query = query.where(spans.c.attempt == attempt)
    rows, more = _rows_of_a_page(tx, query)
    if more:
        raise TooLarge(f"the spans of {rollout_id} hold more than {MAX_PAGE >> 20} MiB", "read them page by page: POST /v1/spans/query")
    return _read(tx, rows)


def read_page(tx: Transaction, query: Select[Any]) -> list[Span]:
    """What ``query`` selects, as far as one answer can hold it: at least one."""
    rows, _ = _rows_of_a_page(tx, query)
    return _read(tx, rows)


def _rows_of_a_page(tx: Transaction, query: Select[Any]) -> tuple[list[Row[Any]], bool]:
    """And whether there are more."""
    rows: list[Row[Any]] = []
    size = 0
    with tx.conn.execute(query.execution_options(yield_per=100)) as found:
        for row in found:
            size += size_of(spans, row._mapping)
            if size > MAX_PAGE and rows:
                return rows, True
            rows.append(row)
    return rows, False


def _read(tx: Transaction, rows: Sequence[Row[Any]]) -> list[Span]:
    pieces = load_pieces(tx, spans, (row._mapping for row in rows))
    return [records.span(row, pieces) for row in rows]
