"""The store, killed under load again and again: what it acknowledged is there, once, and what it refused is not."""

from __future__ import annotations

import asyncio
import random

import pytest
from store_invariants import check_invariants
from store_load import Load, drain, read_back
from store_process import StoreProcess
from store_room import SCALE, Room

from leyden.types import RolloutState

KILLS = {"sqlite": 50, "postgres": 20}
ACKNOWLEDGED = 25  # calls between two kills


def test_nothing_acknowledged_is_lost_and_nothing_is_done_twice(room: Room, kind: str) -> None:
    async def scenario() -> None:
        async with room.store() as store:
            async with Load([store.url], room.history) as load:
                for _ in range(KILLS[kind] * SCALE):
                    await load.until_acknowledged(ACKNOWLEDGED)
                    await store.restart()
                await load.until_acknowledged(ACKNOWLEDGED)
            await drain(store.url, room.history)
            await read_back(store.url, room.history)
            store.stop()
        found = check_invariants(room.history, room.database)
        states = {row.state for row in found.rollouts.values()}
        assert states == {RolloutState.SUCCEEDED, RolloutState.FAILED, RolloutState.CANCELLED}, "the load did not reach every end"

    room.run(scenario())


def test_killed_together_with_its_last_restart_it_still_drains(room: Room) -> None:
    """Killed while it starts, at any moment of it."""

    async def scenario() -> None:
        async with room.store() as store:
            async with Load([store.url], room.history) as load:
                await load.until_acknowledged(ACKNOWLEDGED)
                for _ in range(10 * SCALE):
                    store.kill()
                    store.launch()
                    await asyncio.sleep(random.uniform(0.0, 0.1))
                    store.kill()
                    await store.start()
                await load.until_acknowledged(ACKNOWLEDGED)
            await drain(store.url, room.history)
            store.stop()
        check_invariants(room.history, room.database)

    room.run(scenario())


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_the_command_itself(room: Room) -> None:
    """Not a fork: ``leyden store`` as it is typed."""

    async def scenario() -> None:
        async with StoreProcess(room.directory, room.database) as store:
            async with Load([store.url], room.history) as load:
                for _ in range(2 * SCALE):
                    await load.until_acknowledged(ACKNOWLEDGED)
                    await store.restart()
                await load.until_acknowledged(ACKNOWLEDGED)
            await drain(store.url, room.history)
            store.stop()
        check_invariants(room.history, room.database)

    room.run(scenario())
