"""Leases: what their keys stand for, how heartbeats keep them, how they are swept when nobody does. Claims make them (``claims``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, bindparam, func, insert, literal_column, or_, select, update

from leyden.errors import LeaseLost, NotFound
from leyden.server import records
from leyden.server.clock import microseconds
from leyden.server.operations.attempts import Ending, end
from leyden.server.operations.fence import lease_of_key
from leyden.server.operations.transitions import Move, rows_by_id
from leyden.server.records import rollout_rows
from leyden.server.schema import attempts, leases, meta, resources, rollouts, runs, workers
from leyden.server.transaction import Transaction
from leyden.types import AttemptBinding, AttemptState, FailureKind, LeaseRef, Mode, RolloutState, Verdict

DEFAULT_LEASE = 60.0  # seconds
SET_BACK = microseconds(60)  # by less than this a transaction may lag behind another store's, which had waited for a lock
SWEEP_LIMIT = 500  # rows of each kind in one sweep, so that a large one never holds the writer for long


# -- keys --------------------------------------------------------------------------------------------------------------


# In one statement, made once: proxies ask it for each attempt every few seconds.
_BINDING = (
    select(
        attempts.c.rollout_id, attempts.c.number, attempts.c.token, leases.c.token.label("held"),
        rollouts.c.run_id, rollouts.c.iteration, rollouts.c.mode, *resources.c,
    )
    .join(rollouts, rollouts.c.id == attempts.c.rollout_id)
    .outerjoin(leases, (leases.c.rollout_id == attempts.c.rollout_id) & (leases.c.token == attempts.c.token))
    .outerjoin(resources, resources.c.id == attempts.c.resources_id)
)  # fmt: skip
_OF_NAME = _BINDING.where(attempts.c.rollout_id == bindparam("rollout_id"), attempts.c.number == bindparam("number"))


def resolve_key(tx: Transaction, key: str) -> AttemptBinding:
    ref = lease_of_key(tx, key)
    row = None if ref is None else tx.conn.execute(_OF_NAME, {"rollout_id": ref.rollout_id, "number": ref.attempt}).first()
    if ref is None or row is None or row.token != ref.token:
        raise NotFound("this key was never issued", "use the api_key that the runner gave to the agent")
    return _binding(tx, row)


def resolve_attempt(tx: Transaction, rollout_id: str, number: int) -> AttemptBinding:
    row = tx.conn.execute(_OF_NAME, {"rollout_id": rollout_id, "number": number}).first()
    if row is None:
        raise NotFound(f"rollout {rollout_id} has no attempt {number}")
    return _binding(tx, row)


def _binding(tx: Transaction, row: Row[Any]) -> AttemptBinding:
    if row.held is None:
        raise LeaseLost(f"attempt {row.number} of rollout {row.rollout_id} has ended, and its key with it")
    return AttemptBinding(
        ref=LeaseRef(rollout_id=row.rollout_id, attempt=row.number, token=row.token),
        run_id=row.run_id,
        iteration=row.iteration,
        mode=Mode(row.mode),
        resources=None if row.id is None else records.resources(row, tx.now),
    )


# -- heartbeat ---------------------------------------------------------------------------------------------------------

_HELD = (  # locked in order: beats of two workers, or a beat and an ending, never wait for each other in a circle
    select(leases)
    .where(leases.c.rollout_id.in_(bindparam("ids", expanding=True)))
    .order_by(leases.c.rollout_id)
    .with_for_update(key_share=True)
)
_EXTEND = (
    update(leases)
    .where(leases.c.rollout_id == bindparam("b_id"))
    .values(expires_at=bindparam("b_expires_at"), duration=bindparam("b_duration"))  # so their difference is when it was last heard of
)
_CANCELLED = select(attempts.c.rollout_id, attempts.c.token).where(
    attempts.c.rollout_id.in_(bindparam("ids", expanding=True)), attempts.c.state == AttemptState.CANCELLED.value
)
_SEEN = update(workers).where(workers.c.id == bindparam("b_id")).values(last_seen_at=bindparam("b_now"))


def heartbeat(tx: Transaction, worker_id: str, refs: Sequence[LeaseRef], lease_seconds: float | None) -> list[Verdict]:
    verdicts = _extend(tx, refs, lease_seconds) if refs else []
    tx.conn.execute(_SEEN, {"b_id": worker_id, "b_now": tx.now})
    return verdicts


def _extend(tx: Transaction, refs: Sequence[LeaseRef], lease_seconds: float | None) -> list[Verdict]:
    ids = [ref.rollout_id for ref in refs]
    durations = {(row.rollout_id, row.token): row.duration for row in tx.conn.execute(_HELD, {"ids": ids})}
    held = {ref: durations[ref.rollout_id, ref.token] for ref in refs if (ref.rollout_id, ref.token) in durations}
    if held:
        given = None if lease_seconds is None else microseconds(lease_seconds)
        lasting = {ref.rollout_id: given or own for ref, own in held.items()}
        tx.conn.execute(_EXTEND, [{"b_id": key, "b_expires_at": tx.now + n, "b_duration": n} for key, n in lasting.items()])
    if len(held) == len(refs):
        return [Verdict.HELD] * len(refs)
    cancelled = {(row.rollout_id, row.token) for row in tx.conn.execute(_CANCELLED, {"ids": ids})}
    return [Verdict.HELD if ref in held else Verdict.CANCEL if (ref.rollout_id, ref.token) in cancelled else Verdict.LOST for ref in refs]


# -- sweep -------------------------------------------------------------------------------------------------------------

_IS_OVERDUE = or_(leases.c.expires_at <= bindparam("now"), leases.c.deadline_at <= bindparam("now"))
_OVERDUE = select(leases.c.rollout_id).where(_IS_OVERDUE).limit(SWEEP_LIMIT)
_STILL_OVERDUE = (
    select(leases)
    .where(_IS_OVERDUE, leases.c.rollout_id.in_(bindparam("ids", expanding=True)))
    .order_by(leases.c.rollout_id)
    .with_for_update()  # a beat that was answered "held" is not passed over
)
_DUE = (
    select(rollouts)
    .where(rollouts.c.available_at <= bindparam("now"))  # only a scheduled one has such a time: naming the state leads planners astray
    .order_by(rollouts.c.available_at)
    .limit(SWEEP_LIMIT)
    .with_for_update(skip_locked=True)
)


def sweep(tx: Transaction, last: int | None, stall: int) -> bool:
    """End what nobody keeps and what ran past its deadline, queue what is due. True if there may be more to do.

    ``last``: when the last sweep was. If that is more than ``stall`` microseconds ago, or ahead as only a clock that was set can be, no
    lease is judged by that time.
    """
    if last is not None and (tx.now - last > stall or last - tx.now > SET_BACK):
        forgive(tx, tx.now - last)
    found = tx.conn.execute(_OVERDUE, {"now": tx.now}).scalars().all()
    rows = rows_by_id(tx, sorted(found), lock=True)
    overdue = list(tx.conn.execute(_STILL_OVERDUE, {"now": tx.now, "ids": list(rows)})) if rows else []
    due = rollout_rows(tx.conn.execute(_DUE, {"now": tx.now}))
    if overdue or due:  # nearly always there is nothing
        end(tx, [(rows[lease.rollout_id], _ending(lease)) for lease in overdue], [Move(row, RolloutState.QUEUED) for row in due])
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
    latest = tx.now if before is None or int(before) - tx.now > SET_BACK else max(tx.now, int(before))
    now = str(latest).encode()
    tx.conn.execute(insert(meta).values(key="swept_at", value=now) if before is None else update(meta).where(_SWEPT_AT).values(value=now))
    return None if before is None else int(before)


def last_sign_of_life(tx: Transaction) -> int | None:
    """When somebody claimed or beat last, as far as the leases that are left can tell."""
    return tx.conn.execute(select(func.max(leases.c.expires_at - leases.c.duration))).scalar()
