"""What the store's fault tests have in common: how often, on which databases, with which parts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from store_history import History
from store_nursery import Nursery
from store_postgres import PostgresProcess
from store_process import StoreProcess

SCALE = int(os.environ.get("LEYDEN_FAULT_SCALE", "1"))  # all counts are multiplied by it
KINDS = ("sqlite", "postgres")


@dataclass
class Room:
    """A directory with a database of its own, and what starts stores on it."""

    directory: Path
    database: str
    nursery: Nursery
    history: History
    postgres: PostgresProcess | None = None

    def store(self, name: str = "store", program: str = "") -> StoreProcess:
        return StoreProcess(self.directory, self.database, self.nursery, name, program)

    def run(self, scenario: Coroutine[Any, Any, None]) -> None:
        asyncio.run(asyncio.wait_for(scenario, 240 * SCALE))


@contextmanager
def open_room(kind: str, directory: Path, nursery: Nursery, postgres: PostgresProcess | None) -> Iterator[Room]:
    history = History(directory / "history.jsonl")
    if kind == "sqlite":
        yield Room(directory, str(directory / "store.db"), nursery, history)
    else:
        assert postgres is not None
        yield Room(directory, postgres.new_database(), nursery, history, postgres)
