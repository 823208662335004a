"""What the executor needs of a database, whichever it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sqlalchemy import Connection

READ_SECONDS = 12.0  # for one question: less than a client waits for its answer


@dataclass(frozen=True)
class Start:
    """What a transaction learns when it begins: the database's time (microseconds), its revision (see ``Transaction``), and a mark by which
    ``has_committed`` knows that the server has not been away since."""

    now: int
    revision: int
    mark: str = ""


@dataclass(frozen=True)
class Sizes:
    """Of a database in a file: bytes of it, of its write-ahead log, and of the room that is left on its disk."""

    database: int
    wal: int
    disk_free: int


class Database(Protocol):
    """An open database, its schema made or brought up to date.

    A ``writers`` of 1 means that writes never meet each other; with more of them, and with other stores on the same database,
    operations lock what they change.
    """

    label: str  # for people: a path, or a URL without its password
    secret: bytes
    writers: int  # threads that write
    max_batch: int  # operations in one commit
    shared: bool  # other stores may use it at the same time

    def open_writer(self) -> Connection:
        """A connection for one thread."""
        ...

    def open_reader(self) -> Connection:
        """A connection for one thread that cannot write."""
        ...

    def start(self, conn: Connection) -> Start:
        """Called first in every transaction that writes."""
        ...

    def now(self, conn: Connection) -> int:
        """The time, for a transaction that reads."""
        ...

    def is_passing(self, error: Exception) -> bool:
        """Whether the same operations may do better in another transaction: a deadlock, a lost connection, a restart."""
        ...

    def has_committed(self, conn: Connection, start: Start) -> bool:
        """Whether a transaction whose COMMIT got no answer is known to have been committed after all."""
        ...

    def leave(self, conn: Connection) -> None:
        """End whatever a failed commit left open, so that the connection can be used again."""
        ...

    def tend(self, conn: Connection) -> None:
        """What has to be done between two transactions, now and then. Called by a writer after each."""
        ...

    def overgrown(self) -> str | None:
        """Why nothing more should be given to it to keep just now; None: it may be."""
        ...

    def took_too_long(self, error: Exception) -> bool:
        """Whether a read was stopped at its deadline, or by ``stop_reading``."""
        ...

    def stop_reading(self) -> None:
        """Let the reads that are under way end soon, whatever they are at."""
        ...

    def describe(self, error: Exception) -> str:
        """What went wrong, for the person who runs the store."""
        ...

    def sizes(self) -> Sizes | None:
        """None for one on a server, which tells its sizes itself."""
        ...

    def close(self) -> None:
        """Call when no thread uses it any more."""
        ...
