"""What a database says of itself to whoever operates it: counts that are kept with each write, and single steps in an index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import insert, select, tuple_, update

from leyden.audit import AuditCounts
from leyden.server.operations import audits, counters
from leyden.server.schema import meta, rejections, rollouts
from leyden.server.transaction import Transaction
from leyden.types import Counts, RolloutState

LIVE = (RolloutState.QUEUED, RolloutState.SCHEDULED, RolloutState.RUNNING)

_PROBED_AT = meta.c.key == "probed_at"


@dataclass(frozen=True)
class Stored:
    """Of the whole database, whichever store is asked. ``ages``: seconds since the oldest rollout of a state was created; 0 for none.

    ``rejected``: source, reason and how many, of what was sent and not stored."""

    now: int  # microseconds
    counts: Counts
    ages: Mapping[RolloutState, float]
    audits: AuditCounts
    rejected: Sequence[tuple[str, str, int]]


def stored(tx: Transaction) -> Stored:
    return Stored(
        now=tx.now,
        counts=counters.count(tx, None, None, None, None),
        ages={state: _age(tx, state) for state in LIVE},
        audits=audits.counts(tx, None, None, None),
        rejected=[(row.source, row.reason, row.n) for row in tx.conn.execute(select(rejections))],
    )


def _age(tx: Transaction, state: RolloutState) -> float:
    """The first at or after the state's beginning in the index on (state, seq). Asked for by the state alone, a planner whose statistics
    say that the state is a common one reads all rollouts in order of creation, until it finds the first."""
    first = (
        select(rollouts.c.state, rollouts.c.created_at)
        .where(tuple_(rollouts.c.state, rollouts.c.seq) >= tuple_(state.value, 0))
        .order_by(rollouts.c.state, rollouts.c.seq)
        .limit(1)
    )
    row = tx.conn.execute(first).first()
    return max(0.0, (tx.now - row.created_at) / 1e6) if row is not None and row.state == state else 0.0


def look(tx: Transaction) -> None:
    """Read something, to see that it can be done."""
    tx.conn.execute(select(meta.c.key).limit(1)).first()


def touch(tx: Transaction) -> None:
    """Write something that nobody reads, to see that it can be done."""
    now = str(tx.now).encode()
    if tx.conn.execute(update(meta).where(_PROBED_AT).values(value=now)).rowcount == 0:
        tx.conn.execute(insert(meta).values(key="probed_at", value=now))
