"""Runner processes, killed at any moment of their work: others do it again, and it counts once.

The runners are forks of a process that has imported them (see ``store_nursery``): ``leyden.runners.process`` itself, on a trivial agent.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from pathlib import Path

from store_history import Outcome, Witness
from store_invariants import check_sound
from store_nursery import Fork
from store_process import PATIENCE, StoreProcess
from store_room import SCALE, Room

from leyden.types import AttemptState, NewRollout, Rollout, RolloutConfig, RolloutState

KILLS = {"sqlite": 80, "postgres": 40}
BACKLOG = 20  # rollouts: there is always something to do
AT_ONCE = 4
LEASE = 3.0  # seconds
AGENT = Path(__file__).with_name("store_agent.py")


class Crew:
    """Runners, each of which is replaced when it is killed."""

    def __init__(self, room: Room, store: StoreProcess) -> None:
        self._room = room
        self._store = store
        self._alive: list[tuple[str, Fork]] = []
        self._started = 0
        self.killed: set[str] = set()  # by name

    def fill(self) -> None:
        while len(self._alive) < AT_ONCE:
            self._started += 1
            name = f"runner{self._started}x"
            options = ["--store", self._store.url, "--name", name, "--concurrency", "3", "--lease", str(LEASE)]
            log = self._room.directory / "runners.log"
            fork = self._room.nursery.start("leyden.runners.process:main", [f"{AGENT}:work", *options], log=log)
            self._alive.append((name, fork))

    def kill_one(self) -> None:
        name, fork = self._alive.pop(random.randrange(len(self._alive)))
        fork.send_signal(signal.SIGKILL)
        fork.wait()
        self.killed.add(name)

    def end(self) -> None:
        for _, fork in self._alive:
            fork.send_signal(signal.SIGTERM)
        for _, fork in self._alive:
            fork.wait()


def test_every_rollout_is_done_once_whichever_runner_dies(room: Room, kind: str) -> None:
    async def scenario() -> None:
        async with room.store() as store:
            witness = Witness("driver", room.history, store.url, PATIENCE)
            rollouts = await queue(witness, BACKLOG)
            crew = Crew(room, store)
            crew.fill()
            for _ in range(KILLS[kind] * SCALE):
                if (await witness.store.count("run")).queued < BACKLOG:
                    rollouts += await queue(witness, BACKLOG)
                await asyncio.sleep(random.uniform(0.0, 0.2))  # any moment of a start, a claim, an attempt, a report
                crew.kill_one()
                crew.fill()
            await all_final(witness, rollouts)
            crew.end()
            await witness.close()
            store.stop()

        found = check_sound(room.database)
        assert set(found.rollouts) == {rollout.id for rollout in rollouts}
        counted: dict[str, list[float]] = {}
        for reward in found.rewards:
            if reward.attempt == found.rollouts[reward.rollout_id].attempt:
                counted.setdefault(reward.rollout_id, []).append(reward.value)
        for rollout in rollouts:
            assert found.rollouts[rollout.id].state == RolloutState.SUCCEEDED
            assert counted[rollout.id] == [float(rollout.input["n"])]
        undone = [row for row in found.attempts.values() if row.state != AttemptState.SUCCEEDED]
        assert {row.worker_id.rpartition("-")[0] for row in undone} <= crew.killed, "a runner that lived lost what it held"
        # Released: what a claim was given whose client was gone when the answer went out.
        states = Counter(row.state for row in undone)
        assert states[AttemptState.LOST] >= KILLS[kind] / 4, "too few runners were killed at their work"
        assert states.keys() <= {AttemptState.LOST, AttemptState.RELEASED}

    room.run(scenario())


async def queue(witness: Witness, n: int) -> list[Rollout]:
    config = RolloutConfig(max_lost=100, retry_delay=0.0)
    numbers = [witness.history.number() for _ in range(n)]
    new = [
        NewRollout(input={"n": i, "seconds": random.uniform(0.0, 0.5)}, config=config, run_id="run", idempotency_key=f"k{i}")
        for i in numbers
    ]
    event = await witness.call("enqueue", rollouts=new)
    assert event.outcome is Outcome.OK
    rollouts: list[Rollout] = event.answer
    return rollouts


async def all_final(witness: Witness, rollouts: list[Rollout]) -> None:
    deadline = time.monotonic() + PATIENCE
    while (counts := await witness.store.count("run")).final < len(rollouts):
        assert time.monotonic() < deadline, counts
        await witness.store.wait_rollouts([rollout.id for rollout in rollouts], wait=1.0)
