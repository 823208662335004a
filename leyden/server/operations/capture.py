"""What happened in an attempt: spans, generations, rewards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, Table, bindparam, insert, select

from leyden.errors import Conflict, InvalidRequest, LeaseLost
from leyden.server import records
from leyden.server.codec import encode, pack_floats, pack_ids, redact, redact_text
from leyden.server.operations.fence import attempt_of, is_held
from leyden.server.operations.transitions import CHUNK
from leyden.server.schema import generations, rewards, rollouts, spans
from leyden.server.transaction import Transaction
from leyden.types import Generation, LeaseRef, Reward, Span

_KNOWN_SPANS = select(spans.c.trace_id, spans.c.span_id).where(
    spans.c.trace_id.in_(bindparam("traces", expanding=True)), spans.c.span_id.in_(bindparam("ids", expanding=True))
)
_KNOWN_GENERATIONS = select(generations.c.id, generations.c.rollout_id, generations.c.attempt).where(
    generations.c.id.in_(bindparam("ids", expanding=True))
)
_REWARD = select(rewards.c.value).where(
    rewards.c.rollout_id == bindparam("rollout_id"),
    rewards.c.attempt == bindparam("attempt"),
    rewards.c.name == bindparam("name"),
    rewards.c.source == bindparam("source"),
    rewards.c.position == bindparam("position"),
)


def _is_late(tx: Transaction, ref: LeaseRef) -> bool:
    """False for the holder, True for one who was. Raises ``LeaseLost`` for one who never was."""
    if is_held(tx, ref):
        return False
    attempt_of(tx, ref)
    return True


# -- spans -------------------------------------------------------------------------------------------------------------


def add_spans(tx: Transaction, ref: LeaseRef, new: Sequence[Span]) -> int:
    late = _is_late(tx, ref)
    added = 0
    for start in range(0, len(new), CHUNK):
        part = {(span.trace_id, span.span_id): span for span in new[start : start + CHUNK]}
        traces, ids = zip(*part, strict=True)
        for row in tx.conn.execute(_KNOWN_SPANS, {"traces": sorted(set(traces)), "ids": ids}):
            part.pop((row.trace_id, row.span_id), None)
        if part:
            tx.conn.execute(insert(spans), [_span_row(tx, ref, span, late) for span in part.values()])
        added += len(part)
    return added


def _span_row(tx: Transaction, ref: LeaseRef, span: Span, late: bool) -> dict[str, Any]:
    return {
        "rollout_id": ref.rollout_id,
        "attempt": ref.attempt,
        "trace_id": span.trace_id,
        "span_id": span.span_id,
        "parent_id": span.parent_id,
        "name": span.name,
        "kind": span.kind,
        "start_ns": span.start_ns,
        "end_ns": span.end_ns,
        "status": span.status,
        "attributes": redact(encode(span.attributes)),
        "events": redact(encode(span.events)),
        "late": late,
        "received_at": tx.now,
    }


def list_spans(tx: Transaction, rollout_id: str, attempt: int | None) -> list[Span]:
    query = select(spans).where(spans.c.rollout_id == rollout_id).order_by(spans.c.attempt, spans.c.start_ns, spans.c.seq)
    if attempt is not None:
        query = query.where(spans.c.attempt == attempt)
    return [records.span(row) for row in tx.conn.execute(query)]


# -- generations -------------------------------------------------------------------------------------------------------


def add_generations(tx: Transaction, ref: LeaseRef, new: Sequence[Generation]) -> None:
    late = _is_late(tx, ref)
    for item in new:
        if (item.rollout_id, item.attempt) != (ref.rollout_id, ref.attempt):
            raise InvalidRequest(f"generation {item.id} names another attempt than its lease")
    for start in range(0, len(new), CHUNK):
        part = {item.id: item for item in new[start : start + CHUNK]}
        for row in tx.conn.execute(_KNOWN_GENERATIONS, {"ids": list(part)}):
            if (row.rollout_id, row.attempt) != (ref.rollout_id, ref.attempt):
                raise Conflict(f"generation {row.id} already belongs to another attempt")
            del part[row.id]
        if part:
            tx.conn.execute(insert(generations), [_generation_row(item, late) for item in part.values()])


def _generation_row(item: Generation, late: bool) -> dict[str, Any]:
    if item.logprobs is not None and len(item.logprobs) != len(item.response_token_ids or ()):
        raise InvalidRequest(
            f"generation {item.id}: {len(item.logprobs)} logprobs for {len(item.response_token_ids or ())} response tokens"
        )
    return {
        "id": item.id,
        "call_id": item.call_id,
        "rollout_id": item.rollout_id,
        "attempt": item.attempt,
        "choice": item.choice,
        "model": item.model,
        "deployment": item.deployment,
        "checkpoint": item.checkpoint,
        "status": item.status,
        "error": redact_text(item.error),
        "prompt_token_ids": pack_ids(item.prompt_token_ids),
        "response_token_ids": pack_ids(item.response_token_ids),
        "logprobs": pack_floats(item.logprobs),
        "sampling": redact(encode(item.sampling)),
        "finish_reason": item.finish_reason,
        "prompt_tokens": item.prompt_tokens,
        "completion_tokens": item.completion_tokens,
        "request": redact(encode(item.request)),
        "response": None if item.response is None else redact(encode(item.response)),
        "started_at": item.started_at,
        "latency": item.latency,
        "late": late,
    }


def list_generations(tx: Transaction, rollout_ids: Sequence[str], attempt: int | None) -> list[Generation]:
    conditions = [generations.c.late.is_(False)] if attempt is None else []
    rows = _of_attempts(tx, generations, rollout_ids, attempt, conditions)
    return [records.generation(row) for row in sorted(rows, key=lambda row: (row.started_at, row.seq))]


# -- rewards -----------------------------------------------------------------------------------------------------------


def add_rewards(tx: Transaction, ref: LeaseRef, new: Sequence[Reward]) -> None:
    if not is_held(tx, ref):
        attempt_of(tx, ref)
        raise LeaseLost(f"attempt {ref.attempt} of rollout {ref.rollout_id} has ended: its rewards are closed")
    insert_rewards(tx, ref, new)


def insert_rewards(tx: Transaction, ref: LeaseRef, new: Sequence[Reward]) -> None:
    """The caller has checked the fence."""
    for reward in new:
        if not _is_stored(tx, ref, reward):
            tx.conn.execute(insert(rewards), {**_reward_key(ref, reward), "value": reward.value, "created_at": tx.now})


def check_rewards_stored(tx: Transaction, ref: LeaseRef, given: Sequence[Reward]) -> None:
    """For a repeated ending: ``given`` must be what it ended with. Raises ``Conflict`` otherwise."""
    for reward in given:
        if not _is_stored(tx, ref, reward):
            raise Conflict(f"attempt {ref.attempt} of rollout {ref.rollout_id} has ended without reward {reward.name!r}")


def _is_stored(tx: Transaction, ref: LeaseRef, reward: Reward) -> bool:
    stored = tx.conn.execute(_REWARD, _reward_key(ref, reward)).scalar()
    if stored is not None and stored != reward.value:
        raise Conflict(
            f"reward {reward.name!r} of {reward.source} at {reward.position} is already {stored}, not {reward.value}",
            "a reward counts once: give a second one another name, source or position",
        )
    return stored is not None


def _reward_key(ref: LeaseRef, reward: Reward) -> dict[str, Any]:
    return {
        "rollout_id": ref.rollout_id,
        "attempt": ref.attempt,
        "name": reward.name,
        "source": reward.source,
        "position": reward.position,
    }


def list_rewards(tx: Transaction, rollout_ids: Sequence[str], attempt: int | None) -> list[Reward]:
    rows = _of_attempts(tx, rewards, rollout_ids, attempt, [])
    return [records.reward(row) for row in sorted(rows, key=lambda row: row.seq)]


def _of_attempts(
    tx: Transaction, table: Table, rollout_ids: Sequence[str], attempt: int | None, conditions: Sequence[ColumnElement[bool]]
) -> list[Row[Any]]:
    """Rows of ``table`` of the given attempt, or of each rollout's latest."""
    query = select(table).where(*conditions)
    if attempt is None:
        query = query.join(rollouts, (rollouts.c.id == table.c.rollout_id) & (rollouts.c.attempt == table.c.attempt))
    else:
        query = query.where(table.c.attempt == attempt)
    ids = list(dict.fromkeys(rollout_ids))
    rows: list[Row[Any]] = []
    for start in range(0, len(ids), CHUNK):
        rows.extend(tx.conn.execute(query.where(table.c.rollout_id.in_(ids[start : start + CHUNK]))))
    return rows
