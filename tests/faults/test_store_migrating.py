"""Two processes that bring up one database at the same moment, one of which is killed in the middle: in the end it is up, and whole."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import time
from pathlib import Path

from sqlalchemy import func, select
from store_invariants import check_sound
from store_process import StoreProcess, until
from store_room import SCALE, Room
from store_snapshot import connect

from leyden.server import schema
from leyden.server.client import StoreClient
from leyden.types import NewRollout

TIMES = 12
VERSION_1 = Path(__file__).parents[1] / "server" / "schemas" / "v1.sql"


def test_one_of_two_is_killed_and_the_other_or_the_next_one_serves(room: Room, kind: str) -> None:
    async def scenario() -> None:
        typical = 0.1  # seconds of a start; then as measured
        for turn in range(TIMES * SCALE):
            new_database(room, kind, turn)
            began = time.monotonic()
            stores = [room.store(f"one{turn}"), room.store(f"two{turn}")]
            for store in stores:
                store.launch()
            if turn:  # the first time tells how long it takes
                await asyncio.sleep(random.uniform(0.0, typical))
                random.choice(stores).kill()
            await until(lambda: all(is_settled(store) for store in stores), "each of them serves or has ended")  # noqa: B023
            serving = [store for store in stores if store.alive]
            typical = typical if turn else time.monotonic() - began
            assert len(serving) <= (1 if kind == "sqlite" else 2), "two processes have one file"
            for store in stores:
                assert "Traceback" not in store.said()
            if not serving:  # the one had the file when the other asked for it, and was killed
                await stores[0].start()
                serving = [stores[0]]
            for store in serving:
                await use(store, kind)
            for store in serving:
                store.stop()
            check_sound(room.database)
            with connect(room.database) as conn:
                assert conn.execute(select(func.count()).where(schema.meta.c.key == "secret")).scalar_one() == 1

    room.run(scenario())


def new_database(room: Room, kind: str, turn: int) -> None:
    """An old file, or an empty PostgreSQL."""
    if kind == "sqlite":
        room.database = str(room.directory / f"old{turn}.db")
        with sqlite3.connect(room.database) as conn:
            conn.executescript(VERSION_1.read_text())
        conn.close()
    else:
        assert room.postgres is not None
        room.database = room.postgres.new_database()


def is_settled(store: StoreProcess) -> bool:
    return not store.alive or store.listens


async def use(store: StoreProcess, kind: str) -> None:
    async with StoreClient(store.url) as client:
        before = (await client.count()).total
        assert before > 0 or kind == "postgres", "what was in the old file is gone"
        await client.enqueue([NewRollout(input=1)])
        assert (await client.count()).total == before + 1
