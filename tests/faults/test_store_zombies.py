"""Workers that sleep through their leases and come back: whatever they say then changes nothing, before and after the retry has ended."""

from __future__ import annotations

import json
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from store_history import Outcome, Witness
from store_invariants import check_sound
from store_nursery import Fork
from store_process import PATIENCE, StoreProcess, until
from store_room import SCALE, Room

from leyden.server.client import StoreClient
from leyden.types import AttemptState, Lease, LeaseRef, NewRollout, Reward, Rollout, RolloutConfig, RolloutState

SLEEPERS = 3  # processes, of each order
HELD = 6  # leases of each: with both orders and both databases 72 zombies
LEASE = 1.0  # seconds
AGENT = Path(__file__).with_name("store_agent.py")


@dataclass
class Sleeper:
    name: str
    fork: Fork
    held: Path
    go: Path
    said: Path

    @classmethod
    def start(cls, room: Room, store: StoreProcess, name: str) -> Sleeper:
        held, go, said = (room.directory / f"{name}.{what}" for what in ("held", "go", "said"))
        log = room.directory / "zombies.log"
        fork = room.nursery.start("store_zombie:run", store.url, name, HELD, LEASE, str(held), str(go), str(said), log=log)
        return cls(name, fork, held, go, said)

    @property
    def refs(self) -> list[LeaseRef]:
        return [LeaseRef(**ref) for ref in json.loads(self.held.read_text())]

    async def holds(self) -> None:
        await until(self.held.exists, f"{self.name} holds its leases")
        assert len(self.refs) == HELD

    def fall_asleep(self) -> None:
        self.fork.send_signal(signal.SIGSTOP)

    async def wake(self) -> list[dict[str, Any]]:
        """What it was told for each lease."""
        self.go.touch()
        self.fork.send_signal(signal.SIGCONT)
        await until(self.said.exists, f"{self.name} has spoken")
        answers: list[dict[str, Any]] = json.loads(self.said.read_text())
        return answers


def test_what_a_zombie_says_changes_nothing(room: Room) -> None:
    async def scenario() -> None:
        async with room.store() as store:
            witness = Witness("retry", room.history, store.url, PATIENCE)
            for turn in range(SCALE):
                rollouts = await queue(witness, 2 * SLEEPERS * HELD)
                early, late = ([Sleeper.start(room, store, f"{order}{turn}-{n}") for n in range(SLEEPERS)] for order in ("early", "late"))
                for sleeper in early + late:
                    await sleeper.holds()  # and keeps, until all of them do
                for sleeper in early + late:
                    sleeper.fall_asleep()
                retries = await claim_again(witness, rollouts)

                answers = [answer for sleeper in early for answer in await sleeper.wake()]  # the retries run
                for lease in retries.values():
                    event = await witness.call("complete", ref=lease.ref, rewards=[Reward(value=float(lease.rollout.input))])
                    assert event.outcome is Outcome.OK, f"a zombie took {lease.ref} from its holder: {event.error}"
                answers += [answer for sleeper in late for answer in await sleeper.wake()]  # the retries have ended
                check_answers(answers)
            await witness.close()
            store.stop()

        found = check_sound(room.database)
        for rollout in found.rollouts.values():
            first, second = found.attempts_of(rollout.id)
            assert (rollout.state, first.state, second.state) == (RolloutState.SUCCEEDED, AttemptState.LOST, AttemptState.SUCCEEDED)
        assert {(row.attempt, row.name) for row in found.rewards} == {(2, "reward")}
        assert len(found.rewards) == len(found.rollouts)
        for kept in (found.spans, found.generations):  # kept as what they are: late, and of the attempt that was lost
            assert len(kept) == len(found.rollouts)
            assert {(row.attempt, row.late) for row in kept} == {(1, True)}

    room.run(scenario())


def check_answers(answers: list[dict[str, Any]]) -> None:
    assert len(answers) == 2 * SLEEPERS * HELD
    for answer in answers:
        told = {name: answer[name] for name in answer if name != "ref"}
        assert told == {
            "heartbeat": ["lost"],
            "add_spans": 1,
            "add_generations": None,
            "add_rewards": "lease_lost",
            "complete": "lease_lost",
            "fail": "lease_lost",
            "release": "lease_lost",
        }


def test_a_runner_that_slept_reports_nothing(room: Room) -> None:
    """The real runner: by its own clock it has lost its leases as well."""

    async def scenario() -> None:
        async with room.store() as store:
            witness = Witness("retry", room.history, store.url, PATIENCE)
            go = room.directory / "go"
            tasks: list[dict[str, Any]] = [{"n": n, "go": str(go), "begun": str(room.directory / f"begun-{n}")} for n in range(8)]
            rollouts = await queue(witness, len(tasks), tasks)
            options = ["--store", store.url, "--name", "sleeper", "--concurrency", "8", "--lease", str(LEASE)]
            log = room.directory / "runner.log"
            runner = room.nursery.start("leyden.runners.process:main", [f"{AGENT}:wait_for_go", *options], log=log)
            await until(lambda: all(Path(task["begun"]).exists() for task in tasks), "its agents have begun")
            runner.send_signal(signal.SIGSTOP)
            retries = await claim_again(witness, rollouts)
            leases = list(retries.values())
            await end_with(witness, leases[:4])
            go.touch()
            runner.send_signal(signal.SIGCONT)
            runner.send_signal(signal.SIGTERM)  # it reports what it holds, and ends
            runner.wait()
            await end_with(witness, leases[4:])
            await witness.close()
            store.stop()
        found = check_sound(room.database)
        assert sorted((row.attempt, row.value) for row in found.rewards) == [(2, 1000.0)] * len(tasks)

    room.run(scenario())


async def end_with(witness: Witness, leases: list[Lease]) -> None:
    for lease in leases:
        event = await witness.call("complete", ref=lease.ref, rewards=[Reward(value=1000.0)])
        assert event.outcome is Outcome.OK, event.error


async def queue(witness: Witness, n: int, inputs: list[Any] | None = None) -> list[Rollout]:
    numbers = [witness.history.number() for _ in range(n)]
    config = RolloutConfig(max_lost=3, retry_delay=0.0)
    new = [NewRollout(input=item, config=config, idempotency_key=f"k{i}") for i, item in zip(numbers, inputs or numbers, strict=True)]
    event = await witness.call("enqueue", rollouts=new)
    rollouts: list[Rollout] = event.answer
    return rollouts


async def claim_again(witness: Witness, rollouts: list[Rollout]) -> dict[str, Lease]:
    """Each of them, once its first holder has lost it, under a lease that lasts."""
    store: StoreClient = witness.store
    leases: dict[str, Lease] = {}
    deadline = time.monotonic() + PATIENCE
    while len(leases) < len(rollouts):
        assert time.monotonic() < deadline, f"only {len(leases)} of {len(rollouts)} leases ran out"
        for lease in await store.claim("retry", limit=64, wait=1.0, lease_seconds=60.0):
            assert lease.ref.attempt == 2
            leases[lease.rollout.id] = lease
    assert leases.keys() == {rollout.id for rollout in rollouts}
    return leases
