"""The one place where a rollout changes its state: a table of what is allowed, compare-and-set, and final is final."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, literal_column, select, update

from leyden.errors import Conflict, NotFound
from leyden.server import records
from leyden.server.operations import counters
from leyden.server.operations.counters import NONE, Bucket
from leyden.server.records import RolloutRow, rollout_rows
from leyden.server.schema import rollouts
from leyden.server.transaction import Transaction
from leyden.types import FailureKind, Rollout, RolloutState

CHUNK = 500  # values in one IN (...); SQLite binds at most 32,766

ALLOWED: dict[RolloutState, frozenset[RolloutState]] = {
    RolloutState.QUEUED: frozenset({RolloutState.RUNNING, RolloutState.CANCELLED}),
    RolloutState.SCHEDULED: frozenset({RolloutState.QUEUED, RolloutState.CANCELLED}),
    RolloutState.RUNNING: frozenset(RolloutState) - {RolloutState.RUNNING},
    RolloutState.SUCCEEDED: frozenset(),
    RolloutState.FAILED: frozenset(),
    RolloutState.CANCELLED: frozenset(),
}


@dataclass(frozen=True)
class Move:
    """One rollout to its next state. ``available_at`` is for a scheduled one, ``failure`` and ``error`` for a final one.

    ``claimed``, ``failed``, ``lost``, ``released``: what is counted with it. ``again``: a final one is queued anew and counts from nothing.
    """

    row: RolloutRow
    to: RolloutState
    claimed: bool = False
    failed: bool = False
    lost: bool = False
    released: bool = False
    again: str | None = None  # the request that asked for it
    available_at: int | None = None
    failure: FailureKind | None = None
    error: str | None = None


# The token proves the state, so the state is not compared as well: a partial index on it would then mislead the planner.
_SET = (
    update(rollouts)
    .where(rollouts.c.id.in_(bindparam("b_ids", expanding=True)), rollouts.c.lease_token == bindparam("b_token"))
    .values(
        state=bindparam("b_state"),
        lease_token=rollouts.c.lease_token + literal_column("1"),
        attempt=bindparam("b_attempt"),
        failures=bindparam("b_failures"),
        lost=bindparam("b_lost"),
        released=bindparam("b_released"),
        requeue_id=bindparam("b_requeue_id"),
        available_at=bindparam("b_available_at"),
        failure=bindparam("b_failure"),
        error=bindparam("b_error"),
        finished_at=bindparam("b_finished_at"),
        revision=bindparam("b_revision"),
    )
)
_WAY = (
    "b_token", "b_state", "b_attempt", "b_failures", "b_lost", "b_released", "b_requeue_id", "b_available_at", "b_failure", "b_error",
    "b_finished_at", "b_revision",
)  # fmt: skip
_BY_ID = select(rollouts).where(rollouts.c.id.in_(bindparam("ids", expanding=True)))
# Of nothing to SQLite, where one transaction writes at a time.
_LOCKED_BY_ID = _BY_ID.order_by(rollouts.c.id).with_for_update(key_share=True)


def move(tx: Transaction, moves: Sequence[Move]) -> None:
    """Make all ``moves``, count them, and note whom to wake. Raises ``Conflict`` for a move the table does not allow."""
    if not moves:
        return
    deltas: Counter[tuple[Bucket, RolloutState, str]] = Counter()
    alike: defaultdict[tuple[Any, ...], list[str]] = defaultdict(list)  # thousands most often change in one and the same way
    for step in moves:
        row, before = step.row, RolloutState(step.row.state)
        if not (before.final if step.again else step.to in ALLOWED[before]):
            raise Conflict(f"rollout {row.id} is {before}: it cannot become {step.to}")
        failure = step.failure.value if step.failure and step.to.final else None
        bucket = Bucket.of(row)
        deltas[bucket, before, row.failure or NONE] -= 1
        deltas[bucket, step.to, failure or NONE] += 1
        way = (
            row.lease_token,
            step.to.value,
            row.attempt + step.claimed,
            0 if step.again else row.failures + step.failed,
            0 if step.again else row.lost + step.lost,
            0 if step.again else row.released + step.released,
            step.again or row.requeue_id,
            step.available_at,
            failure,
            step.error,
            tx.now if step.to.final else None,
            tx.revision,
        )
        alike[way].append(row.id)
        if step.to.final:
            tx.changes.finished.add(row.id)
        if step.to is RolloutState.QUEUED:
            tx.changes.queues.add(row.queue)
    changed = 0
    for way, ids in alike.items():
        for start in range(0, len(ids), CHUNK):
            changed += tx.conn.execute(_SET, {**dict(zip(_WAY, way, strict=True)), "b_ids": ids[start : start + CHUNK]}).rowcount
    if changed != len(moves):
        raise Conflict("a rollout was changed by somebody else meanwhile", "try again")
    counters.shift(tx, deltas)


def rows_by_id(tx: Transaction, ids: Sequence[str], lock: bool = False) -> dict[str, RolloutRow]:
    """The rows that exist among ``ids``. ``lock`` them before what is read of them decides over a change: rollouts are locked first and in
    order of their ids, then leases, then counters, so that transactions wait for each other but never in a circle."""
    found: dict[str, RolloutRow] = {}
    query = _LOCKED_BY_ID if lock else _BY_ID
    if lock:
        ids = sorted(ids)
    for start in range(0, len(ids), CHUNK):
        rows = tx.conn.execute(query, {"ids": ids[start : start + CHUNK]}).all()
        found.update((row.id, row) for row in rollout_rows(rows))
    return found


def rollouts_by_id(tx: Transaction, ids: Sequence[str]) -> list[Rollout]:
    """As they are now, in the order of ``ids``. Raises ``NotFound`` for one that is not there (any more)."""
    rows = rows_by_id(tx, ids)
    missing = next((rollout_id for rollout_id in ids if rollout_id not in rows), None)
    if missing is not None:
        raise NotFound(f"rollout {missing} does not exist")
    return [records.rollout(rows[rollout_id]) for rollout_id in ids]
