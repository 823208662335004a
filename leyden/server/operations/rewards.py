"""Rewards: numbers about an attempt, each of which counts once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, insert, select

from leyden.errors import Conflict, InvalidRequest, LeaseLost, NotFound
from leyden.server import records
from leyden.server.bulk import Bulk
from leyden.server.operations.captured import late_by_attempt, rows_of_attempts
from leyden.server.operations.fence import attempt_of, is_held
from leyden.server.operations.transitions import CHUNK
from leyden.server.schema import rewards
from leyden.server.transaction import Transaction
from leyden.types import LeaseRef, Reward

_NEW = Bulk(insert(rewards))
_REWARDS = select(rewards.c.name, rewards.c.source, rewards.c.position, rewards.c.value).where(
    rewards.c.rollout_id == bindparam("rollout_id"), rewards.c.attempt == bindparam("attempt")
)


def add_rewards(tx: Transaction, ref: LeaseRef, new: Sequence[Reward]) -> None:
    if not is_held(tx, ref):
        attempt_of(tx, ref)
        raise LeaseLost(f"attempt {ref.attempt} of rollout {ref.rollout_id} has ended: its rewards are closed")
    insert_rewards(tx, ref, new)


def insert_rewards(tx: Transaction, ref: LeaseRef, new: Sequence[Reward]) -> None:
    """The caller has checked the fence."""
    rows = []
    stored = _stored(tx, ref) if new else {}
    for reward in new:
        if not _is_among(stored, reward):
            rows.append({**_reward_key(ref, reward), "value": reward.value, "created_at": tx.now})
            stored[reward.name, reward.source, reward.position] = reward.value
    _NEW.run(tx, rows)


def add_scores(tx: Transaction, rollout_id: str, attempt: int, new: Sequence[Reward]) -> None:
    """The attempt's agent has had its say; others may still have theirs, without a lease."""
    if any(reward.source == Reward.model_fields["source"].default for reward in new):
        raise InvalidRequest('rewards: source "agent" is the attempt\'s own', "name who scored it, such as a verifier's digest")
    ended = late_by_attempt(tx, [rollout_id]).get((rollout_id, attempt))
    if ended is None:
        raise NotFound(f"rollout {rollout_id} has no attempt {attempt}")
    if not ended:
        raise Conflict(f"attempt {attempt} of rollout {rollout_id} has not ended", "its holder gives rewards until it has")
    insert_rewards(tx, LeaseRef(rollout_id=rollout_id, attempt=attempt, token=0), new)


def insert_for_many(tx: Transaction, given: Sequence[tuple[LeaseRef, Sequence[Reward]]]) -> None:
    """The same for many attempts at once."""
    ids = sorted({ref.rollout_id for ref, new in given if new})
    known: set[tuple[str, int]] = set()  # attempts that have some already
    for start in range(0, len(ids), CHUNK):
        query = select(rewards.c.rollout_id, rewards.c.attempt).where(rewards.c.rollout_id.in_(ids[start : start + CHUNK]))
        known.update((row.rollout_id, row.attempt) for row in tx.conn.execute(query))
    rows = []
    for ref, new in given:
        if (ref.rollout_id, ref.attempt) in known or len({(item.name, item.source, item.position) for item in new}) < len(new):
            insert_rewards(tx, ref, new)
        else:
            rows += [{**_reward_key(ref, item), "value": item.value, "created_at": tx.now} for item in new]
    _NEW.run(tx, rows)


def check_rewards_stored(tx: Transaction, ref: LeaseRef, given: Sequence[Reward]) -> None:
    """For a repeated ending: ``given`` must be what it ended with. Raises ``Conflict`` otherwise."""
    stored = _stored(tx, ref) if given else {}
    for reward in given:
        if not _is_among(stored, reward):
            raise Conflict(f"attempt {ref.attempt} of rollout {ref.rollout_id} has ended without reward {reward.name!r}")


def _stored(tx: Transaction, ref: LeaseRef) -> dict[tuple[str, str, str], float]:
    """(name, source, position) → value: all rewards of the attempt."""
    rows = tx.conn.execute(_REWARDS, {"rollout_id": ref.rollout_id, "attempt": ref.attempt})
    return {(row.name, row.source, row.position): row.value for row in rows}


def _is_among(stored: Mapping[tuple[str, str, str], float], reward: Reward) -> bool:
    value = stored.get((reward.name, reward.source, reward.position))
    if value is not None and value != reward.value:
        raise Conflict(
            f"reward {reward.name!r} of {reward.source} at {reward.position} is already {value}, not {reward.value}",
            "a reward counts once: give a second one another name, source or position",
        )
    return value is not None


def _reward_key(ref: LeaseRef, reward: Reward) -> dict[str, Any]:
    return {
        "rollout_id": ref.rollout_id,
        "attempt": ref.attempt,
        "name": reward.name,
        "source": reward.source,
        "position": reward.position,
    }


def list_rewards(tx: Transaction, rollout_ids: Sequence[str], attempt: int | None) -> list[Reward]:
    rows = rows_of_attempts(tx, rewards, rollout_ids, attempt)
    return [records.reward(row) for row in sorted(rows, key=lambda row: row.seq)]
