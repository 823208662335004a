"""Who holds what: the lease row with the very token is the proof, and nothing else is."""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Row, bindparam, select

from leyden.errors import LeaseLost, NotFound
from leyden.record import checked_before
from leyden.server.operations.transitions import CHUNK, rows_by_id
from leyden.server.records import RolloutRow
from leyden.server.schema import attempts, leases, meta
from leyden.server.transaction import Transaction
from leyden.types import LeaseRef

_LEASE = select(leases.c.token).where(
    leases.c.rollout_id == bindparam("rollout_id"), leases.c.attempt == bindparam("attempt"), leases.c.token == bindparam("token")
)
_KEPT_LEASE = _LEASE.with_for_update(read=True, key_share=True)
_LEASES = select(leases.c.rollout_id, leases.c.attempt, leases.c.token).where(leases.c.rollout_id.in_(bindparam("ids", expanding=True)))
_ATTEMPT = select(attempts).where(attempts.c.rollout_id == bindparam("rollout_id"), attempts.c.number == bindparam("attempt"))


def is_held(tx: Transaction, ref: LeaseRef) -> bool:
    """And stays so until the end of this transaction: the lease's row is kept from being deleted, while beats may change it."""
    return tx.conn.execute(_KEPT_LEASE, ref.model_dump()).first() is not None


def lock_held(tx: Transaction, ref: LeaseRef) -> RolloutRow | None:
    """The rollout's row, if ``ref`` holds it, for an operation that will change it: nobody else does until the end of this transaction."""
    row = rows_by_id(tx, [ref.rollout_id], lock=True).get(ref.rollout_id)
    return row if row is not None and tx.conn.execute(_LEASE, ref.model_dump()).first() is not None else None


def leases_of(tx: Transaction, rollout_ids: Sequence[str]) -> Iterator[Row[Any, Any, Any]]:
    """Rollout, attempt and token. Their rollouts are locked by the caller: nobody makes or ends a lease of theirs until the end of this
    transaction."""
    for start in range(0, len(rollout_ids), CHUNK):
        yield from tx.conn.execute(_LEASES, {"ids": rollout_ids[start : start + CHUNK]}).all()


def attempt_of(tx: Transaction, ref: LeaseRef) -> Row[Any]:
    """The attempt that ``ref`` was issued for, held or not. Raises ``NotFound``, or ``LeaseLost`` if it never was."""
    row = tx.conn.execute(_ATTEMPT, {"rollout_id": ref.rollout_id, "attempt": ref.attempt}).first()
    if row is None and not rows_by_id(tx, [ref.rollout_id]):
        raise NotFound(f"rollout {ref.rollout_id} does not exist")
    if row is None or row.token != ref.token:
        raise LeaseLost(f"attempt {ref.attempt} of rollout {ref.rollout_id} is not yours")
    return row


# -- keys --------------------------------------------------------------------------------------------------------------

KEY = re.compile(r"(?:(?P<rollout_id>[A-Za-z0-9_-]{1,64})\.(?P<attempt>[0-9]{1,18})\.(?P<token>[0-9]{1,18})\.)?[A-Za-z0-9_-]{43}")
NAMED_SINCE = meta.c.key == "keys_named_since"  # when the last attempt began whose key is a proof alone; not there in a newer database
_STILL_RUNNING = (
    select(leases.c.rollout_id, leases.c.attempt, leases.c.token)
    .join(attempts, (attempts.c.rollout_id == leases.c.rollout_id) & (attempts.c.number == leases.c.attempt))
    .where(attempts.c.started_at <= bindparam("at"))
)


def attempt_key(secret: bytes, ref: LeaseRef) -> str:
    """The attempt's own key. It says whose it is and proves it, so nothing of it is stored, and a repeated claim gives the same one."""
    return f"{ref.rollout_id}.{ref.attempt}.{ref.token}.{_proof(secret, ref)}"


def lease_of_key(tx: Transaction, key: str) -> LeaseRef | None:
    """The lease that ``key`` was made for, held or not. None: it was not made here."""
    if (found := KEY.fullmatch(key)) is None:
        return None
    if found["rollout_id"] is None:
        return _lease_of_proof(tx, key)
    values = {"rollout_id": found["rollout_id"], "attempt": int(found["attempt"]), "token": int(found["token"])}
    ref = checked_before(LeaseRef, values)
    return ref if hmac.compare_digest(attempt_key(tx.secret, ref), key) else None


def _lease_of_proof(tx: Transaction, key: str) -> LeaseRef | None:
    """Keys did not name their attempts before schema 6. What ran while its store was upgraded may run still."""
    since: bytes | None = tx.conn.execute(select(meta.c.value).where(NAMED_SINCE)).scalar()
    if since is None:
        return None
    running = map(LeaseRef.model_validate, tx.conn.execute(_STILL_RUNNING, {"at": int(since)}).mappings())
    return next((ref for ref in running if hmac.compare_digest(_proof(tx.secret, ref), key)), None)


def _proof(secret: bytes, ref: LeaseRef) -> str:
    message = f"{ref.rollout_id}|{ref.attempt}|{ref.token}".encode()
    return urlsafe_b64encode(hmac.digest(secret, message, hashlib.sha256)).rstrip(b"=").decode()
