"""PostgreSQL itself, restarted at once and with its backends ended at random, under load: stores wait and go on, and nothing is lost."""

from __future__ import annotations

import asyncio
import random

import pytest
from sqlalchemy import insert
from sqlalchemy.exc import DBAPIError
from store_invariants import check_invariants
from store_load import Load, drain, read_back
from store_process import until
from store_room import SCALE, Room

from leyden.server import schema
from leyden.server.postgres import PostgresDatabase

pytestmark = pytest.mark.parametrize("kind", ["postgres"], indirect=True)

RESTARTS = 12
BACKENDS = 110
ACKNOWLEDGED = 25  # calls between two faults


def test_restarted_at_once_under_load(room: Room) -> None:
    async def scenario() -> None:
        postgres = room.postgres
        assert postgres is not None
        async with room.store() as store:
            async with Load([store.url], room.history) as load:
                for _ in range(RESTARTS * SCALE):
                    await load.until_acknowledged(ACKNOWLEDGED)
                    await asyncio.to_thread(postgres.stop_at_once)
                    await asyncio.sleep(random.uniform(0.0, 0.3))  # away for a moment, or for longer
                    await asyncio.to_thread(postgres.start)
                await load.until_acknowledged(ACKNOWLEDGED)
            await drain(store.url, room.history)
            await read_back(store.url, room.history)
            assert store.alive
            store.stop()
        check_invariants(room.history, room.database)

    room.run(scenario())


def test_backends_ended_at_random_under_load(room: Room) -> None:
    async def scenario() -> None:
        postgres = room.postgres
        assert postgres is not None
        async with room.store("one") as one, room.store("two") as two:
            async with Load([one.url, two.url], room.history) as load:
                ended = 0
                while ended < BACKENDS * SCALE:
                    await load.until_acknowledged(3)
                    ended += await asyncio.to_thread(postgres.terminate_backend, room.database)
                await load.until_acknowledged(ACKNOWLEDGED)
            await drain(one.url, room.history)
            await until(lambda: not set(postgres.connections(room.database)) - {"idle"}, "no transaction is left open")
            for store in (one, two):
                assert store.alive
                store.stop()
        check_invariants(room.history, room.database)

    room.run(scenario())


def test_a_transaction_that_a_crash_took_is_not_mistaken_for_another_with_its_number(room: Room) -> None:
    """The server gives a number that had not reached its log to the next transaction, and says of it what became of that one."""
    assert room.postgres is not None
    database = PostgresDatabase(room.database)
    with pytest.raises(DBAPIError), database.open_writer() as conn, conn.begin():
        taken = database.start(conn)
        conn.execute(insert(schema.queues), {"name": "taken", "paused": False, "changed_at": 1})
        room.postgres.restart_at_once()
    for _ in range(5):
        with database.open_writer() as conn, conn.begin():
            other = database.start(conn)
            conn.execute(insert(schema.queues), {"name": f"q{other.revision}", "paused": False, "changed_at": 1})
        with database.open_writer() as conn:
            assert not database.has_committed(conn, taken)
        if other.revision == taken.revision:
            break
    assert other.revision == taken.revision, "the number was not given out again: this shows nothing"
    database.close()
