"""A store that stands still for longer than any lease lasts, as on a machine that swaps: nobody who beats loses anything by it."""

from __future__ import annotations

import asyncio
import random

from store_history import Outcome, Witness
from store_invariants import check_invariants
from store_process import PATIENCE, until
from store_room import SCALE, Room

from leyden.types import AttemptState, LeaseRef, NewRollout, Verdict

STALLS = 3
LEASE = 2.0  # seconds
WORKERS, EACH = 4, 8


def test_no_live_lease_expires(room: Room) -> None:
    async def scenario() -> None:
        async with room.store() as store:
            client = Witness("client", room.history, store.url, PATIENCE)
            new = [NewRollout(input=n, idempotency_key=f"k{n}") for n in range(WORKERS * EACH)]
            await client.call("enqueue", rollouts=new)
            workers = [Witness(f"worker{n}", room.history, store.url, PATIENCE) for n in range(WORKERS)]
            held = {worker.name: await claim(worker) for worker in workers}
            beating = [asyncio.create_task(beat(worker, held[worker.name])) for worker in workers]
            for _ in range(STALLS * SCALE):
                store.freeze()
                await asyncio.sleep(2 * LEASE)
                store.thaw()
                seen = len(room.history.events)
                await until(lambda: beats_since(room, seen) >= 3 * WORKERS, "the beats go on", store.said)  # noqa: B023
                await asyncio.sleep(random.uniform(0.0, 1.0))  # another moment between two sweeps
            for task in beating:
                assert not task.done(), task.exception()
                task.cancel()
            for worker in workers:
                for ref in held[worker.name]:
                    event = await worker.call("complete", ref=ref, rewards=[])
                    assert event.outcome is Outcome.OK, event.error
                await worker.close()
            await client.close()
            store.stop()
        found = check_invariants(room.history, room.database)
        assert [row.state for row in found.attempts.values()] == [AttemptState.SUCCEEDED] * WORKERS * EACH

    room.run(scenario())


async def claim(worker: Witness) -> list[LeaseRef]:
    event = await worker.call(
        "claim", worker_id=worker.name, limit=EACH, wait=5.0, lease_seconds=LEASE, request_id=worker.name, queues=("default",)
    )
    assert len(event.answer) == EACH
    return [lease.ref for lease in event.answer]


async def beat(worker: Witness, refs: list[LeaseRef]) -> None:
    while True:
        event = await worker.call("heartbeat", worker_id=worker.name, leases=refs)
        assert event.answer == [Verdict.HELD] * EACH, event
        await asyncio.sleep(LEASE / 8)


def beats_since(room: Room, seen: int) -> int:
    return sum(event.operation == "heartbeat" and event.outcome is Outcome.OK for event in room.history.events[seen:])
