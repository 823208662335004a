"""Queues by name: paused, limited, listed. Only one that was paused or limited once has a row.

A limit holds under any race: a claim locks the rows of the limited queues it takes from, and counts their leases under that lock. Setting
a limit waits for the claims under way, and those that follow see it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import bindparam, func, insert, or_, select, text, update

from leyden.server.operations import counters
from leyden.server.schema import leases, queues
from leyden.server.transaction import Transaction
from leyden.types import Counts, Queue, Unset

NO_LIMIT = 1 << 30

_NAMED = queues.c.name.in_(bindparam("names", expanding=True))
_GUARDED = (
    select(queues)
    .where(_NAMED, or_(queues.c.paused, queues.c.max_running.is_not(None)))
    .order_by(queues.c.name)
    .with_for_update(key_share=True)
)
_LIMITED = select(queues.c.name).where(_NAMED, queues.c.max_running.is_not(None)).limit(1)
_RUNNING = select(leases.c.queue, func.count()).where(leases.c.queue.in_(bindparam("names", expanding=True))).group_by(leases.c.queue)


def room(tx: Transaction, names: Sequence[str]) -> dict[str, int]:
    """How many more may run of each queue: ``NO_LIMIT`` for most. It stays so until the end of this transaction: nobody else claims from
    the limited ones among them meanwhile, and no limit changes."""
    guarded = list(tx.conn.execute(_GUARDED, {"names": sorted(names)}))
    limited = [row.name for row in guarded if not row.paused]
    running: dict[str, int] = {name: n for name, n in tx.conn.execute(_RUNNING, {"names": limited})} if limited else {}
    left = dict.fromkeys(names, NO_LIMIT)
    for row in guarded:
        left[row.name] = 0 if row.paused else max(0, row.max_running - running.get(row.name, 0))
    return left


def has_limit(tx: Transaction, names: Iterable[str]) -> bool:
    """Whether an attempt that ends in one of these queues makes room for another."""
    return tx.conn.execute(_LIMITED, {"names": sorted(set(names))}).first() is not None


def change(tx: Transaction, name: str, paused: bool | None, max_running: int | Unset | None) -> Queue:
    if tx.dialect == "postgresql":
        tx.conn.execute(text("LOCK TABLE queues IN EXCLUSIVE MODE"))  # claims hold a weaker lock on it, with or without a row
    values: dict[str, bool | int | None] = {} if paused is None else {"paused": paused}
    if max_running is not Unset.UNSET:
        values["max_running"] = max_running
    if tx.conn.execute(update(queues).where(queues.c.name == name).values(**values, changed_at=tx.now)).rowcount == 0:
        tx.conn.execute(insert(queues).values({"name": name, "paused": False, "max_running": None, "changed_at": tx.now} | values))
    tx.changes.work = True  # there may be more room
    return next(queue for queue in listing(tx) if queue.name == name)


def listing(tx: Transaction) -> list[Queue]:
    """By name: those that hold anything, and those that were paused or limited once."""
    counts = {name: count for name, count in counters.by_queue(tx).items() if count.total}
    rows = {row.name: row for row in tx.conn.execute(select(queues))}
    return [
        Queue(
            name=name,
            paused=bool(name in rows and rows[name].paused),
            max_running=rows[name].max_running if name in rows else None,
            counts=counts.get(name, Counts()),
        )
        for name in sorted(counts.keys() | rows.keys())
    ]
