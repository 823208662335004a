"""Queueing rollouts and reading them back."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, insert, select, update

from leyden.errors import Conflict, InvalidRequest, NotFound
from leyden.server import records
from leyden.server.codec import digest, encode
from leyden.server.operations import counters
from leyden.server.operations.counters import NONE, Bucket
from leyden.server.operations.resources import alive_ids
from leyden.server.operations.transitions import CHUNK, rollouts_by_id, rows_by_id
from leyden.server.schema import attempts, resources, rollouts
from leyden.server.transaction import Transaction
from leyden.types import Attempt, Mode, NewRollout, Rollout, RolloutState

MAX_LIST = 10_000

_BY_KEY = select(rollouts.c.id, rollouts.c.idempotency_key, rollouts.c.request_hash).where(
    rollouts.c.idempotency_key.in_(bindparam("keys", expanding=True))
)
_FINAL = [state.value for state in RolloutState if state.final]
_MOVE_TO = (
    update(rollouts)
    .where(
        rollouts.c.id == bindparam("b_id"), rollouts.c.finished_at.is_(None), rollouts.c.resources_id.is_distinct_from(bindparam("b_to"))
    )
    .values(resources_id=bindparam("b_to"))
)


def enqueue(tx: Transaction, new: Sequence[NewRollout]) -> list[Rollout]:
    """Queue all or none; see ``Store.enqueue``."""
    _check_resources(tx, {item.resources_id for item in new if item.resources_id is not None})
    known = _by_key(tx, [item.idempotency_key for item in new if item.idempotency_key is not None])
    ids: list[str] = []
    rows: list[dict[str, Any]] = []
    named: dict[str, str | None] = {}
    for item in new:
        request_hash = digest(encode(item.model_copy(update={"idempotency_key": None, "resources_id": None})))
        used = known.get(item.idempotency_key) if item.idempotency_key is not None else None
        if used is not None:
            rollout_id, first_hash = used
            if first_hash != request_hash:
                raise Conflict(f"idempotency key {item.idempotency_key!r} already queued a different rollout", "use a key of its own")
            named[rollout_id] = item.resources_id
        else:
            rollout_id = f"ro-{secrets.token_hex(10)}"
            rows.append(_row(tx, item, rollout_id, request_hash))
            if item.idempotency_key is not None:
                known[item.idempotency_key] = rollout_id, request_hash
        ids.append(rollout_id)
    if rows:
        tx.conn.execute(insert(rollouts), rows)
        added = Counter(
            (Bucket.named(row["run_id"], row["iteration"], row["mode"], row["queue"]), RolloutState.QUEUED, NONE) for row in rows
        )
        counters.shift(tx, added)
        tx.changes.work = True
    _move_to(tx, named)
    return rollouts_by_id(tx, ids)


def _move_to(tx: Transaction, named: Mapping[str, str | None]) -> None:
    """Let rollouts that are not final use other resources from their next claim on. Dead ones are no place to go: a request that came late
    would move a rollout back to those."""
    if not named:
        return
    alive = set(tx.conn.execute(alive_ids(), {"now": tx.now}).scalars()) if any(named.values()) else set()
    moves = [{"b_id": rollout_id, "b_to": to} for rollout_id, to in named.items() if to is None or to in alive]
    if moves:
        tx.conn.execute(_MOVE_TO, moves)
        tx.changes.work = True


def _row(tx: Transaction, item: NewRollout, rollout_id: str, request_hash: str) -> dict[str, Any]:
    return {
        "id": rollout_id,
        "state": RolloutState.QUEUED.value,
        "mode": item.mode.value,
        "queue": item.queue,
        "priority": item.priority,
        "run_id": item.run_id,
        "iteration": item.iteration,
        "resources_id": item.resources_id,
        "input": encode(item.input),
        "config": encode(item.config),
        "metadata": encode(item.metadata),
        "group_key": item.group,
        "environment_class_id": item.episode.environment_class_id,
        "episode_spec_id": item.episode.episode_spec_id,
        "episode_id": item.episode.episode_id,
        "seed": item.episode.seed,
        "attempt": 0,
        "failures": 0,
        "lost": 0,
        "released": 0,
        "revision": tx.revision,
        "lease_token": 0,
        "created_at": tx.now,
        "idempotency_key": item.idempotency_key,
        "request_hash": request_hash,
    }


def _by_key(tx: Transaction, keys: Sequence[str]) -> dict[str, tuple[str, str]]:
    known: dict[str, tuple[str, str]] = {}
    for start in range(0, len(keys), CHUNK):
        for row in tx.conn.execute(_BY_KEY, {"keys": keys[start : start + CHUNK]}):
            known[row.idempotency_key] = row.id, row.request_hash
    return known


def _check_resources(tx: Transaction, ids: set[str]) -> None:
    for resources_id in ids:
        if tx.conn.execute(select(resources.c.id).where(resources.c.id == resources_id)).first() is None:
            raise NotFound(f"resources {resources_id} do not exist", "add them before you queue rollouts for them")


def get(tx: Transaction, rollout_id: str) -> Rollout:
    row = rows_by_id(tx, [rollout_id]).get(rollout_id)
    if row is None:
        raise NotFound(f"rollout {rollout_id} does not exist")
    return records.rollout(row)


def listing(
    tx: Transaction,
    run_id: str | None,
    iteration: int | None,
    mode: Mode | None,
    state: RolloutState | None,
    ids: Sequence[str] | None,
    after: str | None,
    limit: int,
) -> list[Rollout]:
    if not 1 <= limit <= MAX_LIST:
        raise InvalidRequest(f"limit: must be between 1 and {MAX_LIST}", "page on with after=<the last id>")
    query = select(rollouts).order_by(rollouts.c.seq).limit(limit)
    for column, value in (
        (rollouts.c.run_id, run_id),
        (rollouts.c.iteration, iteration),
        (rollouts.c.mode, mode),
        (rollouts.c.state, state),
    ):
        if value is not None:
            query = query.where(column == value)
    if after is not None:
        seq = tx.conn.execute(select(rollouts.c.seq).where(rollouts.c.id == after)).scalar()
        if seq is None:
            raise NotFound(f"rollout {after} does not exist")
        query = query.where(rollouts.c.seq > seq)
    if ids is None:
        return [records.rollout(row) for row in tx.conn.execute(query)]
    found = [
        row for start in range(0, len(ids), CHUNK) for row in tx.conn.execute(query.where(rollouts.c.id.in_(ids[start : start + CHUNK])))
    ]
    return [records.rollout(row) for row in sorted(set(found), key=lambda row: row.seq)[:limit]]


def list_attempts(tx: Transaction, rollout_id: str) -> list[Attempt]:
    query = select(attempts).where(attempts.c.rollout_id == rollout_id).order_by(attempts.c.number)
    found = [records.attempt(row) for row in tx.conn.execute(query)]
    if not found:
        get(tx, rollout_id)
    return found


def final_ids(tx: Transaction, ids: Sequence[str]) -> set[str]:
    """The final ones among ``ids``. Raises ``NotFound`` for one that does not exist."""
    rows = rows_by_id(tx, ids)
    missing = next((rollout_id for rollout_id in ids if rollout_id not in rows), None)
    if missing is not None:
        raise NotFound(f"rollout {missing} does not exist")
    return {rollout_id for rollout_id, row in rows.items() if row.state in _FINAL}
