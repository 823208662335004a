"""Two stores on one PostgreSQL: one is killed under load and the clients go on with the other; a commit here wakes who waits there."""

from __future__ import annotations

import asyncio

import pytest
from store_history import Witness
from store_invariants import check_invariants
from store_load import Load, drain
from store_process import PATIENCE
from store_room import SCALE, Room

from leyden.types import NewRollout, RolloutState

pytestmark = pytest.mark.parametrize("kind", ["postgres"], indirect=True)

KILLS = 12
ACKNOWLEDGED = 25  # calls between two kills
WAKINGS = 20


def test_clients_go_on_with_the_other(room: Room) -> None:
    async def scenario() -> None:
        async with room.store("one") as one, room.store("two") as two:
            async with Load([one.url, two.url], room.history, workers=6) as load:
                for turn in range(KILLS * SCALE):
                    victim = (one, two)[turn % 2]
                    await load.until_acknowledged(ACKNOWLEDGED)
                    victim.kill()
                    await load.until_acknowledged(ACKNOWLEDGED)  # with the other alone
                    await victim.start()
                await load.until_acknowledged(ACKNOWLEDGED)
                one.kill()
            await drain(two.url, room.history)
            two.stop()
        check_invariants(room.history, room.database)

    room.run(scenario())


def test_a_commit_here_wakes_who_waits_there(room: Room) -> None:
    """All of them in a sixth of the time that the looks around, 3 s apart, would need: it was not those that found the work."""

    async def scenario() -> None:
        async with room.store("one") as one, room.store("two") as two:
            here, there = (Witness(name, room.history, url, PATIENCE) for name, url in (("here", one.url), ("there", two.url)))
            await asyncio.wait_for(wake_each_other(here, there), WAKINGS * 1.0)
            for witness in (here, there):
                await witness.close()

    room.run(scenario())


async def wake_each_other(here: Witness, there: Witness) -> None:
    for number in range(WAKINGS):
        claiming = asyncio.create_task(there.store.claim("w", wait=20.0))
        await asyncio.sleep(0.05)  # it waits by now, or will find the work at once
        (rollout,) = await here.store.enqueue([NewRollout(input=number)])
        (lease,) = await claiming
        assert lease.rollout.id == rollout.id
        waiting = asyncio.create_task(here.store.wait_rollouts([rollout.id], wait=20.0))
        await asyncio.sleep(0.05)
        await there.store.complete(lease.ref)
        (final,) = await waiting
        assert final.state is RolloutState.SUCCEEDED
