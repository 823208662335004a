"""Listing rollouts: by what they are for, by how they stand, by what changed. Every page is read along an index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Row, and_, case, func, literal_column, select, text, tuple_

from leyden.errors import InvalidRequest, NotFound
from leyden.server import records
from leyden.server.operations.transitions import CHUNK
from leyden.server.queries import MAX_LIST, RolloutQuery
from leyden.server.schema import counters, meta, rollouts
from leyden.server.transaction import Transaction
from leyden.types import Rollout

T = TypeVar("T")

_FILTERS = ("run_id", "iteration", "mode", "state", "queue", "failure")  # each with an index, and counted
_ALL = "all"
_BEHIND_ALL = 2**63 - 1
_OLDEST_RUNNING = text("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")


def list_rollouts(tx: Transaction, query: RolloutQuery) -> list[Rollout]:
    """See ``Store.list_rollouts``. Raises ``NotFound`` for a cursor that is no rollout, ``InvalidRequest`` for a bad limit."""
    check_limit(query.limit)
    if query.changed_after is not None and query.newest_first:
        raise InvalidRequest("newest_first: changes come in their order", "leave out newest_first or changed_after")
    order = _order(tx, query)
    last = None if query.after is None else _position(tx, query, order)
    wanted = _wanted(query)
    counted = _count_passing(tx, wanted)
    if counted and not counted[_ALL]:
        return []
    statement = (
        select(rollouts)
        .where(*_passing(tx, wanted, _leading(query, wanted, counted)), *_conditions(tx, query, order, last))
        .order_by(*(column.desc() if query.newest_first else column for column in order))
        .limit(query.limit)
    )
    if query.ids is None:
        return [records.rollout(row) for row in tx.conn.execute(statement)]
    ids = list(dict.fromkeys(query.ids))
    found: list[Row[Any]] = []
    for start in range(0, len(ids), CHUNK):
        found.extend(tx.conn.execute(statement.where(rollouts.c.id.in_(ids[start : start + CHUNK]))))
    found.sort(key=lambda row: tuple(row._mapping[column] for column in order), reverse=query.newest_first)
    return [records.rollout(row) for row in found[: query.limit]]


def check_limit(limit: int, most: int = MAX_LIST) -> None:
    if not 1 <= limit <= most:
        raise InvalidRequest(f"limit: must be between 1 and {most}", "page on with after=<the last id>")


def begins_with(column: ColumnElement[str], prefix: str) -> list[ColumnElement[bool]]:
    """Along the column's index."""
    if not prefix.isascii() or not prefix:
        raise InvalidRequest(f"id_prefix: {prefix!r} begins no id")
    return [column >= prefix, column < prefix[:-1] + chr(ord(prefix[-1]) + 1)]


def between(
    order: Sequence[ColumnElement[Any]], start: int | None, end: int | None, last: Sequence[Any] | None, newest_first: bool
) -> list[ColumnElement[bool]]:
    """Behind ``last``, a place in ``order``, and, by the first of ``order``, from ``start`` on and before ``end``. One condition on each
    side: of two, SQLite may walk along the one and leave out by the other all that lies between them."""
    conditions: list[ColumnElement[bool]] = []
    if last is not None:
        behind_all = last[0] >= end if newest_first and end is not None else start is not None and not newest_first and last[0] < start
        if not behind_all:
            here, there = tuple_(*order), tuple_(*last)
            conditions.append(here < there if newest_first else here > there)
            start, end = (start, None) if newest_first else (None, end)
    if start is not None:
        conditions.append(order[0] >= start)
    if end is not None:
        conditions.append(order[0] < end)
    return conditions


def _order(tx: Transaction, query: RolloutQuery) -> list[ColumnElement[Any]]:
    """What an index hands out in order: what is asked for by time or by change is read along that."""
    if query.id_prefix is not None:
        return [rollouts.c.id]
    if query.changed_after is not None:
        return [rollouts.c.revision, rollouts.c.seq]
    if tx.dialect != "sqlite" and (query.created_from is not None or query.created_to is not None):
        return [rollouts.c.created_at, rollouts.c.seq]
    return [rollouts.c.seq]  # which is that of their times where one writes at a time, by a clock that never goes back


def _position(tx: Transaction, query: RolloutQuery, order: list[ColumnElement[Any]]) -> list[Any]:
    row = tx.conn.execute(select(rollouts.c.seq, rollouts.c.created_at, rollouts.c.id).where(rollouts.c.id == query.after)).first()
    if row is None:
        raise NotFound(f"rollout {query.after}, to go on after, does not exist", "was it pruned? begin again with the first page")
    if order[0] is rollouts.c.revision:
        return [query.changed_after, row.seq]  # it may have changed again since: where it stood is what the caller says
    return [row._mapping[column] for column in order]


def _wanted(query: RolloutQuery) -> dict[str, Any]:
    """By the names of columns."""
    wanted = {name: getattr(query, name) for name in _FILTERS} | {"group_key": query.group}
    return {name: value for name, value in wanted.items() if value is not None}


def _count_passing(tx: Transaction, wanted: Mapping[str, Any]) -> dict[str, int]:
    """How many rollouts pass each of several filters, and ``_ALL`` of them; nothing where it is not worth asking."""
    if len(wanted) < 2 or "group_key" in wanted:
        return {}
    of = {name: counters.c[name] == value for name, value in wanted.items()}
    sums = [func.sum(case((condition, counters.c.n), else_=0)).label(name) for name, condition in {**of, _ALL: and_(*of.values())}.items()]
    row = tx.conn.execute(select(*sums)).one()
    return {name: int(n or 0) for name, n in row._mapping.items()}


def _leading(query: RolloutQuery, wanted: Mapping[str, Any], counted: Mapping[str, int]) -> str | None:
    """The filter along whose index it is read; None: along that of the order, or of the ids that are asked for."""
    if query.ids is not None or query.id_prefix is not None or query.changed_after is not None:
        return None
    return "group_key" if "group_key" in wanted else min(wanted, key=lambda name: counted.get(name, 0), default=None)


def _passing(tx: Transaction, wanted: Mapping[str, Any], leading: str | None) -> list[ColumnElement[bool]]:
    return [(rollouts.c[name] if name == leading else unindexed(tx, rollouts.c[name])) == value for name, value in wanted.items()]


def unindexed(tx: Transaction, column: ColumnElement[T]) -> ColumnElement[T]:
    """SQLite has no statistics here: left alone, it takes the index of any filter, and sorts all that passes that one. What has this form
    it can use no index for (sqlite.org/optoverview.html, "Disqualifying WHERE Clause Terms Using Unary +")."""
    return literal_column(f"+{column}", column.type) if tx.dialect == "sqlite" else column


def _conditions(tx: Transaction, query: RolloutQuery, order: list[ColumnElement[Any]], last: list[Any] | None) -> list[ColumnElement[bool]]:
    time: ColumnElement[Any] = rollouts.c.created_at
    start, end = query.created_from, query.created_to
    if tx.dialect == "sqlite":
        time = rollouts.c.seq
        start, end = (None if at is None else _first_since(tx, at) for at in (start, end))
    if order[0] is time:
        conditions = between(order, start, end, last, query.newest_first)
    else:
        conditions = between([unindexed(tx, time)], start, end, None, False) + between(order, None, None, last, query.newest_first)
    if query.id_prefix is not None:
        conditions += begins_with(rollouts.c.id, query.id_prefix)
    if query.changed_after is not None:
        if query.after is None or query.id_prefix is not None:  # else the cursor says more
            conditions.append(rollouts.c.revision > query.changed_after)
        conditions += _settled(tx)
    return conditions


def _first_since(tx: Transaction, created_at: int) -> int:
    """The number of the first rollout that was created then or later; one behind all of them if there is none."""
    c = rollouts.c
    found = select(c.seq).where(c.created_at >= created_at).order_by(c.created_at, c.seq).limit(1)
    first: int | None = tx.conn.execute(found).scalar()
    return _BEHIND_ALL if first is None else first


def _settled(tx: Transaction) -> list[ColumnElement[bool]]:
    """Revisions below which nothing can be committed any more. Where writers work side by side, a lower one may be committed after a
    higher one was read: whoever asked "what changed after the highest" would never see it."""
    if tx.dialect == "sqlite":
        return []
    base = tx.conn.execute(select(meta.c.value).where(meta.c.key == "revision_base")).scalar_one()
    return [rollouts.c.revision < int(base) + tx.conn.execute(_OLDEST_RUNNING).scalar_one()]
