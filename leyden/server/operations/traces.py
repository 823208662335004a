"""Reading spans back: one by one, and as traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, case, exists, func, select

from leyden.errors import NotFound
from leyden.server.operations.listing import begins_with, between, check_limit, unindexed
from leyden.server.operations.spans import read_page
from leyden.server.queries import SpanQuery, Trace, TraceQuery
from leyden.server.schema import spans
from leyden.server.transaction import Transaction
from leyden.types import Span

MAX_TRACES = 1000  # in one answer
A_LOOK = 10_000  # steps in an index: a millisecond

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
    names = ("trace_id", "rollout_id", "attempt", "name", "operation", "model", "status")
    wanted = {name: value for name in names if (value := getattr(query, name)) is not None}
    leading = _leading(tx, wanted)
    arrival = _ARRIVAL if leading.isdisjoint({"trace_id", "rollout_id"}) else _ARRIVAL_OF_FEW
    columns = {name: spans.c[name] if name in leading else unindexed(tx, spans.c[name]) for name in wanted}
    conditions = [columns[name] == value for name, value in wanted.items()]
    last = None
    if query.after is not None:
        trace_id, _, span_id = query.after.partition("-")
        last = tx.conn.execute(select(*_ARRIVAL).where(spans.c.trace_id == trace_id, spans.c.span_id == span_id)).first()
        if last is None:
            hint = "a cursor is the last span's trace id, a dash, and its span id; if it was pruned, begin again with the first page"
            raise NotFound(f"span {query.after}, to go on after, does not exist", hint)
    conditions += between(arrival, query.received_from, query.received_to, last, query.newest_first)
    order = [column.desc() if query.newest_first else column for column in arrival]
    return read_page(tx, select(spans).where(*conditions).order_by(*order).limit(query.limit))


def _leading(tx: Transaction, wanted: Mapping[str, Any]) -> frozenset[str]:
    """The filters along whose index spans are read: of several that may pass many, the one that passes the fewest, as far as a look at the
    beginning of each can tell."""
    if "trace_id" in wanted:
        return frozenset({"trace_id"})
    if "rollout_id" in wanted:
        return frozenset({"rollout_id", "attempt"})

    def number(name: str) -> int:
        some = select(spans.c.seq).where(spans.c[name] == wanted[name]).limit(A_LOOK)
        return tx.conn.execute(select(func.count()).select_from(some.subquery())).scalar_one()

    many = [name for name in ("model", "name", "operation", "status") if name in wanted]
    return frozenset({min(many, key=number)} if len(many) > 1 and tx.dialect == "sqlite" else many)


def list_traces(tx: Transaction, query: TraceQuery) -> list[Trace]:
    """See ``Store.list_traces``. Read backwards along the arrival of spans, stopping at each that was its trace's first."""
    check_limit(query.limit, MAX_TRACES)
    arrival = _ARRIVAL if query.rollout_id is None else _ARRIVAL_OF_FEW
    conditions: list[ColumnElement[bool]] = [_IS_FIRST]
    if query.rollout_id is not None:
        conditions.append(spans.c.rollout_id == query.rollout_id)
    order: list[ColumnElement[Any]] = [column.desc() for column in arrival]
    if query.id_prefix is not None:
        conditions += begins_with(spans.c.trace_id, query.id_prefix)
        order = [spans.c.trace_id]
    first = None
    if query.after is not None:
        first = tx.conn.execute(select(*_ARRIVAL).where(spans.c.trace_id == query.after).order_by(spans.c.seq).limit(1)).first()
        if first is None:
            raise NotFound(f"trace {query.after}, to go on after, does not exist", "was it pruned? begin again with the first page")
    if query.id_prefix is not None and query.after is not None:
        conditions.append(spans.c.trace_id > query.after)
    behind = first if query.id_prefix is None else None
    conditions += between(arrival, query.received_from, query.received_to, behind, newest_first=True)
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
