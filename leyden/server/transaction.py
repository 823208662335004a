"""What an operation is given, and what it leaves to say once it is committed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from sqlalchemy import Connection


@dataclass
class Changes:
    """Whom to wake after the commit, and what it did."""

    work: bool = False  # something may now be claimed, of whatever queue
    queues: set[str] = field(default_factory=set)  # that may have something more to claim
    finished: set[str] = field(default_factory=set)  # rollouts that became final
    done: dict[tuple[str, str], int] = field(default_factory=dict)  # how much was done, by name and kind: for ``Metrics``

    def add(self, other: Changes) -> None:
        self.work |= other.work
        self.queues |= other.queues
        self.finished |= other.finished
        for (what, kind), n in other.done.items():
            self.count(what, kind, n)

    def count(self, what: str, kind: str = "", n: int = 1) -> None:
        """``kind`` is one of a few: each becomes a series of its own."""
        if n:
            self.done[what, kind] = self.done.get((what, kind), 0) + n


@dataclass(frozen=True)
class Transaction:
    """One operation's view of the database: ``op(tx, *args) -> result``. Results are plain values, never rows or cursors."""

    conn: Connection
    now: int  # the store's clock, microseconds
    revision: int  # of this transaction: a reader that has seen it has seen all with a lower one
    secret: bytes  # attempt keys are derived from it
    jitter: Callable[[], float] = random.random  # uniform in [0, 1)
    changes: Changes = field(default_factory=Changes)

    @property
    def dialect(self) -> str:
        """``sqlite`` or ``postgresql``."""
        return self.conn.dialect.name
