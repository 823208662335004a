"""PostgreSQL itself, restarted at once and with its backends ended at random, under load: stores wait and go on, and nothing is lost."""

from __future__ import annotations

import asyncio
import random

import pytest
from store_invariants import check_invariants
from store_load import Load, drain
from store_process import until
from store_room import SCALE, Room

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
