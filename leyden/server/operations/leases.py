"""Leases: taken by a claim, kept by heartbeats, swept when nobody keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, bindparam, func, insert, literal_column, or_, select, update

from leyden.errors import LeaseLost, NotFound
from leyden.server import records
from leyden.server.clock import microseconds
from leyden.server.operations.attempts import Ending, end
from leyden.server.operations.fence import attempt_key, key_hash
from leyden.server.operations.resources import alive_ids, latest_row
from leyden.server.operations.transitions import Move, move, rows_by_id
from leyden.server.schema import attempts, leases, meta, resources, rollouts, runs, workers
from leyden.server.transaction import Transaction
from leyden.types import AttemptBinding, AttemptState, FailureKind, Lease, LeaseRef, Mode, Resources, RolloutConfig, RolloutState, Verdict

DEFAULT_LEASE = 60.0  # seconds
SWEEP_LIMIT = 500  # rows of each kind in one sweep, so that a large one never holds the writer for long


@dataclass(frozen=True)
class ClaimRequest:
    worker_id: str
    limit: int
    lease_seconds: float
    request_id: str | None
    look_up: bool = True  # whether the request id may have been served before


_READY = (
    select(rollouts)
    .where(
        literal_column("state = 'queued'"),  # literal: a bound value would not match the partial index
        or_(
            (rollouts.c.resources_id.is_(None)) & (bindparam("unpinned") == 1),
            rollouts.c.resources_id.in_(alive_ids()),
        ),
    )
    .order_by(rollouts.c.priority, rollouts.c.seq)
    .limit(bindparam("limit"))
    .with_for_update(skip_locked=True)
)
_GIVEN = (
    select(attempts.c.rollout_id, attempts.c.number, attempts.c.token, attempts.c.resources_id, leases.c.duration, leases.c.deadline_at)
    .outerjoin_from(attempts, leases, (leases.c.rollout_id == attempts.c.rollout_id) & (leases.c.token == attempts.c.token))
    .where(attempts.c.request_id == bindparam("request_id"), attempts.c.worker_id == bindparam("worker_id"))
)


# -- claim -------------------------------------------------------------------------------------------------------------


def claim(tx: Transaction, requests: Sequence[ClaimRequest]) -> list[list[Lease]]:
    """Serve ``requests`` in their order from what is ready, best priority first. One answer each, empty when nothing was left."""
    answers: list[list[Lease] | None] = [_given_before(tx, request) for request in requests]
    wanted = sum(request.limit for request, answer in zip(requests, answers, strict=True) if answer is None)
    latest = latest_row(tx)
    latest_id = None if latest is None else latest.id
    unpinned = int(latest is None or records.resources(latest, tx.now).alive)
    ready = list(tx.conn.execute(_READY, {"limit": wanted, "unpinned": unpinned, "now": tx.now})) if wanted else []
    taken: list[tuple[ClaimRequest, Row[Any], str | None]] = []
    shares: list[range | None] = []
    for request, answer in zip(requests, answers, strict=True):
        if answer is not None:
            shares.append(None)
            continue
        first = len(taken)
        for row in ready[first : first + request.limit]:
            taken.append((request, row, row.resources_id or latest_id))
        shares.append(range(first, len(taken)))
    made = _take(tx, taken)
    return [answer if answer is not None else [made[i] for i in share or ()] for answer, share in zip(answers, shares, strict=True)]


def _given_before(tx: Transaction, request: ClaimRequest) -> list[Lease] | None:
    """What a claim with this request id was given, as far as it is still held; None if it was given nothing."""
    if request.request_id is None or not request.look_up:
        return None
    given = tx.conn.execute(_GIVEN, {"request_id": request.request_id, "worker_id": request.worker_id}).all()
    if not given:
        return None
    held = [row for row in given if row.deadline_at is not None]
    rows = rows_by_id(tx, [row.rollout_id for row in held])
    versions = _versions(tx, {row.resources_id for row in held})
    return [
        _lease(
            tx,
            rows[row.rollout_id],
            LeaseRef(rollout_id=row.rollout_id, attempt=row.number, token=row.token),
            versions.get(row.resources_id),
            row.duration,
            row.deadline_at,
        )
        for row in held
    ]


def _take(tx: Transaction, taken: Sequence[tuple[ClaimRequest, Row[Any], str | None]]) -> list[Lease]:
    if not taken:
        return []
    move(tx, [Move(row, RolloutState.RUNNING, claimed=True) for _, row, _ in taken])
    rows = rows_by_id(tx, [row.id for _, row, _ in taken])
    versions = _versions(tx, {resources_id for _, _, resources_id in taken})
    made, lease_rows, attempt_rows = [], [], []
    for request, old, resources_id in taken:
        row = rows[old.id]
        ref = LeaseRef(rollout_id=row.id, attempt=row.attempt, token=row.lease_token)
        duration = microseconds(request.lease_seconds)
        deadline = tx.now + microseconds(RolloutConfig.model_validate_json(row.config).attempt_timeout)
        lease = _lease(tx, row, ref, versions.get(resources_id), duration, deadline)
        made.append(lease)
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
                "key_hash": key_hash(lease.key),
                "request_id": request.request_id,
                "started_at": tx.now,
            }
        )
    tx.conn.execute(insert(leases), lease_rows)
    tx.conn.execute(insert(attempts), attempt_rows)
    return made


def _lease(tx: Transaction, row: Row[Any], ref: LeaseRef, pinned: Resources | None, duration: int, deadline: int) -> Lease:
    return Lease(
        ref=ref,
        rollout=records.rollout(row),
        resources=pinned,
        key=attempt_key(tx, ref),
        lease_seconds=duration / 1e6,
        timeout_seconds=max(0.0, (deadline - tx.now) / 1e6),
    )


def _versions(tx: Transaction, ids: set[str | None]) -> dict[str | None, Resources]:
    query = select(resources).where(resources.c.id.in_([resources_id for resources_id in ids if resources_id is not None]))
    return {row.id: records.resources(row, tx.now) for row in tx.conn.execute(query)}


def resolve_key(tx: Transaction, key: str) -> AttemptBinding:
    attempt = tx.conn.execute(select(attempts).where(attempts.c.key_hash == key_hash(key))).first()
    if attempt is None:
        raise NotFound("this key was never issued", "use the api_key that the runner gave to the agent")
    return _binding(tx, attempt)


def resolve_attempt(tx: Transaction, rollout_id: str, number: int) -> AttemptBinding:
    query = select(attempts).where(attempts.c.rollout_id == rollout_id, attempts.c.number == number)
    attempt = tx.conn.execute(query).first()
    if attempt is None:
        raise NotFound(f"rollout {rollout_id} has no attempt {number}")
    return _binding(tx, attempt)


def _binding(tx: Transaction, attempt: Row[Any]) -> AttemptBinding:
    held = tx.conn.execute(select(leases.c.token).where(leases.c.rollout_id == attempt.rollout_id, leases.c.token == attempt.token)).first()
    if held is None:
        raise LeaseLost(f"attempt {attempt.number} of rollout {attempt.rollout_id} has ended, and its key with it")
    row = rows_by_id(tx, [attempt.rollout_id])[attempt.rollout_id]
    return AttemptBinding(
        ref=LeaseRef(rollout_id=attempt.rollout_id, attempt=attempt.number, token=attempt.token),
        run_id=row.run_id,
        iteration=row.iteration,
        mode=Mode(row.mode),
        resources=_versions(tx, {attempt.resources_id}).get(attempt.resources_id),
    )


# -- heartbeat ---------------------------------------------------------------------------------------------------------

_HELD = select(leases).where(leases.c.rollout_id.in_(bindparam("ids", expanding=True)))
_EXTEND = update(leases).where(leases.c.rollout_id == bindparam("b_id")).values(expires_at=bindparam("b_expires_at"))
_CANCELLED = select(attempts.c.rollout_id, attempts.c.token).where(
    attempts.c.rollout_id.in_(bindparam("ids", expanding=True)), attempts.c.state == AttemptState.CANCELLED.value
)
_SEEN = update(workers).where(workers.c.id == bindparam("b_id")).values(last_seen_at=bindparam("b_now"))


def heartbeat(tx: Transaction, worker_id: str, refs: Sequence[LeaseRef], lease_seconds: float | None) -> list[Verdict]:
    tx.conn.execute(_SEEN, {"b_id": worker_id, "b_now": tx.now})
    if not refs:
        return []
    ids = [ref.rollout_id for ref in refs]
    durations = {(row.rollout_id, row.token): row.duration for row in tx.conn.execute(_HELD, {"ids": ids})}
    held = {ref: durations[ref.rollout_id, ref.token] for ref in refs if (ref.rollout_id, ref.token) in durations}
    if held:
        given = None if lease_seconds is None else microseconds(lease_seconds)
        tx.conn.execute(_EXTEND, [{"b_id": ref.rollout_id, "b_expires_at": tx.now + (given or own)} for ref, own in held.items()])
    if len(held) == len(refs):
        return [Verdict.HELD] * len(refs)
    cancelled = {(row.rollout_id, row.token) for row in tx.conn.execute(_CANCELLED, {"ids": ids})}
    return [Verdict.HELD if ref in held else Verdict.CANCEL if (ref.rollout_id, ref.token) in cancelled else Verdict.LOST for ref in refs]


# -- sweep -------------------------------------------------------------------------------------------------------------

_IS_OVERDUE = or_(leases.c.expires_at <= bindparam("now"), leases.c.deadline_at <= bindparam("now"))
_OVERDUE = select(leases.c.rollout_id).where(_IS_OVERDUE).limit(SWEEP_LIMIT)
_STILL_OVERDUE = select(leases).where(_IS_OVERDUE, leases.c.rollout_id.in_(bindparam("ids", expanding=True)))
_DUE = (
    select(rollouts)
    .where(literal_column("state = 'scheduled'"), rollouts.c.available_at <= bindparam("now"))
    .order_by(rollouts.c.available_at)
    .limit(SWEEP_LIMIT)
    .with_for_update(skip_locked=True)
)


def sweep(tx: Transaction, last: int | None, stall: int) -> bool:
    """End what nobody keeps and what ran past its deadline, queue what is due. True if there may be more to do.

    ``last``: when the last sweep was. If that is more than ``stall`` microseconds away, either way, no lease is judged by that time.
    """
    if last is not None and abs(tx.now - last) > stall:
        forgive(tx, tx.now - last)
    found = tx.conn.execute(_OVERDUE, {"now": tx.now}).scalars().all()
    rows = rows_by_id(tx, sorted(found), lock=True)
    overdue = list(tx.conn.execute(_STILL_OVERDUE, {"now": tx.now, "ids": list(rows)}))  # a beat may have come before the lock
    end(tx, [(rows[lease.rollout_id], _ending(lease)) for lease in overdue])
    due = list(tx.conn.execute(_DUE, {"now": tx.now}))
    move(tx, [Move(row, RolloutState.QUEUED) for row in due])
    return len(found) == SWEEP_LIMIT or len(due) == SWEEP_LIMIT


def _ending(lease: Row[Any]) -> Ending:
    if lease.expires_at < lease.deadline_at:
        return Ending.failed(FailureKind.LOST, f"worker {lease.worker_id} stopped beating")
    return Ending.failed(FailureKind.TIMEOUT, "the attempt ran past its attempt_timeout")


def forgive(tx: Transaction, gap: int) -> None:
    """Nobody lived through the last ``gap`` microseconds, or the clock was set back by as much (negative): every lease gets its full time
    again, and no attempt has run meanwhile. A clock that was set back takes with it whatever waits for a time."""
    tx.conn.execute(update(leases).values(expires_at=leases.c.duration + tx.now, deadline_at=leases.c.deadline_at + gap))
    if gap < 0:
        tx.conn.execute(_SCHEDULED.values(available_at=rollouts.c.available_at + gap))
        for table in (resources, runs):
            tx.conn.execute(update(table).where(table.c.alive_until.is_not(None)).values(alive_until=table.c.alive_until + gap))


_SCHEDULED = update(rollouts).where(literal_column("state = 'scheduled'"))
_SWEPT_AT = meta.c.key == "swept_at"


def exchange_swept_at(tx: Transaction) -> int | None:
    """Note a sweep of any of the stores on this database; returns when the last one was."""
    before: bytes | None = tx.conn.execute(select(meta.c.value).where(_SWEPT_AT).with_for_update()).scalar()
    now = str(tx.now).encode()
    tx.conn.execute(insert(meta).values(key="swept_at", value=now) if before is None else update(meta).where(_SWEPT_AT).values(value=now))
    return None if before is None else int(before)


def last_sign_of_life(tx: Transaction) -> int | None:
    """When somebody claimed or beat last, as far as the leases that are left can tell."""
    return tx.conn.execute(select(func.max(leases.c.expires_at - leases.c.duration))).scalar()
