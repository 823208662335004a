"""Deleting what ended long ago, a bounded piece at a time, so that nobody waits long behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, Table, delete, exists, func, literal_column, or_, select

from leyden.errors import Conflict, InvalidRequest
from leyden.server.clock import microseconds
from leyden.server.operations import audits, counters
from leyden.server.operations.counters import NONE, Bucket
from leyden.server.operations.transitions import CHUNK
from leyden.server.queries import Prune, Pruned
from leyden.server.schema import attempts, blob_uses, blobs, generations, leases, resources, rewards, rollouts, runs, spans, workers
from leyden.server.transaction import Transaction
from leyden.types import RolloutState, RunState

MAX_ROLLOUTS = 100  # in one call: a tenth of a second on a slow machine, for which all other writes wait
SILENCE = 60.0  # seconds, at least, since the last beat of a worker that is forgotten
MAX_SPANS = 20_000  # of these rollouts, unless a single one has more

_OF_A_ROLLOUT = {"attempts": attempts, "spans": spans, "generations": generations, "rewards": rewards}
_RUNNING = select(runs.c.id).where(runs.c.state == RunState.RUNNING)


def prune(tx: Transaction, query: Prune) -> Pruned:
    """See ``Store.prune``."""
    if query.state is not None and not query.state.final:
        raise InvalidRequest(f"state: {query.state} is not final", "only succeeded, failed and cancelled rollouts are pruned")
    if query.run_id is not None and tx.conn.execute(_RUNNING.where(runs.c.id == query.run_id)).first() is not None:
        raise Conflict(f"run {query.run_id} is running", f"stop it (Ctrl+C), then give it up: leyden runs cancel {query.run_id}")
    before = tx.now - microseconds(query.older_than)
    condition = _ended(query, before)
    whole = query.state is None and query.run_id is None  # else what belongs to no rollout is not asked for
    if query.dry_run:
        return _count(tx, condition, before, whole)
    rows = _few_enough(
        tx,
        tx.conn.execute(
            select(rollouts).where(condition).order_by(rollouts.c.finished_at).limit(MAX_ROLLOUTS).with_for_update(skip_locked=True)
        ).all(),
    )
    if rows:
        return _delete_rollouts(tx, rows)
    return _delete_unnamed(tx, before) if whole else Pruned()


def _ended(query: Prune, before: int) -> ColumnElement[bool]:
    condition = (rollouts.c.finished_at < before) & or_(rollouts.c.run_id.is_(None), rollouts.c.run_id.not_in(_RUNNING))
    if query.state is not None:
        condition &= rollouts.c.state == query.state
    if query.run_id is not None:
        condition &= rollouts.c.run_id == query.run_id
    return condition


def _few_enough(tx: Transaction, rows: Sequence[Row[Any]]) -> Sequence[Row[Any]]:
    """The first of ``rows`` whose spans can be deleted in one go."""
    total = 0
    for start in range(0, len(rows), 50):
        ids = [row.id for row in rows[start : start + 50]]
        count = select(spans.c.rollout_id, func.count()).where(spans.c.rollout_id.in_(ids)).group_by(spans.c.rollout_id)
        of_rollout: dict[str, int] = {rollout_id: n for rollout_id, n in tx.conn.execute(count)}
        for n, rollout_id in enumerate(ids, start):
            total += of_rollout.get(rollout_id, 0)
            if total > MAX_SPANS and n:
                return rows[:n]
    return rows


def _delete_rollouts(tx: Transaction, rows: Sequence[Row[Any]]) -> Pruned:
    ids = [row.id for row in rows]
    deleted = {name: _delete(tx, table, table.c.rollout_id.in_(ids)) for name, table in _OF_A_ROLLOUT.items() if table is not generations}
    deleted["generations"] = audits.delete_counted(tx, rows)
    freed = _delete_uses(tx, ids)
    _delete(tx, rollouts, rollouts.c.id.in_(ids))
    counters.shift(tx, Counter({key: -n for key, n in Counter(map(_counted_as, rows)).items()}))
    return Pruned(rollouts=len(ids), blobs=freed, more=True, **deleted)


def _counted_as(row: Row[Any]) -> tuple[Bucket, RolloutState, str]:
    return Bucket.of(row), RolloutState(row.state), row.failure or NONE


def _delete_uses(tx: Transaction, owners: Sequence[str]) -> int:
    """Delete the uses of ``owners``, then the blobs that are left without one; returns how many those are."""
    used = sorted(tx.conn.execute(select(blob_uses.c.sha256).where(blob_uses.c.owner.in_(owners)).distinct()).scalars())
    parts = [used[start : start + CHUNK] for start in range(0, len(used), CHUNK)]
    for part in parts:  # locked, in order: of two that delete the last uses of a blob, the second must see that it was the last
        tx.conn.execute(select(blobs.c.sha256).where(blobs.c.sha256.in_(part)).order_by(blobs.c.sha256).with_for_update()).all()
    _delete(tx, blob_uses, blob_uses.c.owner.in_(owners))
    unused = ~exists().where(blob_uses.c.sha256 == blobs.c.sha256)
    return sum(_delete(tx, blobs, blobs.c.sha256.in_(part), unused) for part in parts)


def _delete(tx: Transaction, table: Table, *conditions: ColumnElement[bool]) -> int:
    return tx.conn.execute(delete(table).where(*conditions)).rowcount


# -- what belongs to no rollout ----------------------------------------------------------------------------------------


def _delete_unnamed(tx: Transaction, before: int) -> Pruned:
    arrived = select(spans.c.seq, spans.c.trace_id).where(_unattached(before)).order_by(spans.c.received_at).limit(MAX_SPANS)
    old = tx.conn.execute(arrived.with_for_update(skip_locked=True)).all()
    seqs = [row.seq for row in old]
    traces = sorted({row.trace_id for row in old})
    for start in range(0, len(traces), CHUNK):  # a span that comes to one of these traces now waits for us, or we for it
        uses = select(blob_uses.c.sha256).where(blob_uses.c.owner.in_(traces[start : start + CHUNK]))
        tx.conn.execute(uses.order_by(blob_uses.c.sha256, blob_uses.c.owner).with_for_update()).all()
    for start in range(0, len(seqs), CHUNK):
        _delete(tx, spans, spans.c.seq.in_(seqs[start : start + CHUNK]))
    return Pruned(
        spans=len(seqs),
        blobs=_delete_uses(tx, _gone(tx, traces)),
        workers=_delete(tx, workers, _gone_worker(tx, before)),
        resources=_delete_resources(tx, before),
        more=len(seqs) == MAX_SPANS,
    )


def _gone(tx: Transaction, traces: Sequence[str]) -> list[str]:
    """Those of ``traces`` that have no unattached span any more."""
    left: set[str] = set()
    for start in range(0, len(traces), CHUNK):
        part = traces[start : start + CHUNK]
        left.update(tx.conn.execute(select(spans.c.trace_id).where(spans.c.trace_id.in_(part), spans.c.rollout_id.is_(None))).scalars())
    return [trace_id for trace_id in traces if trace_id not in left]


def _unattached(before: int) -> ColumnElement[bool]:
    return literal_column("rollout_id IS NULL") & (spans.c.received_at < before)  # literal: it names the partial index


def _gone_worker(tx: Transaction, before: int) -> ColumnElement[bool]:
    """It said that it stopped, or was never heard of again, and holds nothing. One that beat a moment ago may beat again."""
    ended = or_(workers.c.stopped_at < before, workers.c.last_seen_at < before)
    return ended & (workers.c.last_seen_at < tx.now - microseconds(SILENCE)) & ~exists().where(leases.c.worker_id == workers.c.id)


def _delete_resources(tx: Transaction, before: int) -> int:
    """Locked first, then looked at again: a rollout that is being queued for one of them holds it."""
    unnamed = _unnamed_resources(tx, before)
    locked = tx.conn.execute(select(resources.c.id).where(unnamed).with_for_update(skip_locked=True)).scalars().all()
    parts = [locked[start : start + CHUNK] for start in range(0, len(locked), CHUNK)]
    return sum(_delete(tx, resources, resources.c.id.in_(part), unnamed) for part in parts)


def _unnamed_resources(tx: Transaction, before: int, gone: Select[Any] | None = None) -> ColumnElement[bool]:
    """Neither the latest, nor kept alive, nor named by any rollout or attempt but those of the rollouts in ``gone``."""
    naming = [attempts.c.resources_id == resources.c.id], [rollouts.c.resources_id == resources.c.id]
    if gone is not None:
        naming[0].append(attempts.c.rollout_id.not_in(gone))
        naming[1].append(rollouts.c.id.not_in(gone))
    latest = select(func.max(resources.c.version)).scalar_subquery()
    return (
        (resources.c.created_at < before)
        & or_(resources.c.alive_until.is_(None), resources.c.alive_until < tx.now)
        & (resources.c.version < latest)
        & ~exists().where(*naming[0])
        & ~exists().where(*naming[1])
    )


# -- counting ----------------------------------------------------------------------------------------------------------


def _count(tx: Transaction, condition: ColumnElement[bool], before: int, whole: bool) -> Pruned:
    """What all the calls together would delete; blobs are not counted."""
    chosen = select(rollouts.c.id).where(condition)
    counted = {"rollouts": _number(tx, rollouts, condition)}
    counted |= {name: _number(tx, table, table.c.rollout_id.in_(chosen)) for name, table in _OF_A_ROLLOUT.items()}
    if whole:
        counted["spans"] += _number(tx, spans, _unattached(before))
        counted["workers"] = _number(tx, workers, _gone_worker(tx, before))
        counted["resources"] = _number(tx, resources, _unnamed_resources(tx, before, chosen.correlate(None)))
    return Pruned(**counted)


def _number(tx: Transaction, table: Table, condition: ColumnElement[bool]) -> int:
    return int(tx.conn.execute(select(func.count()).select_from(table).where(condition)).scalar_one())
