"""Reading spans back: one by one, and as traces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, case, exists, func, select, tuple_

from leyden.errors import NotFound
from leyden.server.operations.listing import begins_with, check_limit
from leyden.server.operations.spans import read_page
from leyden.server.queries import SpanQuery, Trace, TraceQuery
from leyden.server.schema import spans
from leyden.server.transaction import Transaction
from leyden.types import Span

MAX_TRACES = 1000  # in one answer

_ARRIVAL: tuple[ColumnElement[Any], ...] = (spans.c.received_at, spans.c.seq)
# The same, where spans are picked out by another index: no planner shall walk along their arrival for it.
_ARRIVAL_OF_FEW: tuple[ColumnElement[Any], ...] = (spans.c.received_at + 0, spans.c.seq)
_EARLIER = spans.alias("earlier")
_IS_FIRST = ~exists().where(_EARLIER.c.trace_id == spans.c.trace_id, _EARLIER.c.seq < spans.c.seq)
# Only calls of a model count: the spans around them often repeat the sum.
_IS_CALL = spans.c.operation.in_(["chat", "text_completion", "generate_content", "embeddings"])


def query_spans(tx: Transaction, query: SpanQuery) -> list[Span]:
    """See ``Store.query_spans``. Raises ``NotFound`` for a cursor that is no span."""
    check_limit(query.limit)
    wanted = {
        spans.c.trace_id: query.trace_id,
        spans.c.rollout_id: query.rollout_id,
        spans.c.attempt: query.attempt,
        spans.c.name: query.name,
        spans.c.operation: query.operation,
        spans.c.model: query.model,
        spans.c.status: query.status,
    }
    arrival = _ARRIVAL if query.rollout_id is None and query.trace_id is None else _ARRIVAL_OF_FEW
    conditions = [column == value for column, value in wanted.items() if value is not None]
    conditions += _received(arrival[0], query.received_from, query.received_to)
    if query.after is not None:
        trace_id, _, span_id = query.after.partition("-")
        row = tx.conn.execute(select(*_ARRIVAL).where(spans.c.trace_id == trace_id, spans.c.span_id == span_id)).first()
        if row is None:
            raise NotFound(f"span {query.after} does not exist", "a cursor is the last span's trace id, a dash, and its span id")
        here, there = tuple_(*arrival), tuple_(*row)
        conditions.append(here < there if query.newest_first else here > there)
    order = [column.desc() if query.newest_first else column for column in arrival]
    return read_page(tx, select(spans).where(*conditions).order_by(*order).limit(query.limit))


def list_traces(tx: Transaction, query: TraceQuery) -> list[Trace]:
    """See ``Store.list_traces``. Read backwards along the arrival of spans, stopping at each that was its trace's first."""
    check_limit(query.limit, MAX_TRACES)
    arrival = _ARRIVAL if query.rollout_id is None else _ARRIVAL_OF_FEW
    conditions = [_IS_FIRST, *_received(arrival[0], query.received_from, query.received_to)]
    if query.rollout_id is not None:
        conditions.append(spans.c.rollout_id == query.rollout_id)
    order: list[ColumnElement[Any]] = [column.desc() for column in arrival]
    if query.id_prefix is not None:
        conditions += begins_with(spans.c.trace_id, query.id_prefix)
        order = [spans.c.trace_id]
    if query.after is not None:
        first = tx.conn.execute(select(*_ARRIVAL).where(spans.c.trace_id == query.after).order_by(spans.c.seq).limit(1)).first()
        if first is None:
            raise NotFound(f"trace {query.after} does not exist")
        conditions.append(tuple_(*arrival) < tuple_(*first) if query.id_prefix is None else spans.c.trace_id > query.after)
    statement = select(spans.c.trace_id).where(*conditions).order_by(*order).limit(query.limit)
    return _traces(tx, tx.conn.execute(statement).scalars().all())


def _traces(tx: Transaction, ids: Sequence[str]) -> list[Trace]:
    """In the order of ``ids``."""
    sums = select(
        spans.c.trace_id,
        func.count().label("spans"),
        func.sum(case((spans.c.status == "error", 1), else_=0)).label("errors"),
        func.min(spans.c.start_ns).label("start_ns"),
        func.max(spans.c.end_ns).label("end_ns"),
        func.min(spans.c.received_at).label("received_at"),
        func.sum(case((_IS_CALL, spans.c.input_tokens))).label("input_tokens"),
        func.sum(case((_IS_CALL, spans.c.output_tokens))).label("output_tokens"),
        # The root, as far as it is here; else the first that came.
        func.coalesce(func.min(case((spans.c.parent_id.is_(None), spans.c.seq))), func.min(spans.c.seq)).label("named_by"),
    )
    of_trace = {row.trace_id: row for row in tx.conn.execute(sums.where(spans.c.trace_id.in_(ids)).group_by(spans.c.trace_id))}
    named_by = [row.named_by for row in of_trace.values()]
    roots = {row.trace_id: row for row in tx.conn.execute(select(spans).where(spans.c.seq.in_(named_by)))}
    return [_trace(of_trace[trace_id], roots[trace_id]) for trace_id in ids]


def _trace(sums: Row[Any], root: Row[Any]) -> Trace:
    return Trace(
        trace_id=sums.trace_id,
        name=root.name,
        rollout_id=root.rollout_id,
        attempt=root.attempt,
        start_ns=sums.start_ns,
        end_ns=sums.end_ns,
        spans=sums.spans,
        errors=int(sums.errors),
        input_tokens=_whole(sums.input_tokens),
        output_tokens=_whole(sums.output_tokens),
        received_at=sums.received_at,
    )


def _whole(value: Any) -> int | None:
    """PostgreSQL adds up in decimals."""
    return None if value is None else int(value)


def _received(received_at: ColumnElement[int], start: int | None, end: int | None) -> list[ColumnElement[bool]]:
    conditions = []
    if start is not None:
        conditions.append(received_at >= start)
    if end is not None:
        conditions.append(received_at < end)
    return conditions
