"""What spans, generations and rewards have in common: they belong to attempts, in time or late."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, String, Table, bindparam, select

from leyden.server.operations.fence import attempt_of, is_held, lease_of_key
from leyden.server.operations.transitions import CHUNK
from leyden.server.schema import attempts, leases, rollouts
from leyden.server.transaction import Transaction
from leyden.types import LeaseRef

# Kept from being deleted until the transaction ends: what is stored under an attempt is pruned with it.
_ATTEMPTS = (
    select(attempts.c.rollout_id, attempts.c.number)
    .where(attempts.c.rollout_id.in_(bindparam("ids", expanding=True)))
    .order_by(attempts.c.rollout_id, attempts.c.number)
    .with_for_update(read=True, key_share=True)
)
_LEASES = (
    select(leases.c.rollout_id, leases.c.attempt)
    .where(leases.c.rollout_id.in_(bindparam("ids", expanding=True)))
    .order_by(leases.c.rollout_id)
    .with_for_update(read=True, key_share=True)
)
_ISSUED = select(attempts.c.token).where(
    attempts.c.rollout_id == bindparam("rollout_id"), attempts.c.number == bindparam("attempt"), attempts.c.token == bindparam("token")
)
# Ids as plain text: a type of our own would be looked up anew for each of them.
_HOLDERS = (
    select(rollouts.c.id, rollouts.c.run_id, rollouts.c.iteration, rollouts.c.mode, leases.c.attempt, leases.c.token)
    .join(leases, leases.c.rollout_id == rollouts.c.id)
    .where(leases.c.rollout_id.in_(bindparam("ids", expanding=True, type_=String())))
    .order_by(leases.c.rollout_id)
    .with_for_update(read=True, key_share=True, of=leases)
)


def is_late(tx: Transaction, ref: LeaseRef) -> bool:
    """False for the holder, True for one who was. Raises ``LeaseLost`` for one who never was."""
    if is_held(tx, ref):
        return False
    tx.conn.execute(_ATTEMPTS, {"ids": [ref.rollout_id]})
    attempt_of(tx, ref)
    return True


def holders(tx: Transaction, refs: Collection[LeaseRef]) -> dict[LeaseRef, Row[Any]]:
    """Those that hold their leases, with ``id``, ``run_id``, ``iteration`` and ``mode`` of their rollouts."""
    ids = sorted({ref.rollout_id for ref in refs})
    found: dict[tuple[str, int, int], Any] = {}
    for start in range(0, len(ids), CHUNK):
        for row in tx.conn.execute(_HOLDERS, {"ids": ids[start : start + CHUNK]}).all():
            found[row.id, row.attempt, row.token] = row
    held = ((ref, found.get((ref.rollout_id, ref.attempt, ref.token))) for ref in refs)
    return {ref: row for ref, row in held if row is not None}


def late_by_attempt(tx: Transaction, rollout_ids: Sequence[str]) -> dict[tuple[str, int], bool]:
    """Every attempt of these rollouts, and whether it has ended."""
    found: dict[tuple[str, int], bool] = {}
    ids = sorted(rollout_ids)
    for start in range(0, len(ids), CHUNK):
        part = {"ids": ids[start : start + CHUNK]}
        held = {(row.rollout_id, row.attempt) for row in tx.conn.execute(_LEASES, part)}
        found.update(((row.rollout_id, row.number), (row.rollout_id, row.number) not in held) for row in tx.conn.execute(_ATTEMPTS, part))
    return found


def attempt_of_key(tx: Transaction, key: str) -> tuple[str, int] | None:
    ref = lease_of_key(tx, key)
    if ref is None or tx.conn.execute(_ISSUED, ref.model_dump()).first() is None:
        return None
    return ref.rollout_id, ref.attempt


def rows_of_attempts(
    tx: Transaction, table: Table, rollout_ids: Sequence[str], attempt: int | None, conditions: Sequence[ColumnElement[bool]] = ()
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
