"""Wall clocks that are set an hour on or back, under a store that runs and between two of its starts: whoever beats keeps its lease,
whoever does not loses it as soon as ever, and what was to wait for a moment does not wait for an hour."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from store_history import Outcome, Witness
from store_invariants import check_invariants
from store_process import PATIENCE
from store_room import Room
from store_shifted import WallClock

from leyden.types import Lease, NewRollout, RolloutConfig, Verdict

HOUR = 3600.0
LEASE = 2.0  # seconds
SOON = 30.0  # seconds; far less than an hour


@pytest.mark.parametrize("jump", [HOUR, -HOUR], ids=["on", "back"])
def test_a_clock_that_is_set_changes_nothing(room: Room, kind: str, jump: float) -> None:
    """On PostgreSQL another store beside it keeps its clock."""

    async def scenario() -> None:
        wall = WallClock(room.directory / "clock")
        clock = str(room.directory / "clock")
        shifted = room.store("shifted", "store_shifted:run")
        await shifted.start(clock=clock)
        steady = room.store("steady") if kind == "postgres" else shifted
        if steady is not shifted:
            await steady.start()
        client = Witness("client", room.history, shifted.url, PATIENCE)
        holder = Holder(Witness("holder", room.history, steady.url, PATIENCE))
        await holder.begin()
        for ahead in (jump, 0.0):
            wall.set_ahead(ahead)
            await things_take_their_time(client)
        for ahead in (jump, 0.0):
            shifted.kill()
            wall.set_ahead(ahead)
            await shifted.start(clock=clock)
            await things_take_their_time(client)
        await holder.end()
        await client.close()
        for store in {shifted, steady}:
            store.stop()
        found = check_invariants(room.history, room.database)
        for row in found.attempts.values():
            assert row.started_at <= row.ended_at, "time went backwards"

    room.run(scenario())


class Holder:
    """Beats through all of it, and is told each time that it holds its lease."""

    def __init__(self, witness: Witness) -> None:
        self.witness = witness

    async def begin(self) -> None:
        self.lease = await claim(self.witness, await queue(self.witness))
        self._beating = asyncio.create_task(self._beat())

    async def _beat(self) -> None:
        while True:
            event = await self.witness.call("heartbeat", worker_id="holder", leases=[self.lease.ref])
            assert event.answer == [Verdict.HELD], event
            await asyncio.sleep(LEASE / 8)

    async def end(self) -> None:
        assert not self._beating.done(), self._beating.exception()
        self._beating.cancel()
        event = await self.witness.call("complete", ref=self.lease.ref, rewards=[])
        assert event.outcome is Outcome.OK, event.error
        await self.witness.close()


async def things_take_their_time(client: Witness) -> None:
    """A lease that nobody keeps runs out, and a rollout for later comes when it is time: neither at once nor in an hour."""
    lost, later = await queue(client), await queue(client, delay=0.5)
    began = time.monotonic()
    first = await claim(client, lost)
    again = await claim(client, lost, wait=SOON)
    assert again.ref.attempt == first.ref.attempt + 1
    assert time.monotonic() - began >= LEASE, "a lease ended before its time"
    for lease in (again, await claim(client, later, wait=SOON)):
        event = await client.call("complete", ref=lease.ref, rewards=[])
        assert event.outcome is Outcome.OK, event.error


async def queue(witness: Witness, **fields: Any) -> str:
    """The name of a queue of its own that now holds one rollout."""
    number = witness.history.number()
    config = RolloutConfig(retry_delay=0.0, max_lost=3)
    new = NewRollout(input=number, queue=f"q{number}", config=config, idempotency_key=f"k{number}", **fields)
    event = await witness.call("enqueue", rollouts=[new])
    assert event.outcome is Outcome.OK, event.error
    return new.queue


async def claim(witness: Witness, name: str, wait: float = 5.0) -> Lease:
    deadline = time.monotonic() + wait
    while time.monotonic() < deadline:
        request = f"c{witness.history.number()}"
        event = await witness.call(
            "claim", worker_id=witness.name, limit=1, wait=2.0, lease_seconds=LEASE, request_id=request, queues=(name,)
        )
        if event.answer:
            lease: Lease = event.answer[0]
            return lease
    raise AssertionError(f"nothing came from {name} within {wait:g} s")
