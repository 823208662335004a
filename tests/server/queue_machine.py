"""Everything a queue may be asked, in any order, on a clock that jumps and a store that restarts, compared with ``queue_model``."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from queue_model import LEASE, RETRIED, TIMEOUT, Held, Item, Model
from sqlalchemy import delete, func, select
from storekit import SECOND, FakeClock, Kit, new_postgres_database, open_kit

from leyden.errors import Conflict, LeaseLost
from leyden.server import schema
from leyden.server.transaction import Transaction
from leyden.types import AttemptState, FailureKind, JSONResource, LeaseRef, NewRollout, Reward, RolloutConfig, RolloutState, Verdict

T = TypeVar("T")
QUEUES = ["a", "b", "c"]
GROUPS = ["g", "h"]
SCALE = int(os.environ.get("LEYDEN_FAULT_SCALE", "1"))
EXAMPLES = {"sqlite": 50, "postgres": 20}  # ``make test-faults-long``: ten times as many
SETTINGS = settings(
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    print_blob=True,
)


def check_queue(kind: str, directory: Path) -> None:
    with Room(kind, directory) as room:
        run_state_machine_as_test(lambda: QueueMachine(room), settings=settings(SETTINGS, max_examples=SCALE * EXAMPLES[kind]))


class Room:
    """One database for all examples, emptied before each."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self.shared = kind == "postgres"
        self._database = new_postgres_database() if self.shared else directory / "leyden.db"
        self.clock = FakeClock()
        self._loop = asyncio.new_event_loop()

    def __enter__(self) -> Room:
        self.kit = self._open()
        return self

    def __exit__(self, *error: object) -> None:
        self.wait(self._stack.aclose())
        self._loop.close()

    def wait(self, call: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(call)

    def restart(self) -> None:
        self.wait(self._stack.aclose())
        self.kit = self._open()

    def empty(self) -> Model:
        self.clock.advance(1)
        self.wait(self.kit.sql._executor.write(_delete_all))
        self.wait(self.kit.sql.sweep())
        return Model(self.clock.now, self.clock.now)

    def _open(self) -> Kit:
        self._stack = AsyncExitStack()
        return self.wait(self._stack.enter_async_context(open_kit(self.kind, self._database, clock=self.clock)))


def _delete_all(tx: Transaction) -> None:
    for table in reversed(schema.metadata.sorted_tables):
        if table is not schema.meta:
            tx.conn.execute(delete(table))


def _leases(tx: Transaction) -> int:
    return tx.conn.execute(select(func.count()).select_from(schema.leases)).scalar_one()


queues = st.just(QUEUES) | st.lists(st.sampled_from(QUEUES), min_size=1, max_size=3, unique=True)
pick = st.integers(0, 10_000)
endings = st.sampled_from(["complete", "complete", "release", "release later", *FailureKind])


class QueueMachine(RuleBasedStateMachine):
    def __init__(self, room: Room) -> None:
        super().__init__()
        self.room = room
        self.model = room.empty()
        self.refs: list[LeaseRef] = []
        self.claims: dict[str, tuple[str, list[LeaseRef]]] = {}  # by request: the worker, and what it was given
        self.requeues: dict[str, list[str]] = {}
        self.numbers = count()
        self.versions: list[str] = []
        self.tokens: dict[str, int] = {}

    @property
    def store(self) -> Any:
        return self.room.kit.store

    def wait(self, call: Coroutine[Any, Any, T]) -> T:
        return self.room.wait(call)

    def teardown(self) -> None:
        """Attempts are numbered without gaps, one runs at most, and the counters equal a count."""
        expected: Counter[tuple[str, RolloutState]] = Counter()
        for item_id, item in self.model.items.items():
            expected[item.new.queue, item.state] += 1
            attempts = self.wait(self.store.list_attempts(item_id))
            assert [attempt.number for attempt in attempts] == list(range(1, item.attempt + 1))
            running = [attempt for attempt in attempts if attempt.state is AttemptState.RUNNING]
            assert len(running) == (1 if item.held else 0)
            for attempt in attempts:
                rewards = self.wait(self.store.list_rewards([item_id], attempt=attempt.number))
                assert [reward.value for reward in rewards] == [item.rewards[n] for n in item.rewards if n == attempt.number]
        for queue in self.wait(self.store.list_queues()):
            for state in RolloutState:
                assert getattr(queue.counts, state.value) == expected[queue.name, state]
        held = sum(item.held is not None for item in self.model.items.values())
        assert self.wait(self.room.kit.sql._executor.read(_leases)) == held

    # -- queueing ------------------------------------------------------------------------------------------------------

    @rule(
        n=st.integers(1, 3),
        queue=st.sampled_from(QUEUES),
        priority=st.sampled_from([0, 0, 0, -1]),
        group=st.sampled_from([None, *GROUPS]),
        delay=st.sampled_from([0, 0, 0, 3]),
        budget=st.integers(1, 3),
        pinned=st.booleans(),
        used=st.none() | pick,
    )
    def enqueue(
        self, n: int, queue: str, priority: int, group: str | None, delay: int, budget: int, pinned: bool, used: int | None
    ) -> None:
        """``used``: among the new ones, one comes again under its key."""
        config = RolloutConfig(
            attempt_timeout=TIMEOUT / SECOND,
            max_attempts=budget,
            max_lost=budget,
            retry_on=RETRIED,
            retry_delay=4,
            retry_delays={FailureKind.TOOL: 0},
        )
        version = len(self.versions) - 1 if pinned and self.versions else None
        items = []
        for i in range(n):
            key = f"{len(self.model.items)}-{i}"
            fields = {"queue": queue, "priority": priority, "group": group, "delay": delay, "config": config, "idempotency_key": key}
            items.append(NewRollout(input=i, run_id="run", resources_id=None if version is None else self.versions[version], **fields))
        again = None
        if used is not None and self.model.items:
            again = list(self.model.items)[used % len(self.model.items)]
            items.insert(n // 2, self.model.items[again].new)
        made = self.wait(self.store.enqueue(items))
        for rollout, new in zip(made, items, strict=True):
            if rollout.id == again:
                assert new is self.model.items[again].new
                continue
            item = self.model.items[rollout.id] = Item(new, len(self.model.items), version)
            if delay:
                item.state, item.available_at = RolloutState.SCHEDULED, self.model.now + delay * SECOND
        assert again is None or again in {rollout.id for rollout in made}

    # -- leases --------------------------------------------------------------------------------------------------------

    @rule(worker=st.sampled_from(["v", "w"]), names=queues, n=st.sampled_from([1, 2, 5]))
    def claim(self, worker: str, names: list[str], n: int) -> None:
        request = f"r{next(self.numbers)}"
        leases = self.wait(self.store.claim(worker, n, lease_seconds=LEASE / SECOND, request_id=request, queues=names))
        assert [lease.ref.rollout_id for lease in leases] == self.model.ready(names, n)
        for lease in leases:
            item = self.model.items[lease.ref.rollout_id]
            item.attempt += 1
            item.state, now = RolloutState.RUNNING, self.model.now
            item.held = Held(lease.ref, now + LEASE, now + TIMEOUT)
            assert lease.ref.attempt == item.attempt
            assert lease.ref.token > self.tokens.get(lease.ref.rollout_id, 0), "no token is given twice"
            self.tokens[lease.ref.rollout_id] = lease.ref.token
            self.refs.append(lease.ref)
        if leases:
            self.claims[request] = worker, [lease.ref for lease in leases]

    @precondition(lambda self: self.claims)
    @rule(n=pick)
    def claim_again(self, n: int) -> None:
        request = list(self.claims)[n % len(self.claims)]
        worker, refs = self.claims[request]
        leases = self.wait(self.store.claim(worker, 9, request_id=request, queues=QUEUES))
        assert {lease.ref for lease in leases} == {ref for ref in refs if self.holds(ref)}

    def holds(self, ref: LeaseRef) -> bool:
        held = self.model.items[ref.rollout_id].held
        return held is not None and held.ref == ref

    def ref(self, n: int) -> tuple[LeaseRef, Item]:
        """One that was given some time, the latest ones rather than others."""
        ref = self.refs[-1 - (n % min(len(self.refs), 8))]
        return ref, self.model.items[ref.rollout_id]

    @precondition(lambda self: self.refs)
    @rule(n=pick, m=pick)
    def beat(self, n: int, m: int) -> None:
        refs = list(dict.fromkeys([self.ref(n)[0], self.ref(m)[0]]))
        verdicts = self.wait(self.store.heartbeat("w", refs))
        for ref, verdict in zip(refs, verdicts, strict=True):
            item = self.model.items[ref.rollout_id]
            if self.holds(ref) and item.held:
                assert verdict is Verdict.HELD
                item.held.expires_at = self.model.now + LEASE
            else:
                assert verdict is (Verdict.CANCEL if item.ended[ref] == "cancelled" else Verdict.LOST)

    @precondition(lambda self: self.refs)
    @rule(n=pick, how=endings)
    def end(self, n: int, how: str) -> None:
        """By a holder, or by one who was."""
        self.end_by(self.ref(n)[0], how)

    @precondition(lambda self: any(item.held for item in self.model.items.values()))
    @rule(n=pick, how=endings)
    def end_held(self, n: int, how: str) -> None:
        held = [item.held.ref for item in self.model.items.values() if item.held]
        self.end_by(held[n % len(held)], how)

    def end_by(self, ref: LeaseRef, how: str) -> None:
        item = self.model.items[ref.rollout_id]
        store = self.store
        if isinstance(how, FailureKind):
            call = store.fail(ref, how, "x")
        elif how == "complete":
            call = store.complete(ref)
        else:
            call = store.release(ref, 0 if how == "release" else 3)
        if not self.holds(ref):
            if item.ended[ref] == how.split()[0] or (item.ended[ref] == "cancelled" and how is FailureKind.CANCELLED):
                assert self.wait(call).state is item.state, "repeating an ending changes nothing"
            else:
                with pytest.raises(LeaseLost):
                    self.wait(call)
            return
        self.wait(call)
        if how is FailureKind.CANCELLED:
            item.cancel()
        elif isinstance(how, FailureKind):
            item.fail(how, how, self.model.now)
        elif how == "complete":
            item.end(how, RolloutState.SUCCEEDED)
        else:
            item.released += 1
            item.end("release", RolloutState.QUEUED, 0 if how == "release" else 3 * SECOND, self.model.now)

    @precondition(lambda self: self.refs)
    @rule(n=pick, value=st.sampled_from([0.0, 1.0]))
    def reward(self, n: int, value: float) -> None:
        ref, item = self.ref(n)
        call = self.store.add_rewards(ref, [Reward(value=value)])
        if not self.holds(ref):
            with pytest.raises(LeaseLost):
                self.wait(call)
        elif item.rewards.setdefault(ref.attempt, value) != value:
            with pytest.raises(Conflict):
                self.wait(call)
        else:
            self.wait(call)

    # -- by hand -------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.model.items)
    @rule(n=pick, group=st.sampled_from([None, None, *GROUPS]))
    def cancel(self, n: int, group: str | None) -> None:
        """One by its id, or a group."""
        chosen = [list(self.model.items)[n % len(self.model.items)]]
        if group is not None:
            chosen = [item_id for item_id, item in self.model.items.items() if item.new.group == group]
        live = [self.model.items[item_id] for item_id in chosen if not self.model.items[item_id].state.final]
        call = self.store.cancel(chosen) if group is None else self.store.cancel(run_id="run", group=group)
        assert self.wait(call) == len(live)
        for item in live:
            item.cancel()

    @precondition(lambda self: self.model.items)
    @rule(n=pick, m=pick)
    def requeue(self, n: int, m: int) -> None:
        ids = list(self.model.items)
        chosen = list(dict.fromkeys([ids[n % len(ids)], ids[m % len(ids)]]))
        request = f"q{next(self.numbers)}"
        call = self.store.requeue(chosen, request_id=request)
        if not all(self.model.items[item_id].state.final for item_id in chosen):
            with pytest.raises(Conflict):
                self.wait(call)
            return
        self.wait(call)
        for item_id in chosen:
            self.model.items[item_id].requeue()
            self.requeues = {key: made for key, made in self.requeues.items() if item_id not in made}
        self.requeues[request] = chosen

    @precondition(lambda self: self.requeues)
    @rule(n=pick)
    def requeue_again(self, n: int) -> None:
        request = list(self.requeues)[n % len(self.requeues)]
        rollouts = self.wait(self.store.requeue(self.requeues[request], request_id=request))
        assert [rollout.id for rollout in rollouts] == self.requeues[request]

    @rule(queue=st.sampled_from(QUEUES), paused=st.sampled_from([True, False, False]))
    def pause_or_resume(self, queue: str, paused: bool) -> None:
        assert self.wait(self.store.set_queue(queue, paused=paused)).paused is paused
        (self.model.paused.add if paused else self.model.paused.discard)(queue)

    @rule(queue=st.sampled_from(QUEUES), limit=st.sampled_from([None, None, None, 1, 2]))
    def limit(self, queue: str, limit: int | None) -> None:
        assert self.wait(self.store.set_queue(queue, max_running=limit)).counts.running == self.model.running(queue)
        self.model.limits[queue] = limit

    @rule(n=st.integers(0, 100))
    def publish(self, n: int) -> None:
        self.versions.append(self.wait(self.store.add_resources({"n": JSONResource(value=n)})).id)
        self.model.alive.append(True)

    @precondition(lambda self: self.versions)
    @rule(n=pick)
    def retire(self, n: int) -> None:
        n %= len(self.versions)
        assert not self.wait(self.store.retire_resources(self.versions[n])).alive
        self.model.alive[n] = False

    # -- time ----------------------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([1, 1, 3, 6]))
    def time_passes(self, seconds: int) -> None:
        for _ in range(seconds):
            self.move_clock(1)

    @rule(what=st.sampled_from(["stall", "set back", "restart"]), seconds=st.sampled_from([0, 1, 60]))
    def time_jumps(self, what: str, seconds: int) -> None:
        """The store is stalled, its clock is set back, or it is closed and opened again, with whatever it holds."""
        if what == "stall":
            self.move_clock(3600)
        elif what == "set back":
            self.move_clock(-3600)
            self.room.clock.now = self.model.now
        else:
            self.room.clock.advance(seconds)
            self.model.now = self.room.clock.now
            self.room.restart()
            self.model.restart(self.room.shared)

    def move_clock(self, seconds: int) -> None:
        self.room.clock.advance(seconds)
        self.model.now = max(self.model.now, self.room.clock.now)
        self.wait(self.room.kit.sql.sweep())
        self.model.sweep()

    # -- reading -------------------------------------------------------------------------------------------------------

    @rule()
    def read_counts(self) -> None:
        counts = self.wait(self.store.count("run"))
        items = self.model.items.values()
        assert {state: getattr(counts, state.value) for state in RolloutState} == {
            state: sum(item.state is state for item in items) for state in RolloutState
        }
        assert counts.failures == Counter(item.failure for item in items if item.state is RolloutState.FAILED)

    @invariant()
    def every_rollout_is_what_the_model_says(self) -> None:
        found = {
            rollout.id: (
                rollout.state,
                rollout.attempt,
                rollout.failures,
                rollout.lost,
                rollout.released,
                rollout.available_at,
                rollout.failure,
            )
            for rollout in self.wait(self.store.list_rollouts())
        }
        assert found == {
            item_id: (item.state, item.attempt, item.failures, item.lost, item.released, item.available_at, item.failure)
            for item_id, item in self.model.items.items()
        }
