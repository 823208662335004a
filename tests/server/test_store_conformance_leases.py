"""What every ``Store`` promises those who hold a lease, asked of each kind of it."""

from __future__ import annotations

import pytest
from storekit import Kit, make_generation, make_span, run, task

from leyden.errors import Conflict, InvalidRequest, LeaseLost, NotFound
from leyden.types import (
    LLM,
    AttemptState,
    Counts,
    FailureKind,
    LeaseRef,
    Mode,
    Reward,
    RolloutConfig,
    RolloutState,
    Verdict,
)


def test_completing_stores_rewards_and_repeats_as_a_no_op(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task()])
        (lease,) = await kit.store.claim("w")
        await kit.store.add_rewards(lease.ref, [Reward(name="partial", value=0.25, position="g1")])
        done = await kit.store.complete(lease.ref, [Reward(value=1.0)])
        assert done.state is RolloutState.SUCCEEDED and done.finished_at == kit.clock.now
        assert await kit.store.complete(lease.ref, [Reward(value=1.0)]) == done
        assert [(r.name, r.value, r.position) for r in await kit.store.list_rewards([done.id])] == [
            ("partial", 0.25, "g1"),
            ("reward", 1.0, "end"),
        ]
        with pytest.raises(Conflict):
            await kit.store.complete(lease.ref, [Reward(value=0.0)])
        with pytest.raises(LeaseLost):
            await kit.store.fail(lease.ref, FailureKind.AGENT, "no")

    run(check, kind)


def test_failing_repeats_as_a_no_op_even_after_the_next_claim(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task()])
        (lease,) = await kit.store.claim("w")
        assert (await kit.store.fail(lease.ref, FailureKind.TOOL, "boom")).state is RolloutState.QUEUED
        (second,) = await kit.store.claim("w")
        assert second.ref.attempt == 2
        again = await kit.store.fail(lease.ref, FailureKind.TOOL, "boom")
        assert again.state is RolloutState.RUNNING
        with pytest.raises(LeaseLost):
            await kit.store.fail(lease.ref, FailureKind.TOOL, "another")
        first, _ = await kit.store.list_attempts(lease.ref.rollout_id)
        assert (first.state, first.failure, first.error) == (AttemptState.FAILED, FailureKind.TOOL, "boom")

    run(check, kind)


def test_released_attempts_do_not_count(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task(config=RolloutConfig(max_attempts=1))])
        for _ in range(3):
            (lease,) = await kit.store.claim("w")
            released = await kit.store.release(lease.ref)
            assert released.state is RolloutState.QUEUED
            assert await kit.store.release(lease.ref) == released
        (lease,) = await kit.store.claim("w")
        assert lease.ref.attempt == 4
        assert (await kit.store.fail(lease.ref, FailureKind.TOOL)).state is RolloutState.FAILED

    run(check, kind)


def test_a_release_with_a_delay_waits_apart_and_does_not_count(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task(config=RolloutConfig(max_attempts=1), run_id="run")])
        (lease,) = await kit.store.claim("w")
        released = await kit.store.release(lease.ref, delay=8)
        assert (released.state, released.released) == (RolloutState.SCHEDULED, 1)
        assert await kit.store.release(lease.ref, delay=3) == released, "a repeat is a no-op, whatever delay it names"
        assert await kit.store.count("run") == Counts(scheduled=1)
        await kit.pass_time(7)
        assert await kit.store.claim("w") == []
        await kit.pass_time(1)
        (again,) = await kit.store.claim("w")
        assert (again.ref.attempt, again.rollout.released) == (2, 1)
        assert (await kit.store.fail(again.ref, FailureKind.TOOL)).state is RolloutState.FAILED
        for bad in (-1.0, 1e9, float("nan")):
            with pytest.raises(InvalidRequest, match="delay"):
                await kit.store.release(again.ref, delay=bad)

    run(check, kind)


def test_a_zombie_changes_nothing_and_what_it_captured_is_late(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task(run_id="run")])
        (old,) = await kit.store.claim("w1", lease_seconds=10)
        await kit.pass_time(11)
        (new,) = await kit.store.claim("w2")
        assert new.ref.token > old.ref.token and new.ref.attempt == 2
        assert await kit.store.heartbeat("w1", [old.ref]) == [Verdict.LOST]
        for write in (
            kit.store.complete(old.ref, [Reward(value=1.0)]),
            kit.store.fail(old.ref, FailureKind.AGENT, "x"),
            kit.store.release(old.ref),
            kit.store.add_rewards(old.ref, [Reward(value=1.0)]),
        ):
            with pytest.raises(LeaseLost):
                await write
        assert await kit.store.add_spans(old.ref, [make_span(1)]) == 1
        await kit.store.add_generations(old.ref, [make_generation(old.ref, "g-old")])
        await kit.store.add_generations(new.ref, [make_generation(new.ref, "g-new")])
        rollout_id = old.ref.rollout_id
        assert [span.late for span in await kit.store.list_spans(rollout_id)] == [True]
        assert [(g.id, g.late) for g in await kit.store.list_generations([rollout_id])] == [("g-new", False)]
        assert [(g.id, g.late) for g in await kit.store.list_generations([rollout_id], attempt=1)] == [("g-old", True)]
        assert await kit.store.list_rewards([rollout_id], attempt=1) == []
        assert (await kit.store.get_rollout(rollout_id)).state is RolloutState.RUNNING
        first, second = await kit.store.list_attempts(rollout_id)
        assert (first.state, first.failure, second.state) == (AttemptState.LOST, FailureKind.LOST, AttemptState.RUNNING)
        assert await kit.store.count("run") == Counts(running=1)
        await kit.store.complete(new.ref)

    run(check, kind)


def test_a_token_that_was_never_issued_is_refused(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task()])
        (lease,) = await kit.store.claim("w")
        forged = lease.ref.model_copy(update={"token": lease.ref.token + 1})
        for write in (kit.store.complete(forged), kit.store.add_spans(forged, [make_span()])):
            with pytest.raises(LeaseLost):
                await write
        with pytest.raises(NotFound):
            await kit.store.complete(LeaseRef(rollout_id="nobody", attempt=1, token=1))
        assert await kit.store.list_spans(lease.ref.rollout_id) == []

    run(check, kind)


def test_beats_keep_a_lease_and_silence_loses_it(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task("kept"), task("lost")])
        kept, lost = await kit.store.claim("w", 2, lease_seconds=10)
        for _ in range(6):
            await kit.pass_time(6)
            assert await kit.store.heartbeat("w", [kept.ref]) == [Verdict.HELD]
        assert await kit.store.heartbeat("w", [lost.ref, kept.ref]) == [Verdict.LOST, Verdict.HELD]
        assert (await kit.store.get_rollout(lost.ref.rollout_id)).state is RolloutState.QUEUED

    run(check, kind)


def test_an_attempt_past_its_deadline_times_out_although_it_beats(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task(config=RolloutConfig(attempt_timeout=20))])
        (lease,) = await kit.store.claim("w", lease_seconds=10)
        for _ in range(3):
            await kit.pass_time(6)
            await kit.store.heartbeat("w", [lease.ref])
        await kit.pass_time(3)
        assert await kit.store.heartbeat("w", [lease.ref]) == [Verdict.LOST]
        rollout = await kit.store.get_rollout(lease.ref.rollout_id)
        assert (rollout.state, rollout.failure) == (RolloutState.FAILED, FailureKind.TIMEOUT)

    run(check, kind)


def test_a_repeated_claim_request_gives_the_same_lease_and_key(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task(1), task(2)])
        first = await kit.store.claim("w", request_id="r")
        assert await kit.store.claim("w", request_id="r") == first
        assert len(await kit.store.claim("w", 5, request_id="r2")) == 1
        assert await kit.store.claim("stranger", request_id="r") == []

    run(check, kind)


def test_a_key_cannot_be_made_from_another(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task(), task()])
        one, other = await kit.store.claim("w", 2)
        rollout_id, attempt, token, proof = one.key.split(".")
        assert (rollout_id, attempt, token) == (one.ref.rollout_id, str(one.ref.attempt), str(one.ref.token))
        for made in (
            f"{other.ref.rollout_id}.{attempt}.{token}.{proof}",
            f"{rollout_id}.2.{token}.{proof}",
            f"{rollout_id}.{attempt}.3.{proof}",
            f"{rollout_id}.0{attempt}.{token}.{proof}",
            f"{rollout_id}.\N{ARABIC-INDIC DIGIT ONE}.{token}.{proof}",
            f"{rollout_id}.{attempt}.{token}.{'A' * 43}",
            f"{rollout_id}.{attempt}.{token}.",
            f"{rollout_id}.{attempt}.{token}",
            f"{rollout_id}.{'9' * 30}.{token}.{proof}",
            f"{one.key}\n",
            proof,
            "A" * 43,
            "",
        ):
            with pytest.raises(NotFound, match="never issued"):
                await kit.store.resolve_key(made)
        assert (await kit.store.resolve_key(one.key)).ref == one.ref

    run(check, kind)


def test_a_key_stands_for_its_attempt_while_the_lease_lasts(kind: str) -> None:
    async def check(kit: Kit) -> None:
        version = await kit.store.add_resources({"llm": LLM(endpoint="http://127.0.0.1/v1", model="m", proxied=True)})
        await kit.store.enqueue([task(run_id="run", iteration=1, mode=Mode.TEST)])
        (lease,) = await kit.store.claim("w")
        binding = await kit.store.resolve_key(lease.key)
        assert binding.ref == lease.ref and binding.resources == version == lease.resources
        assert (binding.run_id, binding.iteration, binding.mode) == ("run", 1, Mode.TEST)
        assert await kit.store.resolve_attempt(lease.ref.rollout_id, 1) == binding
        await kit.store.complete(lease.ref)
        for ended in (kit.store.resolve_key(lease.key), kit.store.resolve_attempt(lease.ref.rollout_id, 1)):
            with pytest.raises(LeaseLost):
                await ended
        for unknown in (
            kit.store.resolve_key("guess"),
            kit.store.resolve_attempt("nobody", 1),
            kit.store.resolve_attempt(lease.ref.rollout_id, 2),
        ):
            with pytest.raises(NotFound):
                await unknown

    run(check, kind)
