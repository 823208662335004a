"""A store's tables as they are on the disk, read beside the store, and what must hold between them whoever did what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row, create_engine, select

from leyden.server import schema
from leyden.types import AttemptState, FailureKind, RolloutConfig, RolloutState

WAL_LIMIT = 80 << 20  # bytes; the store cuts its log back to 64 MiB


@dataclass
class Snapshot:
    """Rows of one moment. ``damage``: what the database itself says is broken."""

    rollouts: dict[str, Row[Any]]
    attempts: dict[tuple[str, int], Row[Any]]
    leases: dict[str, Row[Any]]
    counters: list[Row[Any]]
    spans: list[Row[Any]]
    generations: list[Row[Any]]
    rewards: list[Row[Any]]
    resources: dict[str, Row[Any]]
    queues: list[Row[Any]]
    runs: dict[str, Row[Any]]
    workers: dict[str, Row[Any]]
    blobs: set[bytes]
    blob_uses: list[Row[Any]]
    damage: list[str]

    def attempts_of(self, rollout_id: str) -> list[Row[Any]]:
        return sorted((row for (owner, _), row in self.attempts.items() if owner == rollout_id), key=lambda row: row.number)


def connect(database: str) -> Connection:
    """``database``: what the store was given, a path or a URL."""
    if "://" not in database:
        return create_engine(f"sqlite:///{database}").connect()
    return create_engine(database.replace("postgresql://", "postgresql+psycopg://", 1), isolation_level="REPEATABLE READ").connect()


def read(database: str) -> Snapshot:
    """Call it while no store has the SQLite file open; a PostgreSQL may be in use."""
    with connect(database) as conn, conn.begin():
        rows = {table.name: list(conn.execute(select(table))) for table in schema.metadata.sorted_tables if table.name != "meta"}
        damage = _damage(conn) if conn.dialect.name == "sqlite" else []
    conn.engine.dispose()
    if "://" not in database and (wal := Path(f"{database}-wal")).exists() and wal.stat().st_size > WAL_LIMIT:
        damage.append(f"I12: the write-ahead log has {wal.stat().st_size} bytes")
    return Snapshot(
        rollouts={row.id: row for row in rows["rollouts"]},
        attempts={(row.rollout_id, row.number): row for row in rows["attempts"]},
        leases={row.rollout_id: row for row in rows["leases"]},
        counters=rows["counters"],
        spans=rows["spans"],
        generations=rows["generations"],
        rewards=rows["rewards"],
        resources={row.id: row for row in rows["resources"]},
        queues=rows["queues"],
        runs={row.id: row for row in rows["runs"]},
        workers={row.id: row for row in rows["workers"]},
        blobs={bytes(row.sha256) for row in rows["blobs"]},
        blob_uses=rows["blob_uses"],
        damage=damage,
    )


def _damage(conn: Connection) -> list[str]:
    said = [str(row[0]) for row in conn.exec_driver_sql("PRAGMA integrity_check")]
    broken = [str(tuple(row)) for row in conn.exec_driver_sql("PRAGMA foreign_key_check")]
    return [f"I11: integrity_check: {line}" for line in said if line != "ok"] + [f"I11: foreign_key_check: {line}" for line in broken]


# -- what must hold between the tables -----------------------------------------------------------------------------------------


def check_tables(found: Snapshot, requeued: frozenset[str] = frozenset()) -> list[str]:
    """I5, I10 and I11 of research/store.md 3.2, as violations; empty when all hold. ``requeued``: rollouts that began anew after an end."""
    return [
        *found.damage,
        *_check_attempts(found, requeued),
        *_check_leases(found),
        *_check_counters(found),
        *_check_limits(found),
        *_check_owners(found),
        *_check_blobs(found),
    ]


def _check_attempts(found: Snapshot, requeued: frozenset[str]) -> Iterator[str]:
    by_rollout: dict[str, list[Row[Any]]] = {}
    for (rollout_id, _), row in sorted(found.attempts.items()):
        by_rollout.setdefault(rollout_id, []).append(row)
        if rollout_id not in found.rollouts:
            yield f"I11: attempt {row.number} is of rollout {rollout_id}, which does not exist"
    for rollout in found.rollouts.values():
        attempts = by_rollout.get(rollout.id, [])
        if [row.number for row in attempts] != list(range(1, rollout.attempt + 1)):
            yield f"I5: {rollout.id} is in attempt {rollout.attempt} and has {[row.number for row in attempts]}"
            continue
        tokens = [row.token for row in attempts]
        if tokens != sorted(set(tokens)) or any(token > rollout.lease_token for token in tokens):
            yield f"I2: {rollout.id}: the tokens {tokens} do not grow up to {rollout.lease_token}"
        yield from _check_counts(rollout, attempts, rollout.id in requeued)
        yield from _check_state(rollout, attempts, rollout.id in requeued)


def _check_counts(rollout: Row[Any], attempts: list[Row[Any]], requeued: bool) -> Iterator[str]:
    counted = (rollout.failures, rollout.lost, rollout.released)
    fits = [_counts_of(attempts[first:]) for first in (range(len(attempts) + 1) if requeued else (0,))]
    if counted not in fits:
        yield f"I11: {rollout.id} says failures, lost, released = {counted}, its attempts say {[row.state for row in attempts]}"
    config = RolloutConfig.model_validate_json(rollout.config)
    if rollout.failures > config.max_attempts or rollout.lost > config.max_lost:
        yield f"I5: {rollout.id} failed {rollout.failures} of {config.max_attempts} times, was lost {rollout.lost} of {config.max_lost}"


def _counts_of(attempts: list[Row[Any]]) -> tuple[int, int, int]:
    states = Counter(row.state for row in attempts)
    return states[AttemptState.FAILED] + states[AttemptState.TIMED_OUT], states[AttemptState.LOST], states[AttemptState.RELEASED]


def _check_state(rollout: Row[Any], attempts: list[Row[Any]], requeued: bool) -> Iterator[str]:
    state = RolloutState(rollout.state)
    running = [row.number for row in attempts if row.state == AttemptState.RUNNING]
    if running != ([rollout.attempt] if state is RolloutState.RUNNING else []):
        yield f"I11: {rollout.id} is {state}, and of its {rollout.attempt} attempts these run: {running}"
    if (rollout.finished_at is not None) != state.final:
        yield f"I11: {rollout.id} is {state} and finished at {rollout.finished_at}"
    succeeded = [row.number for row in attempts if row.state == AttemptState.SUCCEEDED]
    latest = succeeded[-1:] if requeued else succeeded
    if (latest == [rollout.attempt]) != (state is RolloutState.SUCCEEDED) or (latest not in ([], [rollout.attempt]) and not requeued):
        yield f"I2: {rollout.id} is {state}, and of its {rollout.attempt} attempts these succeeded: {succeeded}"
    if state is RolloutState.FAILED and attempts[-1].failure != rollout.failure:
        yield f"I11: {rollout.id} failed by {rollout.failure}, its last attempt by {attempts[-1].failure}"
    if state is RolloutState.CANCELLED and rollout.failure != FailureKind.CANCELLED:
        yield f"I11: {rollout.id} is cancelled, by {rollout.failure}"


def _check_leases(found: Snapshot) -> Iterator[str]:
    for rollout in found.rollouts.values():
        lease = found.leases.get(rollout.id)
        if (lease is not None) != (rollout.state == RolloutState.RUNNING):
            yield f"I11: {rollout.id} is {rollout.state} and has {'a' if lease else 'no'} lease"
        attempt = found.attempts.get((rollout.id, rollout.attempt))
        if lease is not None and attempt is not None:
            held = (lease.attempt, lease.token, lease.worker_id, lease.queue)
            if held != (attempt.number, attempt.token, attempt.worker_id, rollout.queue):
                yield f"I2: the lease of {rollout.id} is {held}, its attempt {(attempt.number, attempt.token, attempt.worker_id)}"
    for orphan in found.leases.keys() - found.rollouts.keys():
        yield f"I11: a lease of rollout {orphan}, which does not exist"


def _check_counters(found: Snapshot) -> Iterator[str]:
    counted: Counter[tuple[Any, ...]] = Counter()
    for row in found.rollouts.values():
        iteration = -1 if row.iteration is None else row.iteration
        failure = (row.failure or "") if RolloutState(row.state).final else ""
        counted[row.run_id or "", iteration, row.mode, row.queue, row.state, failure] += 1
    kept = {(row.run_id, row.iteration, row.mode, row.queue, row.state, row.failure): row.n for row in found.counters}
    for key in sorted(counted.keys() | {key for key, n in kept.items() if n}):
        if counted[key] != kept.get(key, 0):
            yield f"I11: the counter of {key} is {kept.get(key, 0)}, a recount gives {counted[key]}"


def _check_limits(found: Snapshot) -> Iterator[str]:
    running = Counter(lease.queue for lease in found.leases.values())
    for queue in found.queues:
        if queue.max_running is not None and running[queue.name] > queue.max_running:
            yield f"I10: {running[queue.name]} run in queue {queue.name}, which has room for {queue.max_running}"


def _check_owners(found: Snapshot) -> Iterator[str]:
    for name in ("spans", "generations", "rewards"):
        for row in getattr(found, name):
            if row.rollout_id is not None and (row.rollout_id, row.attempt) not in found.attempts:
                yield f"I11: {name} of attempt {row.attempt} of {row.rollout_id}, which does not exist"


def _check_blobs(found: Snapshot) -> Iterator[str]:
    used = {bytes(row.sha256) for row in found.blob_uses}
    if used - found.blobs:
        yield f"I11: {len(used - found.blobs)} blobs are used and not there"
    if found.blobs - used:
        yield f"I11: {len(found.blobs - used)} blobs are there and not used"
    owners = found.rollouts.keys() | {row.trace_id for row in found.spans}
    for row in found.blob_uses:
        if row.owner not in owners:
            yield f"I11: a blob is kept for {row.owner}, which does not exist"
