"""Training runs. A run's epoch is the fence of its driver: whoever starts it again makes the former driver stale."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Row, insert, select, update

from leyden.errors import Conflict, InvalidRequest, LeaseLost, NotFound
from leyden.server import records
from leyden.server.clock import microseconds
from leyden.server.codec import encode, redact
from leyden.server.schema import runs
from leyden.server.transaction import Transaction
from leyden.types import Run, RunState


def start(tx: Transaction, run_id: str, config: dict[str, Any], lease_seconds: float, take_over: bool, request_id: str | None) -> Run:
    row = tx.conn.execute(select(runs).where(runs.c.id == run_id).with_for_update()).first()
    if row is not None and request_id is not None and row.request_id == request_id:
        return records.run(row)
    if row is not None and row.state == RunState.RUNNING and row.alive_until > tx.now and not take_over:
        left = (row.alive_until - tx.now) / 1e6
        raise Conflict(
            f"run {run_id} has a driver that beats (epoch {row.epoch})", f"wait {left:.0f} s after it has ended, or take it over"
        )
    values = {
        "state": RunState.RUNNING.value,
        "config": redact(encode(config)),
        "summary": None,
        "request_id": request_id,
        "alive_until": tx.now + microseconds(lease_seconds),
        "finished_at": None,
    }
    if row is None:
        tx.conn.execute(insert(runs).values(id=run_id, epoch=1, created_at=tx.now, **values))
    else:
        _set(tx, run_id, epoch=row.epoch + 1, **values)
    return get(tx, run_id)


def keep(tx: Transaction, run_id: str, epoch: int, lease_seconds: float) -> Run:
    row = _fenced(tx, run_id, epoch)
    if row.state != RunState.RUNNING:
        raise LeaseLost(f"run {run_id} has ended: {row.state}")
    _set(tx, run_id, alive_until=tx.now + microseconds(lease_seconds))
    return records.run(row)


def finish(tx: Transaction, run_id: str, epoch: int, state: RunState, summary: dict[str, Any] | None) -> Run:
    if state is RunState.RUNNING:
        raise InvalidRequest("state: a run ends as succeeded, failed or cancelled")
    row = _fenced(tx, run_id, epoch)
    data = None if summary is None else redact(encode(summary))
    if row.state == RunState.RUNNING:
        _set(tx, run_id, state=state.value, summary=data, finished_at=tx.now)
    elif (row.state, row.summary) != (state.value, data):
        raise LeaseLost(f"run {run_id} has already ended: {row.state}")
    return get(tx, run_id)


def get(tx: Transaction, run_id: str) -> Run:
    return records.run(_row(tx, run_id))


def listing(tx: Transaction, limit: int) -> list[Run]:
    """The latest first."""
    return [records.run(row) for row in tx.conn.execute(select(runs).order_by(runs.c.seq.desc()).limit(limit))]


def _row(tx: Transaction, run_id: str, lock: bool = False) -> Row[Any]:
    query = select(runs).where(runs.c.id == run_id)
    row = tx.conn.execute(query.with_for_update() if lock else query).first()
    if row is None:
        raise NotFound(f"run {run_id} does not exist")
    return row


def _fenced(tx: Transaction, run_id: str, epoch: int) -> Row[Any]:
    row = _row(tx, run_id, lock=True)
    if row.epoch != epoch:
        raise LeaseLost(f"run {run_id} is in epoch {row.epoch}: epoch {epoch} was taken over")
    return row


def _set(tx: Transaction, run_id: str, **values: Any) -> None:
    tx.conn.execute(update(runs).where(runs.c.id == run_id).values(**values))
