"""What every ``Store`` promises of its queue, asked of each kind of it."""

from __future__ import annotations

import asyncio

import pytest
from storekit import Kit, run, task

from leyden.errors import Conflict, InvalidRequest, LeaseLost, NotFound
from leyden.types import (
    AttemptState,
    Counts,
    Episode,
    FailureKind,
    JSONResource,
    Mode,
    NewRollout,
    RolloutConfig,
    RolloutState,
    Verdict,
)


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
