"""What every ``Store`` promises, asked of the store in process and of the client over real HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from storekit import Kit, make_generation, make_span, run, task

from leyden.errors import Conflict, InvalidRequest, LeaseLost, NotFound
from leyden.types import (
    LLM,
    AttemptState,
    Counts,
    Episode,
    FailureKind,
    JSONResource,
    LeaseRef,
    Mode,
    NewRollout,
    PromptTemplate,
    Reward,
    RolloutConfig,
    RolloutState,
    RunState,
    Verdict,
)

Test = Callable[[Kit], Coroutine[Any, Any, None]]


@pytest.fixture(params=["sql", "http"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_rollout_reads_back_as_it_was_queued(kind: str) -> None:
    async def check(kit: Kit) -> None:
        new = NewRollout(
            input={"text": "né\0 \U0001f600", "big": 2**70, "nan_free": [1.5, None, True]},
            mode=Mode.VAL,
            priority=-3,
            run_id="run",
            iteration=2,
            config=RolloutConfig(attempt_timeout=7, max_attempts=5, retry_on=(FailureKind.TIMEOUT,), retry_delay=2),
            episode=Episode(environment_class_id="e", episode_spec_id="s", episode_id="i", seed=2**62),
            group="g",
            metadata={"k": [1]},
        )
        (queued,) = await kit.store.enqueue([new])
        got = await kit.store.get_rollout(queued.id)
        assert got == queued
        for name in ("input", "mode", "priority", "run_id", "iteration", "config", "episode", "group", "metadata"):
            assert getattr(got, name) == getattr(new, name), name
        assert (got.state, got.attempt, got.created_at) == (RolloutState.QUEUED, 0, kit.clock.now)

    run(check, kind)


def test_lone_surrogates_become_replacement_characters(kind: str) -> None:
    async def check(kit: Kit) -> None:
        (queued,) = await kit.store.enqueue([task({"a\ud800": ["\udfff"]}, group="g\ud800")])
        assert queued.input == {"a\ufffd": ["\ufffd"]}
        assert queued.group == "g\ufffd"

    run(check, kind)


def test_claims_take_best_priority_first_then_oldest(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task("late", priority=1), task("a"), task("b"), task("first", priority=-1)])
        leases = await kit.store.claim("w", 3)
        assert [lease.rollout.input for lease in leases] == ["first", "a", "b"]
        assert [lease.rollout.input for lease in await kit.store.claim("w", 3)] == ["late"]
        assert await kit.store.claim("w", 3) == []

    run(check, kind)


def test_an_idempotency_key_queues_once_for_ever(kind: str) -> None:
    async def check(kit: Kit) -> None:
        (first,) = await kit.store.enqueue([task(1, idempotency_key="k")])
        (lease,) = await kit.store.claim("w")
        await kit.store.complete(lease.ref)
        (again,) = await kit.store.enqueue([task(1, idempotency_key="k")])
        assert again.id == first.id and again.state is RolloutState.SUCCEEDED
        with pytest.raises(Conflict):
            await kit.store.enqueue([task("other"), task(2, idempotency_key="k")])
        assert len(await kit.store.list_rollouts()) == 1, "all or none"

    run(check, kind)


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


@pytest.mark.parametrize(
    ("failure", "attempt_state", "rollout_state"),
    [
        (FailureKind.AGENT, AttemptState.FAILED, RolloutState.FAILED),
        (FailureKind.TIMEOUT, AttemptState.TIMED_OUT, RolloutState.FAILED),
        (FailureKind.CANCELLED, AttemptState.CANCELLED, RolloutState.CANCELLED),
        (FailureKind.INFRASTRUCTURE, AttemptState.FAILED, RolloutState.QUEUED),
    ],
)
def test_each_failure_kind_has_its_retry_rule(
    kind: str, failure: FailureKind, attempt_state: AttemptState, rollout_state: RolloutState
) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task()])
        (lease,) = await kit.store.claim("w")
        rollout = await kit.store.fail(lease.ref, failure, "x")
        assert rollout.state is rollout_state
        assert rollout.failure is (failure if rollout_state.final else None)
        (attempt,) = await kit.store.list_attempts(rollout.id)
        assert attempt.state is attempt_state

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


def test_queueing_again_moves_what_is_not_final_to_the_resources_named_now(kind: str) -> None:
    async def check(kit: Kit) -> None:
        old = await kit.store.add_resources({"x": JSONResource(value=1)})
        keys = ("done", "running", "scheduled", "queued")

        def tasks(resources_id: str | None) -> list[NewRollout]:
            return [task(key, idempotency_key=key, resources_id=resources_id) for key in keys]

        first = await kit.store.enqueue(tasks(old.id))
        done, running, scheduled = await kit.store.claim("w", 3)
        await kit.store.complete(done.ref)
        await kit.store.release(scheduled.ref, delay=5)
        await kit.store.retire_resources(old.id)
        new = await kit.store.add_resources({"x": JSONResource(value=2)})
        moved = await kit.store.enqueue(tasks(new.id))
        assert [rollout.id for rollout in moved] == [rollout.id for rollout in first]
        assert [rollout.resources_id for rollout in moved] == [old.id, new.id, new.id, new.id]
        assert (await kit.store.resolve_key(running.key)).resources == old.model_copy(update={"alive": False})
        assert await kit.store.heartbeat("w", [running.ref]) == [Verdict.HELD]
        await kit.store.release(running.ref)
        await kit.pass_time(5)
        leases = await kit.store.claim("w", 5)
        assert {lease.rollout.input: lease.resources for lease in leases} == dict.fromkeys(("running", "scheduled", "queued"), new)
        assert await kit.store.enqueue(tasks(old.id)) == await kit.store.list_rollouts(), "a late request moves nothing to what is retired"
        with pytest.raises(Conflict):
            await kit.store.enqueue([task("else", idempotency_key="queued", resources_id=new.id)])
        with pytest.raises(NotFound):
            await kit.store.enqueue([task("queued", idempotency_key="queued", resources_id="nobody")])

    run(check, kind)


def test_a_claim_that_waits_gets_what_moved_to_live_resources(kind: str) -> None:
    async def check(kit: Kit) -> None:
        old = await kit.store.add_resources({"x": JSONResource(value=1)})
        await kit.store.enqueue([task(idempotency_key="k", resources_id=old.id)])
        await kit.store.retire_resources(old.id)
        new = await kit.store.add_resources({"x": JSONResource(value=2)})
        waiting = asyncio.create_task(kit.store.claim("w", wait=20))
        await kit.store.enqueue([task(idempotency_key="k", resources_id=new.id)])
        (lease,) = await waiting
        assert lease.resources == new

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
        for _ in range(4):
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


def test_cancel_ends_waiting_ones_and_voids_leases(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task(run_id="run") for _ in range(3)] + [task(run_id="other")])
        held, done = await kit.store.claim("w", 2)
        await kit.store.complete(done.ref)
        assert await kit.store.cancel(run_id="run") == 2
        assert await kit.store.cancel(run_id="run") == 0
        assert await kit.store.heartbeat("w", [held.ref]) == [Verdict.CANCEL]
        assert (await kit.store.fail(held.ref, FailureKind.CANCELLED, "stopped")).state is RolloutState.CANCELLED
        with pytest.raises(LeaseLost):
            await kit.store.complete(held.ref)
        assert await kit.store.count("run") == Counts(succeeded=1, cancelled=2)
        assert await kit.store.count("other") == Counts(queued=1)
        with pytest.raises(NotFound):
            await kit.store.cancel(["nobody"])

    run(check, kind)


def test_a_repeated_claim_request_gives_the_same_lease_and_key(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task(1), task(2)])
        first = await kit.store.claim("w", request_id="r")
        assert await kit.store.claim("w", request_id="r") == first
        assert len(await kit.store.claim("w", 5, request_id="r2")) == 1
        assert await kit.store.claim("stranger", request_id="r") == []

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


def test_generations_read_back_exactly_and_count_once(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task()])
        (lease,) = await kit.store.claim("w")
        full = make_generation(
            lease.ref,
            "g1",
            prompt_token_ids=[0, 2**31 - 1],
            response_token_ids=[5, 6],
            logprobs=[-0.5, -9999.0],
            sampling={"temperature": 1.0},
            request={"messages": [{"role": "user", "content": "é\0"}], "x": 1e300},
            response={"role": "assistant", "content": None},
            finish_reason="stop",
            prompt_tokens=2,
            completion_tokens=2,
        )
        await kit.store.add_generations(lease.ref, [full, make_generation(lease.ref, "g0", started_at=0)])
        await kit.store.add_generations(lease.ref, [full])
        assert await kit.store.list_generations([lease.ref.rollout_id]) == [make_generation(lease.ref, "g0", started_at=0), full]
        with pytest.raises(InvalidRequest):
            await kit.store.add_generations(
                lease.ref, [make_generation(lease.ref, "g2"), make_generation(lease.ref, "g3", prompt_token_ids=[2**31])]
            )
        with pytest.raises(InvalidRequest):
            await kit.store.add_generations(lease.ref, [make_generation(lease.ref, "g4", response_token_ids=[1], logprobs=[])])
        assert len(await kit.store.list_generations([lease.ref.rollout_id])) == 2, "all or none"

    run(check, kind)


def test_spans_dedupe_and_lose_their_secrets(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task()])
        (lease,) = await kit.store.claim("w")
        secret = "sk-" + "a1b2c3d4e5f6g7h8i9j0k1"
        attributes = {"http.headers": {"Authorization": "Bearer " + "x1" * 20}, "text": f"key is {secret} ok", "api_key": "anything"}
        assert await kit.store.add_spans(lease.ref, [make_span(1, attributes=attributes), make_span(2), make_span(2)]) == 2
        assert await kit.store.add_spans(lease.ref, [make_span(1), make_span(3)]) == 1
        one, two, three = await kit.store.list_spans(lease.ref.rollout_id)
        assert one.attributes == {
            "http.headers": {"Authorization": "[redacted]"},
            "text": "key is [redacted] ok",
            "api_key": "[redacted]",
        }
        assert (two.rollout_id, two.attempt, three.late) == (lease.ref.rollout_id, 1, False)

    run(check, kind)


def test_a_generation_loses_its_secrets(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task()])
        (lease,) = await kit.store.claim("w")
        text = "use sk-" + "a1b2c3d4e5f6g7h8i9j0k1"
        message = {"role": "assistant", "content": text}
        new = make_generation(lease.ref, "g", sampling={"api_key": "x", "seed": 1}, request={"messages": [message]}, response=message)
        await kit.store.add_generations(lease.ref, [new])
        (kept,) = await kit.store.list_generations([lease.ref.rollout_id])
        assert kept.sampling == {"api_key": "[redacted]", "seed": 1}
        assert kept.response == kept.request["messages"][0] == message | {"content": "use [redacted]"}

    run(check, kind)


def test_a_reward_counts_once(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task()])
        (lease,) = await kit.store.claim("w")
        for _ in range(2):
            await kit.store.add_rewards(lease.ref, [Reward(value=0.5), Reward(value=0.7, source="verifier")])
        with pytest.raises(Conflict):
            await kit.store.add_rewards(lease.ref, [Reward(value=0.1, name="new"), Reward(value=0.6)])
        assert [reward.value for reward in await kit.store.list_rewards([lease.ref.rollout_id])] == [0.5, 0.7]

    run(check, kind)


def test_nothing_is_claimed_for_resources_that_are_not_alive(kind: str) -> None:
    async def check(kit: Kit) -> None:
        leased = await kit.store.add_resources({"x": JSONResource(value=1)}, lease_seconds=5)
        pinned, _ = await kit.store.enqueue([task("pinned", resources_id=leased.id), task("latest")])
        kit.clock.advance(6)
        assert not (await kit.store.get_resources()).alive
        assert await kit.store.claim("w") == []
        waiting = asyncio.create_task(kit.store.claim("w", wait=20))
        await kit.store.keep_resources(leased.id, 5)
        (lease,) = await waiting
        assert lease.rollout.id == pinned.id and lease.resources is not None and lease.resources.id == leased.id
        assert not (await kit.store.retire_resources(leased.id)).alive
        with pytest.raises(LeaseLost):
            await kit.store.keep_resources(leased.id, 5)
        assert await kit.store.claim("w") == []
        newer = await kit.store.add_resources({"p": PromptTemplate(template="{q}")}, idempotency_key="k")
        assert await kit.store.add_resources({"p": PromptTemplate(template="{q}")}, idempotency_key="k") == newer
        (lease,) = await kit.store.claim("w")
        assert lease.rollout.input == "latest" and lease.resources == newer
        assert (await kit.store.list_attempts(lease.rollout.id))[0].resources_id == newer.id
        with pytest.raises(NotFound):
            await kit.store.enqueue([task(resources_id="nobody")])

    run(check, kind)


def test_resources_with_a_key_in_them_are_refused(kind: str) -> None:
    async def check(kit: Kit) -> None:
        with pytest.raises(InvalidRequest, match="api_key"):
            await kit.store.add_resources({"llm": LLM(endpoint="http://x/v1", model="m", api_key="sk-" + "a1" * 20)})

    run(check, kind)


def test_a_claim_that_waits_is_woken_by_work(kind: str) -> None:
    async def check(kit: Kit) -> None:
        waiting = [asyncio.create_task(kit.store.claim(f"w{i}", wait=20)) for i in range(3)]
        (worker,) = [await kit.store.register_worker("w0", "runner", 4, pid=1, host="h")]
        assert worker.capacity == 4
        await kit.store.enqueue([task(i) for i in range(3)])
        given = [lease.rollout.input for leases in await asyncio.gather(*waiting) for lease in leases]
        assert sorted(given) == [0, 1, 2]

    run(check, kind)


def test_a_retry_waits_apart_and_wakes_a_claim_when_due(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task(config=RolloutConfig(retry_delay=8))])
        (lease,) = await kit.store.claim("w")
        assert (await kit.store.fail(lease.ref, FailureKind.TOOL)).state is RolloutState.SCHEDULED
        await kit.pass_time(3.5)  # the jitter is 0.5: four seconds
        assert await kit.store.claim("w") == []
        waiting = asyncio.create_task(kit.store.claim("w", wait=20))
        await kit.pass_time(1)
        (again,) = await waiting
        assert again.ref.attempt == 2

    run(check, kind)


def test_waiting_for_rollouts_ends_with_the_last_or_the_nth(kind: str) -> None:
    async def check(kit: Kit) -> None:
        ids = [rollout.id for rollout in await kit.store.enqueue([task(i) for i in range(3)])]
        leases = await kit.store.claim("w", 3)
        all_of_them = asyncio.create_task(kit.store.wait_rollouts(ids, wait=20))
        await kit.store.complete(leases[1].ref)
        assert [rollout.id for rollout in await kit.store.wait_rollouts(ids, wait=20, done=1)] == [ids[1]]
        await kit.store.cancel([ids[0]])
        await kit.store.fail(leases[2].ref, FailureKind.AGENT)
        assert [rollout.state for rollout in await all_of_them] == [RolloutState.CANCELLED, RolloutState.SUCCEEDED, RolloutState.FAILED]
        with pytest.raises(NotFound):
            await kit.store.wait_rollouts([*ids, "nobody"])

    run(check, kind)


def test_listing_filters_and_pages_in_order_of_creation(kind: str) -> None:
    async def check(kit: Kit) -> None:
        made = await kit.store.enqueue([task(i, run_id="run", iteration=i % 2, mode=Mode.VAL if i > 3 else Mode.TRAIN) for i in range(6)])
        ids = [rollout.id for rollout in made]
        assert await kit.store.list_rollouts(run_id="run", iteration=1) == made[1::2]
        assert await kit.store.list_rollouts(mode=Mode.VAL) == made[4:]
        assert await kit.store.list_rollouts(after=ids[1], limit=2) == made[2:4]
        assert await kit.store.list_rollouts(ids=[ids[5], ids[0], "nobody"]) == [made[0], made[5]]
        assert await kit.store.list_rollouts(state=RolloutState.RUNNING) == []
        assert await kit.store.count("run", iteration=0) == Counts(queued=3)
        assert await kit.store.count("run", mode=Mode.VAL) == Counts(queued=2)
        for bad in (0, 10**9):
            with pytest.raises(InvalidRequest, match="limit"):
                await kit.store.list_rollouts(limit=bad)

    run(check, kind)


def test_a_run_has_one_driver(kind: str) -> None:
    async def check(kit: Kit) -> None:
        first = await kit.store.start_run("run", {"lr": 1}, lease_seconds=10)
        assert (first.epoch, first.state, first.config) == (1, RunState.RUNNING, {"lr": 1})
        with pytest.raises(Conflict):
            await kit.store.start_run("run", {})
        kit.clock.advance(11)
        assert (await kit.store.start_run("run", {"lr": 2})).epoch == 2
        assert (await kit.store.start_run("run", {"lr": 3}, take_over=True)).epoch == 3
        for stale in (kit.store.keep_run("run", 2), kit.store.finish_run("run", 2, RunState.FAILED)):
            with pytest.raises(LeaseLost):
                await stale
        await kit.store.keep_run("run", 3)
        done = await kit.store.finish_run("run", 3, RunState.SUCCEEDED, {"champion": "version_1"})
        assert await kit.store.finish_run("run", 3, RunState.SUCCEEDED, {"champion": "version_1"}) == done
        assert await kit.store.get_run("run") == done and await kit.store.list_runs() == [done]
        with pytest.raises(LeaseLost):
            await kit.store.keep_run("run", 3)
        with pytest.raises(NotFound):
            await kit.store.get_run("nobody")

    run(check, kind)


def test_workers_are_seen_while_they_beat(kind: str) -> None:
    async def check(kit: Kit) -> None:
        for name in ("a", "b", "c"):
            await kit.store.register_worker(name, f"runner {name}", 2)
        await kit.store.enqueue([task()])
        await kit.store.claim("a")
        kit.clock.advance(30)
        await kit.store.heartbeat("a", [])
        await kit.store.heartbeat("c", [])
        await kit.store.stop_worker("c")
        (alive,) = await kit.store.list_workers(alive_within=15)
        assert (alive.id, alive.running, alive.last_seen_at) == ("a", 1, kit.clock.now)
        assert [worker.id for worker in await kit.store.list_workers()] == ["a", "b", "c"]

    run(check, kind)


def test_a_worker_that_has_ended_holds_nothing_any_more_and_nobody_lost_an_attempt(kind: str) -> None:
    async def check(kit: Kit) -> None:
        for name in ("a", "b"):
            await kit.store.register_worker(name, f"runner {name}", 2)
        await kit.store.enqueue([task() for _ in range(3)])
        left = await kit.store.claim("a", limit=2)
        (other,) = await kit.store.claim("b")
        for _ in range(2):  # a repeat is a no-op
            assert (await kit.store.stop_worker("a")).running == 0
        assert await kit.store.heartbeat("b", [other.ref]) == [Verdict.HELD]
        for lease in left:
            item = await kit.store.get_rollout(lease.rollout.id)
            assert (item.state, item.released) == (RolloutState.QUEUED, 1)
            with pytest.raises(LeaseLost):
                await kit.store.complete(lease.ref, [])

    run(check, kind)


def test_bad_arguments_are_named(kind: str) -> None:
    async def check(kit: Kit) -> None:
        for call, field in (
            (kit.store.claim("not an id"), "worker_id"),
            (kit.store.claim("w", limit=0), "limit"),
            (kit.store.claim("w", wait=21), "wait"),
            (kit.store.claim("w", lease_seconds=-1), "lease_seconds"),
            (kit.store.wait_rollouts([], wait=float("nan")), "wait"),
            (kit.store.enqueue([task(episode=Episode(seed=2**70))]), "64 bits"),
            (kit.store.enqueue([task(object())]), "JSON"),
        ):
            with pytest.raises(InvalidRequest, match=field):
                await call

    run(check, kind)
