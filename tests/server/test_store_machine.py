"""The queue against a model of it, in random order, on a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule
from storekit import open_kit

from leyden.errors import LeaseLost
from leyden.types import AttemptState, FailureKind, LeaseRef, Mode, NewRollout, RolloutConfig, RolloutState, Verdict

T = TypeVar("T")
LEASE = 10


@dataclass
class Model:
    """What a rollout should be: its state, and the one lease that is valid."""

    state: RolloutState = RolloutState.QUEUED
    held: LeaseRef | None = None


class QueueMachine(RuleBasedStateMachine):
    refs = Bundle("refs")

    @initialize()
    def open(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.stack = AsyncExitStack()
        self.kit = self.wait(self.stack.enter_async_context(open_kit("sqlite")))
        self.models: dict[str, Model] = {}
        self.tokens: dict[str, int] = {}
        self.ended: dict[LeaseRef, str] = {}

    def wait(self, call: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(call)

    def teardown(self) -> None:
        self.wait(self.stack.aclose())
        self.loop.close()

    @rule(n=st.integers(1, 3), mode=st.sampled_from(Mode), attempts=st.integers(1, 3), delay=st.sampled_from([0.0, 4.0]))
    def enqueue(self, n: int, mode: Mode, attempts: int, delay: float) -> None:
        config = RolloutConfig(max_attempts=attempts, retry_delay=delay, attempt_timeout=25, retry_on=(FailureKind.TOOL, FailureKind.LOST))
        new = [NewRollout(input=i, mode=mode, run_id="run", config=config) for i in range(n)]
        for rollout in self.wait(self.kit.store.enqueue(new)):
            self.models[rollout.id] = Model()

    @rule(target=refs, worker=st.sampled_from(["a", "b"]))
    def claim(self, worker: str) -> LeaseRef | None:
        ready = [rollout_id for rollout_id, model in self.models.items() if model.state is RolloutState.QUEUED]
        leases = self.wait(self.kit.store.claim(worker, lease_seconds=LEASE))
        assert len(leases) == min(1, len(ready))
        if not leases:
            return None
        ref = leases[0].ref
        model = self.models[ref.rollout_id]
        assert model.state is RolloutState.QUEUED and model.held is None
        assert ref.token > self.tokens.get(ref.rollout_id, 0), "a token is never issued again"
        self.tokens[ref.rollout_id] = ref.token
        model.state, model.held = RolloutState.RUNNING, ref
        return ref

    @rule(ref=refs, how=st.sampled_from(["complete", "tool", "agent", "release", "release later"]))
    def end(self, ref: LeaseRef | None, how: str) -> None:
        if ref is None:
            return
        call: Coroutine[Any, Any, Any] = {
            "complete": lambda: self.kit.store.complete(ref),
            "tool": lambda: self.kit.store.fail(ref, FailureKind.TOOL, "x"),
            "agent": lambda: self.kit.store.fail(ref, FailureKind.AGENT, "x"),
            "release": lambda: self.kit.store.release(ref),
            "release later": lambda: self.kit.store.release(ref, 4.0),
        }[how]()
        model = self.models[ref.rollout_id]
        if model.held == ref:
            after = self.wait(call)
            model.held = None
            model.state = after.state
            self.ended[ref] = how
            allowed = {
                "complete": {RolloutState.SUCCEEDED},
                "tool": {RolloutState.QUEUED, RolloutState.SCHEDULED, RolloutState.FAILED},
                "agent": {RolloutState.FAILED},
                "release": {RolloutState.QUEUED},
                "release later": {RolloutState.SCHEDULED},
            }[how]
            assert after.state in allowed
        elif self.ended.get(ref, "-").split()[0] == how.split()[0]:
            assert self.wait(call).state is model.state, "repeating an ending changes nothing"
        else:
            with pytest.raises(LeaseLost):
                self.wait(call)

    @rule(ref=refs)
    def beat(self, ref: LeaseRef | None) -> None:
        if ref is None:
            return
        (verdict,) = self.wait(self.kit.store.heartbeat("w", [ref]))
        assert (verdict is Verdict.HELD) == (self.models[ref.rollout_id].held == ref)

    @rule(ref=refs)
    def cancel(self, ref: LeaseRef | None) -> None:
        if ref is None:
            return
        model = self.models[ref.rollout_id]
        assert self.wait(self.kit.store.cancel([ref.rollout_id])) == (0 if model.state.final else 1)
        if not model.state.final:
            model.state, model.held = RolloutState.CANCELLED, None

    @rule(seconds=st.sampled_from([1, 3, 11]))
    def pass_time(self, seconds: int) -> None:
        self.wait(self.kit.pass_time(seconds))
        for rollout_id, model in self.models.items():
            rollout = self.wait(self.kit.store.get_rollout(rollout_id))
            if model.state.final:
                assert rollout.state is model.state, "final is final"
            if rollout.state is not RolloutState.RUNNING:
                model.held = None
            model.state = rollout.state

    @invariant()
    def every_rollout_is_what_the_model_says_and_is_counted_once(self) -> None:
        rollouts = self.wait(self.kit.store.list_rollouts())
        assert {rollout.id: rollout.state for rollout in rollouts} == {i: model.state for i, model in self.models.items()}
        recount = Counter(rollout.state.value for rollout in rollouts)
        assert self.wait(self.kit.store.count("run")).model_dump() == {state.value: recount[state.value] for state in RolloutState}
        for rollout in rollouts:
            attempts = self.wait(self.kit.store.list_attempts(rollout.id))
            running = [attempt for attempt in attempts if attempt.state is AttemptState.RUNNING]
            assert len(running) == (1 if rollout.state is RolloutState.RUNNING else 0)
            assert sum(a.state is not AttemptState.RELEASED for a in attempts) <= rollout.config.max_attempts


QueueMachine.TestCase.settings = settings(
    max_examples=30, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
)
test_the_queue_keeps_to_its_model = QueueMachine.TestCase
