"""Queueing rollouts, again on request, and reading them back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, insert, select, update

from leyden.errors import Conflict, InvalidRequest, LeydenError, NotFound
from leyden.record import new_id
from leyden.server import records
from leyden.server.bulk import Bulk
from leyden.server.clock import microseconds
from leyden.server.codec import clean_text, decode, digest, encode
from leyden.server.operations import counters
from leyden.server.operations.counters import NONE, Bucket
from leyden.server.operations.resources import alive_ids
from leyden.server.operations.transitions import CHUNK, Move, move, rollouts_by_id, rows_by_id
from leyden.server.records import RolloutRow
from leyden.server.schema import attempts, resources, rollouts
from leyden.server.transaction import Transaction
from leyden.types import DEFAULT_QUEUE, Attempt, NewRollout, Record, Rollout, RolloutConfig, RolloutState

# A row that is found stays until the end of the transaction: it is kept from being pruned.
_BY_KEY = (
    select(rollouts.c.id, rollouts.c.idempotency_key, rollouts.c.request_hash)
    .where(rollouts.c.idempotency_key.in_(bindparam("keys", expanding=True)))
    .with_for_update(read=True, key_share=True)
)
_MOVE_TO = (
    update(rollouts)
    .where(
        rollouts.c.id == bindparam("b_id"), rollouts.c.finished_at.is_(None), rollouts.c.resources_id.is_distinct_from(bindparam("b_to"))
    )
    .values(resources_id=bindparam("b_to"), revision=bindparam("b_revision"))
)
_NEW = Bulk(insert(rollouts))
_IN_64_BITS = range(-(2**63), 2**63)


def enqueue(tx: Transaction, new: Sequence[NewRollout]) -> list[Rollout]:
    """Queue all or none; see ``Store.enqueue``."""
    missing = _missing_resources(tx, {item.resources_id for item in new if item.resources_id is not None})
    known = _by_key(tx, [clean_text(item.idempotency_key) for item in new if item.idempotency_key is not None])
    distinct = {id(item.config): item.config for item in new}  # most often one for all
    configs = {key: (encode(config), _plain(config)) for key, config in distinct.items()}
    ids: list[str] = []
    rows: list[dict[str, Any]] = []
    named: dict[str, str | None] = {}
    for position, item in enumerate(new):
        try:
            if item.resources_id in missing:
                raise NotFound(f"resources {item.resources_id} do not exist", "add them before you queue rollouts for them")
            config, told = configs[id(item.config)]
            request_hash = hash_of(item, told)
            key = None if item.idempotency_key is None else clean_text(item.idempotency_key)
            used = None if key is None else known.get(key)
            if used is not None:
                rollout_id, first_hash = used
                if first_hash != request_hash:
                    raise Conflict(f"idempotency key {key!r} already queued a different rollout", "use a key of its own")
                named[rollout_id] = item.resources_id
            else:
                rollout_id = f"ro-{new_id()}"
                rows.append(_row(tx, item, config, rollout_id, request_hash))
                if key is not None:
                    known[key] = rollout_id, request_hash
        except LeydenError as error:
            raise type(error)(f"rollouts.{position}: {error.message}", error.hint) from error
        ids.append(rollout_id)
    _move_to(tx, named)
    if rows:
        _NEW.run(tx, rows)
        tx.changes.count("enqueued", n=len(rows))
        added = Counter(
            (Bucket.named(row["run_id"], row["iteration"], row["mode"], row["queue"]), RolloutState(row["state"]), NONE) for row in rows
        )
        counters.shift(tx, added)
        tx.changes.queues |= {row["queue"] for row in rows if row["state"] == RolloutState.QUEUED}
    made = {row["id"]: records.rollout(RolloutRow(**row)) for row in rows}
    there = [rollout_id for rollout_id in dict.fromkeys(ids) if rollout_id not in made]
    made |= zip(there, rollouts_by_id(tx, there), strict=True)
    return [made[rollout_id] for rollout_id in ids]


def hash_of(item: NewRollout, config: Any = None) -> str:
    """Of what makes it another rollout than one queued under the same key. Fields that older clients did not know are left out where they
    say what those meant: they retry the keys that they queued by. ``config``: ``_plain(item.config)``, if it is known."""
    plain = {"mode": item.mode.value, "config": config or _plain(item.config), "episode": vars(item.episode)}
    fields = _without(item, {"queue": DEFAULT_QUEUE, "delay": 0.0}) | plain | {"idempotency_key": None, "resources_id": None}
    return digest(encode(fields))


def _plain(config: RolloutConfig) -> Any:
    return decode(encode(_without(config, {"max_lost": 3, "retry_delays": {}})))


def _without(record: Record, usual: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if not (name in usual and usual[name] == value)}


def requeue(tx: Transaction, rollout_ids: Sequence[str], request_id: str) -> list[Rollout]:
    """Queue final ones again, all or none, as if they had never been tried: their next attempt is a new one."""
    rows = rows_by_id(tx, rollout_ids, lock=True)
    for position, rollout_id in enumerate(rollout_ids):
        row = rows.get(rollout_id)
        if row is None:
            raise NotFound(f"rollout_ids.{position}: rollout {rollout_id} does not exist")
        if row.requeue_id != request_id and not RolloutState(row.state).final:
            raise Conflict(
                f"rollout_ids.{position}: rollout {rollout_id} is {row.state}, not final", "cancel it first, or wait until it has ended"
            )
    move(tx, [Move(row, RolloutState.QUEUED, again=request_id) for row in rows.values() if row.requeue_id != request_id])
    return rollouts_by_id(tx, rollout_ids)


def _move_to(tx: Transaction, named: Mapping[str, str | None]) -> None:
    """Let rollouts that are not final use other resources from their next claim on. Dead ones are no place to go: a request that came late
    would move a rollout back to those."""
    if not named:
        return
    alive = set(tx.conn.execute(alive_ids(), {"now": tx.now}).scalars()) if any(named.values()) else set()
    moves = [
        {"b_id": rollout_id, "b_to": to, "b_revision": tx.revision} for rollout_id, to in sorted(named.items()) if to is None or to in alive
    ]
    if moves:
        tx.conn.execute(_MOVE_TO, moves)
        tx.changes.work = True


def _row(tx: Transaction, item: NewRollout, config: bytes, rollout_id: str, request_hash: str) -> dict[str, Any]:
    for name, number in (("iteration", item.iteration), ("episode.seed", item.episode.seed)):
        if number is not None and number not in _IN_64_BITS:
            raise InvalidRequest(f"{name}: {number} is beyond 64 bits")
    delay = microseconds(item.delay)
    row = {
        "id": rollout_id,
        "state": (RolloutState.SCHEDULED if delay else RolloutState.QUEUED).value,
        "available_at": tx.now + delay if delay else None,
        "mode": item.mode.value,
        "queue": item.queue,
        "priority": item.priority,
        "run_id": item.run_id,
        "iteration": item.iteration,
        "resources_id": item.resources_id,
        "input": encode(item.input),
        "config": config,
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
        "failure": None,
        "error": None,
        "finished_at": None,
    }
    return {name: clean_text(value) if isinstance(value, str) else value for name, value in row.items()}


def _by_key(tx: Transaction, keys: Sequence[str]) -> dict[str, tuple[str, str]]:
    known: dict[str, tuple[str, str]] = {}
    for start in range(0, len(keys), CHUNK):
        for row in tx.conn.execute(_BY_KEY, {"keys": keys[start : start + CHUNK]}):
            known[row.idempotency_key] = row.id, row.request_hash
    return known


def _missing_resources(tx: Transaction, ids: set[str]) -> set[str]:
    if not ids:
        return set()
    named = select(resources.c.id).where(resources.c.id.in_(ids)).order_by(resources.c.id)
    return ids - set(tx.conn.execute(named.with_for_update(read=True, key_share=True)).scalars())  # kept from a prune until we are done


def get(tx: Transaction, rollout_id: str) -> Rollout:
    row = rows_by_id(tx, [rollout_id]).get(rollout_id)
    if row is None:
        raise NotFound(f"rollout {rollout_id} does not exist")
    return records.rollout(row)


def list_attempts(tx: Transaction, rollout_id: str) -> list[Attempt]:
    query = select(attempts).where(attempts.c.rollout_id == rollout_id).order_by(attempts.c.number)
    found = [records.attempt(row) for row in tx.conn.execute(query)]
    if not found:
        get(tx, rollout_id)
    return found


def final_ids(tx: Transaction, ids: Sequence[str]) -> set[str]:
    """The final ones among ``ids``. Raises ``NotFound`` for one that does not exist."""
    known = {row.id: row.finished_at is not None for row in _endings(tx, ids)}
    missing = next((rollout_id for rollout_id in ids if rollout_id not in known), None)
    if missing is not None:
        raise NotFound(f"rollout {missing} does not exist")
    return {rollout_id for rollout_id, final in known.items() if final}


def final_among(tx: Transaction, ids: Sequence[str]) -> set[str]:
    return {row.id for row in _endings(tx, ids) if row.finished_at is not None}


_ENDINGS = select(rollouts.c.id, rollouts.c.finished_at).where(rollouts.c.id.in_(bindparam("ids", expanding=True)))


def _endings(tx: Transaction, ids: Sequence[str]) -> Iterator[Any]:
    for start in range(0, len(ids), CHUNK):
        yield from tx.conn.execute(_ENDINGS, {"ids": ids[start : start + CHUNK]})
