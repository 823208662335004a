"""Listing rollouts: by what they are for, by how they stand, by what changed. Every page is read along an index."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Row, select, text, tuple_

from leyden.errors import InvalidRequest, NotFound
from leyden.server import records
from leyden.server.operations.transitions import CHUNK
from leyden.server.queries import MAX_LIST, RolloutQuery
from leyden.server.schema import meta, rollouts
from leyden.server.transaction import Transaction
from leyden.types import FailureKind, Rollout, RolloutState

_OLDEST_RUNNING = text("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")


def list_rollouts(tx: Transaction, query: RolloutQuery) -> list[Rollout]:
    """See ``Store.list_rollouts``. Raises ``NotFound`` for a cursor that is no rollout, ``InvalidRequest`` for a bad limit."""
    check_limit(query.limit)
    if query.changed_after is not None and query.newest_first:
        raise InvalidRequest("newest_first: changes come in their order", "leave out newest_first or changed_after")
    order = _order(query)
    last = None if query.after is None else _position(tx, query, order)
    conditions = _conditions(tx, query)
    if last is not None:
        here, there = tuple_(*order), tuple_(*last)
        conditions.append(here < there if query.newest_first else here > there)
    statement = (
        select(rollouts)
        .where(*conditions)
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


def _order(query: RolloutQuery) -> list[ColumnElement[Any]]:
    """What an index hands out in order: what is asked for by time or by change is read along that."""
    if query.id_prefix is not None:
        return [rollouts.c.id]
    if query.changed_after is not None:
        return [rollouts.c.revision, rollouts.c.seq]
    if query.created_from is not None or query.created_to is not None:
        return [rollouts.c.created_at, rollouts.c.seq]
    return [rollouts.c.seq]


def _position(tx: Transaction, query: RolloutQuery, order: list[ColumnElement[Any]]) -> list[Any]:
    row = tx.conn.execute(select(rollouts.c.seq, rollouts.c.created_at, rollouts.c.id).where(rollouts.c.id == query.after)).first()
    if row is None:
        raise NotFound(f"rollout {query.after} does not exist")
    if order[0] is rollouts.c.revision:
        return [query.changed_after, row.seq]  # it may have changed again since: where it stood is what the caller says
    return [row._mapping[column] for column in order]


def _conditions(tx: Transaction, query: RolloutQuery) -> list[ColumnElement[bool]]:
    wanted = {
        rollouts.c.run_id: query.run_id,
        rollouts.c.iteration: query.iteration,
        rollouts.c.mode: query.mode,
        rollouts.c.state: query.state,
        rollouts.c.queue: query.queue,
        rollouts.c.group_key: query.group,
        rollouts.c.failure: query.failure,
    }
    conditions = [column == value for column, value in wanted.items() if value is not None]
    if query.failure is not None and query.state is None:  # there is an index on the state, which the failure tells
        ended = RolloutState.CANCELLED if query.failure is FailureKind.CANCELLED else RolloutState.FAILED
        conditions.append(rollouts.c.state == ended)
    if query.id_prefix is not None:
        conditions += begins_with(rollouts.c.id, query.id_prefix)
    if query.created_from is not None:
        conditions.append(rollouts.c.created_at >= query.created_from)
    if query.created_to is not None:
        conditions.append(rollouts.c.created_at < query.created_to)
    if query.changed_after is not None:
        if query.after is None or query.id_prefix is not None:  # else the cursor says more
            conditions.append(rollouts.c.revision > query.changed_after)
        conditions += _settled(tx)
    return conditions


def _settled(tx: Transaction) -> list[ColumnElement[bool]]:
    """Revisions below which nothing can be committed any more. Where writers work side by side, a lower one may be committed after a
    higher one was read: whoever asked "what changed after the highest" would never see it."""
    if tx.dialect == "sqlite":
        return []
    base = tx.conn.execute(select(meta.c.value).where(meta.c.key == "revision_base")).scalar_one()
    return [rollouts.c.revision < int(base) + tx.conn.execute(_OLDEST_RUNNING).scalar_one()]
