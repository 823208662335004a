"""How attempts end. Every ending, whoever asks for it, goes through ``end``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy import bindparam, delete, select, update

from leyden.errors import LeaseLost
from leyden.server.bulk import Bulk
from leyden.server.clock import microseconds
from leyden.server.codec import clean_text, redact_text
from leyden.server.interface import AttemptEnd
from leyden.server.operations import queues
from leyden.server.operations import rewards as reward_ops
from leyden.server.operations import spans as span_ops
from leyden.server.operations.fence import attempt_of, leases_of, lock_held
from leyden.server.operations.transitions import CHUNK, Move, move, rollouts_by_id, rows_by_id
from leyden.server.records import RolloutRow, failure_kind, rollout_config
from leyden.server.rows import Batch
from leyden.server.schema import attempts, leases, rollouts
from leyden.server.transaction import Transaction
from leyden.types import AttemptState, FailureKind, LeaseRef, Reward, Rollout, RolloutState

MAX_RETRY_DELAY = 3600.0  # seconds
MAX_ERROR = 10_000  # characters kept of an error's text

_STATE_OF_FAILURE = {
    FailureKind.TIMEOUT: AttemptState.TIMED_OUT,
    FailureKind.LOST: AttemptState.LOST,
    FailureKind.CANCELLED: AttemptState.CANCELLED,
}


@dataclass(frozen=True)
class Ending:
    state: AttemptState
    failure: FailureKind | None = None
    error: str | None = None
    delay: float = field(default=0.0, compare=False)  # seconds until a released one is queued again

    @classmethod
    def failed(cls, failure: FailureKind, error: str | None) -> Ending:
        text = None if error is None else redact_text(clean_text(error)[:MAX_ERROR])
        return cls(_STATE_OF_FAILURE.get(failure, AttemptState.FAILED), failure, text)


SUCCEEDED = Ending(AttemptState.SUCCEEDED)


@dataclass(frozen=True)
class Report:
    """What one request says of attempts that have ended; ``spans`` are those of all of them, each with its attempt's name."""

    ends: tuple[AttemptEnd, ...]
    spans: Batch


_END_ATTEMPT = Bulk(
    update(attempts)
    .where(attempts.c.rollout_id == bindparam("b_id"), attempts.c.number == bindparam("b_number"))
    .values(state=bindparam("b_state"), failure=bindparam("b_failure"), error=bindparam("b_error"), ended_at=bindparam("b_ended_at"))
)
_DROP_LEASE = Bulk(delete(leases).where(leases.c.rollout_id == bindparam("b_id")))


def complete(tx: Transaction, ref: LeaseRef, rewards: Sequence[Reward]) -> Rollout:
    row = lock_held(tx, ref)
    if row is not None:
        reward_ops.insert_rewards(tx, ref, rewards)
        return _end_one(tx, row, SUCCEEDED)
    _check_repeated(tx, ref, SUCCEEDED)
    reward_ops.check_rewards_stored(tx, ref, rewards)
    return rollouts_by_id(tx, [ref.rollout_id])[0]


def end_many(tx: Transaction, ends: Sequence[AttemptEnd], spans: Batch) -> list[RolloutState | None]:
    """See ``LocalStore.end_many``. ``spans`` are those of all ``ends``, each with its attempt's name."""
    refs = {end.ref.rollout_id: end.ref for end in ends}
    rows = rows_by_id(tx, list(refs), lock=True)
    held = {(rollout_id, number, token) for rollout_id, number, token in leases_of(tx, sorted(rows))}
    ours = [step for step in ends if _as_row(step.ref) in held]
    names = {(step.ref.rollout_id, step.ref.attempt) for step in ours}
    rows_of_spans = [{**row, "late": False} for row in spans.rows if (row["rollout_id"], row["attempt"]) in names]
    span_ops.insert_spans(tx, rows_of_spans, spans)
    reward_ops.insert_for_many(tx, [(step.ref, step.rewards) for step in ours])
    became = end(tx, [(rows[step.ref.rollout_id], _ending(step)) for step in ours])
    return [became[step.ref.rollout_id] if _as_row(step.ref) in held else None for step in ends]


def end_each(tx: Transaction, reports: Sequence[Report]) -> None:
    """See ``Store.end_attempts``. Raises for all of them what one of them meets: each is to be tried alone then."""
    first: dict[LeaseRef, AttemptEnd] = {}
    said_before: list[AttemptEnd] = []
    for step in [step for report in reports for step in report.ends]:
        if first.setdefault(step.ref, step) is not step:
            said_before.append(step)
    spans = Batch.joined([report.spans for report in reports])
    became = end_many(tx, list(first.values()), spans)
    lost = [step for step, state in zip(first.values(), became, strict=True) if state is None]
    for step in [*lost, *said_before]:
        _check_repeated(tx, step.ref, _ending(step))
        if step.failure is None:
            reward_ops.check_rewards_stored(tx, step.ref, step.rewards)
    names = {(step.ref.rollout_id, step.ref.attempt) for step in lost}  # ended like this before: perhaps by others, without these spans
    late = [{**row, "late": True} for row in spans.rows if (row["rollout_id"], row["attempt"]) in names]
    span_ops.insert_spans(tx, late, spans)


def _ending(step: AttemptEnd) -> Ending:
    return SUCCEEDED if step.failure is None else Ending.failed(step.failure, step.error)


def _as_row(ref: LeaseRef) -> tuple[str, int, int]:
    return ref.rollout_id, ref.attempt, ref.token


def fail(tx: Transaction, ref: LeaseRef, failure: FailureKind, error: str | None) -> Rollout:
    return _end_held(tx, ref, Ending.failed(failure, error))


def release(tx: Transaction, ref: LeaseRef, delay: float) -> Rollout:
    return _end_held(tx, ref, Ending(AttemptState.RELEASED, delay=delay))


def cancel(tx: Transaction, rollout_ids: Sequence[str]) -> int:
    """Returns how many became cancelled. Those that do not exist any more are passed over."""
    rows = rows_by_id(tx, rollout_ids, lock=True).values()
    live = [row for row in rows if not RolloutState(row.state).final]
    running = [row for row in live if row.state == RolloutState.RUNNING]
    waiting = [row for row in live if row.state != RolloutState.RUNNING]
    moves = [Move(row, RolloutState.CANCELLED, failure=FailureKind.CANCELLED) for row in waiting]
    end(tx, [(row, Ending.failed(FailureKind.CANCELLED, None)) for row in running], moves)
    return len(live)


def cancel_matching(tx: Transaction, run_id: str | None, group: str | None, after: int) -> tuple[int, int | None]:
    """Cancel the next ``CHUNK`` of a run, of a group, or of what is in both. Returns how many became cancelled and, if there may be more,
    where to go on."""
    query = select(rollouts.c.id, rollouts.c.seq).where(rollouts.c.finished_at.is_(None), rollouts.c.seq > after)
    for column, value in ((rollouts.c.run_id, run_id), (rollouts.c.group_key, group)):
        if value is not None:
            query = query.where(column == value)
    found = tx.conn.execute(query.order_by(rollouts.c.seq).limit(CHUNK)).all()
    cancelled = cancel(tx, [row.id for row in found])
    return cancelled, found[-1].seq if len(found) == CHUNK else None


def end(tx: Transaction, endings: Sequence[tuple[RolloutRow, Ending]], moves: Sequence[Move] = ()) -> dict[str, RolloutState]:
    """End the running attempt of each rollout row: the attempt is marked, the lease is gone, the rollout moves on. ``moves`` are made with
    them, so that all are counted at once, in one order. Returns what the rollouts became."""
    endings = sorted(endings, key=lambda ending: ending[0].id)
    if endings:
        _END_ATTEMPT.run(
            tx,
            [
                {
                    "b_id": row.id,
                    "b_number": row.attempt,
                    "b_state": ending.state.value,
                    "b_failure": ending.failure and ending.failure.value,
                    "b_error": ending.error,
                    "b_ended_at": tx.now,
                }
                for row, ending in endings
            ],
        )
        _DROP_LEASE.run(tx, [{"b_id": row.id} for row, _ in endings])
        for _, ending in endings:
            tx.changes.count("ended", ending.state)
    moves = [*(_next_move(tx, row, ending) for row, ending in endings), *moves]
    move(tx, moves)
    if endings and not tx.changes.work:
        tx.changes.work = queues.has_limit(tx, {row.queue for row, _ in endings})
    return {step.row.id: step.to for step in moves}


def _next_move(tx: Transaction, row: RolloutRow, ending: Ending) -> Move:
    if ending.state is AttemptState.SUCCEEDED:
        return Move(row, RolloutState.SUCCEEDED)
    if ending.state is AttemptState.RELEASED:
        return _after(tx, microseconds(ending.delay), Move(row, RolloutState.QUEUED, released=True))
    if ending.failure is FailureKind.CANCELLED:
        return Move(row, RolloutState.CANCELLED, failure=ending.failure, error=ending.error)
    return _retry(tx, row, ending)


def _retry(tx: Transaction, row: RolloutRow, ending: Ending) -> Move:
    """After a failure: another try, or none. Losses have a budget of their own: they say nothing about the agent."""
    assert ending.failure is not None
    config = rollout_config(row.config)
    lost = ending.failure is FailureKind.LOST
    tally, budget = (row.lost + 1, config.max_lost) if lost else (row.failures + 1, config.max_attempts)
    if ending.failure not in config.retry_on or tally >= budget:
        return Move(row, RolloutState.FAILED, failed=not lost, lost=lost, failure=ending.failure, error=ending.error)
    usual = 0.0 if lost else config.retry_delay  # a lost one has waited for the whole lease already
    longest = min(config.retry_delays.get(ending.failure, usual) * 2 ** (tally - 1), MAX_RETRY_DELAY)
    return _after(tx, microseconds(tx.jitter() * longest), Move(row, RolloutState.QUEUED, failed=not lost, lost=lost))


def _after(tx: Transaction, delay: int, again: Move) -> Move:
    return again if delay == 0 else replace(again, to=RolloutState.SCHEDULED, available_at=tx.now + delay)


def _end_held(tx: Transaction, ref: LeaseRef, ending: Ending) -> Rollout:
    row = lock_held(tx, ref)
    if row is not None:
        return _end_one(tx, row, ending)
    _check_repeated(tx, ref, ending)
    return rollouts_by_id(tx, [ref.rollout_id])[0]


def _end_one(tx: Transaction, row: RolloutRow, ending: Ending) -> Rollout:
    end(tx, [(row, ending)])
    return rollouts_by_id(tx, [row.id])[0]


def _check_repeated(tx: Transaction, ref: LeaseRef, ending: Ending) -> None:
    """Pass if the holder of ``ref`` has ended its attempt in this very way before. Raises ``LeaseLost`` otherwise."""
    row = attempt_of(tx, ref)
    was = Ending(AttemptState(row.state), failure_kind(row.failure), row.error)
    if was == ending or (was.state is ending.state is AttemptState.CANCELLED):
        return
    raise LeaseLost(f"attempt {ref.attempt} of rollout {ref.rollout_id} has already ended: {was.state}")
