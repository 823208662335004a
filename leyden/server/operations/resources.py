"""Versioned resources: immutable once added, claimed for only while alive."""

from __future__ import annotations

import secrets
from typing import Any

from sqlalchemy import Row, Select, bindparam, insert, or_, select, update

from leyden.errors import Conflict, InvalidRequest, LeaseLost, NotFound
from leyden.server import records
from leyden.server.clock import microseconds
from leyden.server.codec import clean_text, digest, encode, redact, redact_text
from leyden.server.schema import resources
from leyden.server.transaction import Transaction
from leyden.types import LLM, Resource, Resources

MAX_KEY = 256  # characters of an idempotency key

_LATEST = select(resources).order_by(resources.c.version.desc()).limit(1)


def alive_ids() -> Select[Any]:
    """Ids of the versions that live at the bound ``now``."""
    return select(resources.c.id).where(
        resources.c.retired_at.is_(None), or_(resources.c.alive_until.is_(None), resources.c.alive_until > bindparam("now"))
    )


def latest_row(tx: Transaction) -> Row[Any] | None:
    return tx.conn.execute(_LATEST).first()


def versions(tx: Transaction, ids: set[str | None]) -> dict[str | None, Resources]:
    """Those that exist among ``ids``."""
    wanted = [resources_id for resources_id in ids if resources_id is not None]
    if not wanted:
        return {}
    return {row.id: records.resources(row, tx.now) for row in tx.conn.execute(select(resources).where(resources.c.id.in_(wanted)))}


def add(tx: Transaction, new: dict[str, Resource], lease_seconds: float | None, idempotency_key: str | None) -> Resources:
    for name, item in new.items():
        _check_no_secrets(name, item)
    if idempotency_key is not None and len(idempotency_key) > MAX_KEY:
        raise InvalidRequest(f"idempotency_key: at most {MAX_KEY} characters")
    body = encode(new)
    request_hash = digest(body)
    if idempotency_key is not None:
        idempotency_key = clean_text(idempotency_key)
        used = tx.conn.execute(select(resources).where(resources.c.idempotency_key == idempotency_key)).first()
        if used is not None and used.request_hash != request_hash:
            raise Conflict(f"idempotency key {idempotency_key!r} already added different resources", "use a key of its own")
        if used is not None:
            return records.resources(used, tx.now)
    resources_id = f"rs-{secrets.token_hex(8)}"
    tx.conn.execute(
        insert(resources).values(
            id=resources_id,
            body=body,
            alive_until=None if lease_seconds is None else tx.now + microseconds(lease_seconds),
            created_at=tx.now,
            idempotency_key=idempotency_key,
            request_hash=request_hash,
        )
    )
    tx.changes.work = True  # what waits for the latest version to be alive
    return get(tx, resources_id)


def _check_no_secrets(name: str, item: Resource) -> None:
    hint = "leave api_key out: the proxy reads the provider's key from its own environment"
    if isinstance(item, LLM):  # "EMPTY" and the like are none
        if item.api_key is not None and redact_text(f"Bearer {item.api_key}") != f"Bearer {item.api_key}":
            raise InvalidRequest(f"resources.{name}.api_key: the store keeps no secrets", hint)
        item = item.model_copy(update={"api_key": None})
    encoded = encode(item)
    if redact(encoded) != encoded:
        raise InvalidRequest(f"resources.{name}: the store keeps no secrets, and there is one in it", hint)


def keep(tx: Transaction, resources_id: str, lease_seconds: float) -> Resources:
    row = _row(tx, resources_id, lock=True)
    if row.retired_at is not None:
        raise LeaseLost(f"resources {resources_id} were retired")
    if row.alive_until is not None:
        tx.changes.work |= row.alive_until <= tx.now
        alive_until = max(row.alive_until, tx.now + microseconds(lease_seconds))
        tx.conn.execute(update(resources).where(resources.c.id == resources_id).values(alive_until=alive_until))
    return get(tx, resources_id)


def retire(tx: Transaction, resources_id: str) -> Resources:
    if _row(tx, resources_id, lock=True).retired_at is None:
        tx.conn.execute(update(resources).where(resources.c.id == resources_id).values(retired_at=tx.now))
    return get(tx, resources_id)


def get(tx: Transaction, resources_id: str | None) -> Resources:
    if resources_id is not None:
        return records.resources(_row(tx, resources_id), tx.now)
    row = latest_row(tx)
    if row is None:
        raise NotFound("there are no resources yet", "add some: store.add_resources({...})")
    return records.resources(row, tx.now)


def _row(tx: Transaction, resources_id: str, lock: bool = False) -> Row[Any]:
    query = select(resources).where(resources.c.id == resources_id)
    row = tx.conn.execute(query.with_for_update() if lock else query).first()
    if row is None:
        raise NotFound(f"resources {resources_id} do not exist")
    return row
