"""Claims: who gets which rollouts, and the leases made for them."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Row, bindparam, insert, literal_column, or_, select

from leyden.record import checked_before
from leyden.server import records
from leyden.server.bulk import Bulk
from leyden.server.clock import microseconds
from leyden.server.operations import queues
from leyden.server.operations import rollouts as rollout_ops
from leyden.server.operations.fence import attempt_key
from leyden.server.operations.resources import alive_ids, latest_row, versions
from leyden.server.operations.transitions import Move, move, rows_by_id
from leyden.server.records import RolloutRow, rollout_rows
from leyden.server.schema import attempts, leases, rollouts
from leyden.server.transaction import Transaction
from leyden.types import AttemptState, Lease, LeaseRef, NewRollout, Resources, Rollout, RolloutState


@dataclass(frozen=True)
class ClaimRequest:
    worker_id: str
    limit: int
    lease_seconds: float
    request_id: str
    queues: tuple[str, ...]


@dataclass(frozen=True)
class Claimed:
    answers: list[list[Lease]]  # one for each request, empty when nothing was left for it
    drained: frozenset[str]  # queues that have nothing more to give


_IS_READY: tuple[ColumnElement[bool], ...] = (
    literal_column("rollouts.state = 'queued'"),  # literal: a bound value would not match the partial index
    rollouts.c.queue == bindparam("queue"),
    or_(
        (rollouts.c.resources_id.is_(None)) & (bindparam("unpinned") == 1),
        rollouts.c.resources_id.in_(alive_ids()),
    ),
)
_HEADS = (
    select(rollouts.c.priority, rollouts.c.seq).where(*_IS_READY).order_by(rollouts.c.priority, rollouts.c.seq).limit(bindparam("limit"))
)
_READY = (
    select(rollouts)
    .where(*_IS_READY)
    .order_by(rollouts.c.priority, rollouts.c.seq)
    .limit(bindparam("limit"))
    .with_for_update(skip_locked=True, key_share=True, of=rollouts)
)
_NEW_LEASES = Bulk(insert(leases))
_NEW_ATTEMPTS = Bulk(insert(attempts))
_GIVEN = (
    select(
        attempts.c.request_id,
        attempts.c.worker_id,
        attempts.c.rollout_id,
        attempts.c.number,
        attempts.c.token,
        attempts.c.resources_id,
        leases.c.duration,
        leases.c.deadline_at,
    )
    .outerjoin_from(attempts, leases, (leases.c.rollout_id == attempts.c.rollout_id) & (leases.c.token == attempts.c.token))
    .where(attempts.c.request_id.in_(bindparam("request_ids", expanding=True)))
)


def claim(tx: Transaction, requests: Sequence[ClaimRequest]) -> Claimed:
    """Serve ``requests`` in their order from what is ready in their queues, best priority first, then oldest."""
    given = _given_before(tx, requests)
    new = [i for i in range(len(requests)) if i not in given]
    latest = latest_row(tx)
    picked = _pick(tx, [requests[i] for i in new], {"unpinned": int(latest is None or records.resources(latest, tx.now).alive)})
    made = _take(
        tx,
        [
            (requests[i], row, row.resources_id or (latest.id if latest else None))
            for i, rows in zip(new, picked, strict=True)
            for row in rows
        ],
    )
    served = {i: [made.pop(row.id) for row in rows] for i, rows in zip(new, picked, strict=True)}
    drained = {name for i in new if len(served[i]) < requests[i].limit for name in requests[i].queues}
    return Claimed([(given | served)[i] for i in range(len(requests))], frozenset(drained))


def enqueue(tx: Transaction, new: Sequence[NewRollout], requests: Sequence[ClaimRequest]) -> tuple[list[Rollout], Claimed]:
    """Queue ``new`` (see ``rollouts.enqueue``), and serve ``requests``, which have waited for it, in the same transaction: to an idle
    runner it is half as far."""
    queued = rollout_ops.enqueue(tx, new)
    if not requests:
        return queued, Claimed([], frozenset())
    claimed = claim(tx, requests)
    tx.changes.queues -= claimed.drained  # no news for the others who wait
    running = {lease.rollout.id: lease.rollout for leases in claimed.answers for lease in leases}
    return [running.get(rollout.id, rollout) for rollout in queued], claimed


# -- what to take ------------------------------------------------------------------------------------------------------


def _pick(tx: Transaction, requests: Sequence[ClaimRequest], ready: Mapping[str, Any]) -> list[list[RolloutRow]]:
    """Rows for each request, locked. Exactly as many are locked as are given: another store's claim would pass over any other."""
    names = sorted({name for request in requests for name in request.queues})
    room = queues.room(tx, names) if names else {}
    locked: dict[str, dict[int, RolloutRow]] = {name: {} for name in names}
    picked: list[list[RolloutRow]] = [[] for _ in requests]
    while True:
        shares = _share(
            tx, requests, [request.limit - len(rows) for request, rows in zip(requests, picked, strict=True)], room, locked, ready
        )
        wanted: Counter[str] = sum(shares, Counter())
        if not wanted:
            return [sorted(rows, key=lambda row: (row.priority, row.seq)) for rows in picked]
        found: dict[str, deque[RolloutRow]] = {}
        for name, n in sorted(wanted.items()):
            mine = locked[name]
            rows = rollout_rows(tx.conn.execute(_READY, {"queue": name, "limit": n + len(mine), "now": tx.now, **ready}).all())
            found[name] = deque([row for row in rows if row.seq not in mine][:n])
            mine.update((row.seq, row) for row in found[name])
            room[name] = room[name] - len(found[name]) if len(found[name]) == n else 0  # the rest is being claimed by another store
        for share, rows_of in zip(shares, picked, strict=True):
            for name, n in share.items():
                rows_of.extend(found[name].popleft() for _ in range(min(n, len(found[name]))))


def _share(
    tx: Transaction,
    requests: Sequence[ClaimRequest],
    missing: Sequence[int],
    room: Mapping[str, int],
    locked: Mapping[str, Mapping[int, RolloutRow]],
    ready: Mapping[str, Any],
) -> list[Counter[str]]:
    """How many of its ``missing`` ones each request should have from each queue."""
    wanted: defaultdict[str, int] = defaultdict(int)
    for request, n in zip(requests, missing, strict=True):
        for name in request.queues:
            if n and room[name]:
                wanted[name] += n
    heads: dict[str, deque[tuple[int, int]]] = {}
    for name, n in wanted.items():
        n = min(n, room[name])
        if len(wanted) == 1:
            heads[name] = deque([(0, 0)] * n)  # nothing to compare with: as many as there are
            continue
        rows = tx.conn.execute(_HEADS, {"queue": name, "limit": n + len(locked[name]), "now": tx.now, **ready})
        heads[name] = deque([(row.priority, row.seq) for row in rows if row.seq not in locked[name]][:n])
    shares: list[Counter[str]] = []
    for request, n in zip(requests, missing, strict=True):
        share: Counter[str] = Counter()
        for _ in range(n):
            best = min(((heads[name][0], name) for name in request.queues if heads.get(name)), default=None)
            if best is None:
                break
            heads[best[1]].popleft()
            share[best[1]] += 1
        shares.append(share)
    return shares


# -- leases ------------------------------------------------------------------------------------------------------------


def _given_before(tx: Transaction, requests: Sequence[ClaimRequest]) -> dict[int, list[Lease]]:
    """By position: what a claim with the same request id was given, as far as it is still held. Not there: what was given nothing."""
    given: defaultdict[tuple[str, str], list[Row[Any]]] = defaultdict(list)
    found: list[Row[Any]] = list(tx.conn.execute(_GIVEN, {"request_ids": [request.request_id for request in requests]}))
    for row in found:
        given[row.request_id, row.worker_id].append(row)
    if not given:
        return {}
    held = [row for row in found if row.deadline_at is not None]
    items = rows_by_id(tx, [row.rollout_id for row in held])
    pinned = versions(tx, {row.resources_id for row in held})
    leases_of: dict[tuple[str, str], list[Lease]] = {key: [] for key in given}
    for row in sorted(held, key=lambda row: (items[row.rollout_id].priority, items[row.rollout_id].seq)):
        ref = LeaseRef(rollout_id=row.rollout_id, attempt=row.number, token=row.token)
        lease = _lease(tx, records.rollout(items[row.rollout_id]), ref, pinned.get(row.resources_id), row.duration, row.deadline_at)
        leases_of[row.request_id, row.worker_id].append(lease)
    by_position = enumerate((request.request_id, request.worker_id) for request in requests)
    return {i: leases_of[key] for i, key in by_position if key in leases_of}


def _take(tx: Transaction, taken: Sequence[tuple[ClaimRequest, RolloutRow, str | None]]) -> dict[str, Lease]:
    """Leases by rollout id."""
    if not taken:
        return {}
    move(tx, [Move(row, RolloutState.RUNNING, claimed=True) for _, row, _ in taken])
    pinned = versions(tx, {resources_id for _, _, resources_id in taken})
    made: dict[str, Lease] = {}
    lease_rows, attempt_rows = [], []
    for request, row, resources_id in taken:
        ref = checked_before(LeaseRef, {"rollout_id": row.id, "attempt": row.attempt + 1, "token": row.lease_token + 1})
        duration = microseconds(request.lease_seconds)
        deadline = tx.now + microseconds(records.rollout_config(row.config).attempt_timeout)
        made[row.id] = _lease(tx, records.rollout(row, claimed_at=tx.revision), ref, pinned.get(resources_id), duration, deadline)
        lease_rows.append(
            {
                "rollout_id": ref.rollout_id,
                "attempt": ref.attempt,
                "token": ref.token,
                "worker_id": request.worker_id,
                "queue": row.queue,
                "duration": duration,
                "expires_at": tx.now + duration,
                "deadline_at": deadline,
            }
        )
        attempt_rows.append(
            {
                "rollout_id": ref.rollout_id,
                "number": ref.attempt,
                "token": ref.token,
                "state": AttemptState.RUNNING.value,
                "worker_id": request.worker_id,
                "resources_id": resources_id,
                "request_id": request.request_id,
                "started_at": tx.now,
            }
        )
    _NEW_LEASES.run(tx, lease_rows)
    _NEW_ATTEMPTS.run(tx, attempt_rows)
    tx.changes.count("claimed", n=len(made))
    return made


def _lease(tx: Transaction, rollout: Rollout, ref: LeaseRef, pinned: Resources | None, duration: int, deadline: int) -> Lease:
    return checked_before(
        Lease,
        {
            "ref": ref,
            "rollout": rollout,
            "resources": pinned,
            "key": attempt_key(tx.secret, ref),
            "lease_seconds": duration / 1e6,
            "timeout_seconds": max(0.0, (deadline - tx.now) / 1e6),
        },
    )
