"""Runner processes, as they say they are there."""

from __future__ import annotations

from typing import Any

from sqlalchemy import func, insert, select, update

from leyden.errors import NotFound
from leyden.server import records
from leyden.server.clock import microseconds
from leyden.server.operations.attempts import Ending, end
from leyden.server.operations.transitions import rows_by_id
from leyden.server.schema import leases, workers
from leyden.server.transaction import Transaction
from leyden.types import AttemptState, Worker


def register(tx: Transaction, worker_id: str, name: str, capacity: int, pid: int | None, host: str | None) -> Worker:
    values: dict[str, Any] = {"name": name, "capacity": capacity, "pid": pid, "host": host, "last_seen_at": tx.now, "stopped_at": None}
    if tx.conn.execute(update(workers).where(workers.c.id == worker_id).values(**values)).rowcount == 0:
        tx.conn.execute(insert(workers).values(id=worker_id, started_at=tx.now, **values))
    return get(tx, worker_id)


def stop(tx: Transaction, worker_id: str) -> Worker:
    """It has ended. What it still holds goes back to the queue: nobody will finish it, and it was nobody's failure."""
    of_worker = select(leases.c.rollout_id).where(leases.c.worker_id == worker_id)
    rows = rows_by_id(tx, tx.conn.execute(of_worker).scalars().all(), lock=True)
    held = tx.conn.execute(of_worker.where(leases.c.rollout_id.in_(list(rows)))).scalars()  # as they are under the lock
    end(tx, [(rows[rollout_id], Ending(AttemptState.RELEASED)) for rollout_id in held])
    tx.conn.execute(update(workers).where(workers.c.id == worker_id, workers.c.stopped_at.is_(None)).values(stopped_at=tx.now))
    return get(tx, worker_id)


def get(tx: Transaction, worker_id: str) -> Worker:
    row = tx.conn.execute(select(workers).where(workers.c.id == worker_id)).first()
    if row is None:
        raise NotFound(f"worker {worker_id} does not exist")
    running = tx.conn.execute(select(func.count()).select_from(leases).where(leases.c.worker_id == worker_id)).scalar_one()
    return records.worker(row, running)


def listing(tx: Transaction, alive_within: float | None) -> list[Worker]:
    query = select(workers).order_by(workers.c.started_at, workers.c.id)
    if alive_within is not None:
        query = query.where(workers.c.stopped_at.is_(None), workers.c.last_seen_at >= tx.now - microseconds(alive_within))
    held = tx.conn.execute(select(leases.c.worker_id, func.count()).group_by(leases.c.worker_id))
    running = {worker_id: n for worker_id, n in held}
    return [records.worker(row, running.get(row.id, 0)) for row in tx.conn.execute(query)]
