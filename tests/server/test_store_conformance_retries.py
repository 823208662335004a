"""What every ``Store`` promises of scheduled starts, of retries, and of what is queued twice."""

from __future__ import annotations

import asyncio

import pytest
from storekit import Kit, run, task

from leyden.errors import Conflict, InvalidRequest, NotFound
from leyden.types import Counts, Episode, FailureKind, NewRollout, RolloutConfig, RolloutState


def test_a_scheduled_start_waits_apart_and_wakes_a_claim_when_due(kind: str) -> None:
    async def check(kit: Kit) -> None:
        later, now = await kit.store.enqueue([task("later", delay=3, priority=-9, run_id="run"), task("now", run_id="run")])
        assert (later.state, later.available_at) == (RolloutState.SCHEDULED, kit.clock.now + 3_000_000)
        assert await kit.store.count("run") == Counts(queued=1, scheduled=1)
        (lease,) = await kit.store.claim("w", 5)
        assert lease.rollout.id == now.id
        waiting = asyncio.create_task(kit.store.claim("w", wait=20))
        await kit.pass_time(3)
        (lease,) = await waiting
        assert (lease.rollout.id, lease.rollout.available_at) == (later.id, None)
        (never,) = await kit.store.enqueue([task(delay=1000)])
        assert await kit.store.cancel([never.id]) == 1

    run(check, kind)


def test_each_kind_of_failure_waits_its_own_time_doubled_with_each_failure(kind: str) -> None:
    async def check(kit: Kit) -> None:
        config = RolloutConfig(
            max_attempts=4, retry_delay=2, retry_delays={FailureKind.INFRASTRUCTURE: 8, FailureKind.TOOL: 0}, retry_on=tuple(FailureKind)
        )
        await kit.store.enqueue([task(config=config)])
        waits = []
        for failure in (FailureKind.AGENT, FailureKind.INFRASTRUCTURE, FailureKind.TOOL):
            (lease,) = await kit.store.claim("w")
            item = await kit.store.fail(lease.ref, failure)
            wait = 0 if item.available_at is None else item.available_at - kit.clock.now
            waits.append(wait / 1e6)
            await kit.pass_time(wait / 1e6)
        assert waits == [1.0, 8.0, 0.0], "half (the jitter here) of 2, of 8 * 2, and of nothing"
        (lease,) = await kit.store.claim("w")
        assert (await kit.store.fail(lease.ref, FailureKind.AGENT)).state is RolloutState.FAILED

    run(check, kind)


def test_losses_and_failures_have_budgets_of_their_own_and_releases_count_for_neither(kind: str) -> None:
    async def check(kit: Kit) -> None:
        config = RolloutConfig(max_attempts=2, max_lost=2, retry_delay=0)
        broken, unlucky = await kit.store.enqueue([task("broken", config=config), task("unlucky", config=config)])

        async def lose(rollout_id: str) -> None:
            for lease in await kit.store.claim("w", 2, lease_seconds=5):
                if lease.rollout.id != rollout_id:
                    await kit.store.release(lease.ref)
            await kit.pass_time(6)

        async def fail(rollout_id: str) -> None:
            for lease in await kit.store.claim("w", 2):
                if lease.rollout.id == rollout_id:
                    await kit.store.fail(lease.ref, FailureKind.TOOL)
                else:
                    await kit.store.release(lease.ref)

        await lose(broken.id)
        await fail(broken.id)
        item = await kit.store.get_rollout(broken.id)
        assert (item.state, item.failures, item.lost) == (RolloutState.QUEUED, 1, 1), "neither budget is used up"
        await fail(broken.id)
        item = await kit.store.get_rollout(broken.id)
        assert (item.state, item.failure, item.failures, item.lost) == (RolloutState.FAILED, FailureKind.TOOL, 2, 1)
        await fail(unlucky.id)
        await lose(unlucky.id)
        await lose(unlucky.id)
        item = await kit.store.get_rollout(unlucky.id)
        assert (item.state, item.failure, item.failures, item.lost) == (RolloutState.FAILED, FailureKind.LOST, 1, 2)
        assert item.released == 3

    run(check, kind)


def test_a_lost_one_is_ready_at_once_whatever_its_retries_wait(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task(config=RolloutConfig(retry_delay=3600))])
        await kit.store.claim("w", lease_seconds=5)
        await kit.pass_time(5)
        (lease,) = await kit.store.claim("w")
        assert (lease.ref.attempt, lease.rollout.lost, lease.rollout.failures) == (2, 1, 0)

    run(check, kind)


def test_an_error_names_the_item_and_nothing_is_queued(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task(1, idempotency_key="k")])
        good = [task("good", idempotency_key="good")]
        for bad, error, said in (
            (task(object()), InvalidRequest, "JSON"),
            (task(episode=Episode(seed=2**70)), InvalidRequest, r"rollouts\.1: episode\.seed: .* 64 bits"),
            (task(iteration=2**63), InvalidRequest, r"rollouts\.1: iteration"),
            (task(resources_id="nobody"), NotFound, r"rollouts\.1: resources nobody"),
            (task(2, idempotency_key="k"), Conflict, r"rollouts\.1: idempotency key 'k'"),
            (task(1, idempotency_key="k", delay=5), Conflict, r"rollouts\.1"),
            (task("else", idempotency_key="good"), Conflict, r"rollouts\.1: idempotency key 'good'"),
        ):
            with pytest.raises(error, match=said):
                await kit.store.enqueue([*good, bad])
        assert [item.input for item in await kit.store.list_rollouts()] == [1]

    run(check, kind)


def test_a_batch_with_used_keys_gets_an_answer_for_each_item_in_order(kind: str) -> None:
    async def check(kit: Kit) -> None:
        first, second = await kit.store.enqueue([task(1, idempotency_key="a"), task(2, idempotency_key="odd \0 key")])
        again = await kit.store.enqueue(
            [task(3), task(2, idempotency_key="odd \0 key"), task(4, idempotency_key="c"), task(1, idempotency_key="a"),
             task(4, idempotency_key="c")]
        )  # fmt: skip
        assert [item.input for item in again] == [3, 2, 4, 1, 4]
        assert (again[1].id, again[3].id) == (second.id, first.id) and again[2].id == again[4].id
        assert len(await kit.store.list_rollouts()) == 4

    run(check, kind)


@pytest.mark.parametrize(
    ("item", "digest"),
    [
        (NewRollout(input=1), "83d253a60cc09d5cb84767838176da11036ceadcb84b0cf857843a215a9e9bd5"),
        (NewRollout(input="a\ud800"), "8b2f8032f4d91b85de09500d17894c2dc225ecdee915e09de7ebd530c4904f00"),
        (
            NewRollout(
                input={"text": "né\0", "n": 2**70, "x": [1.5, None, float("inf")]},
                mode="val",
                priority=-3,
                run_id="run",
                iteration=2,
                config=RolloutConfig(attempt_timeout=7, max_attempts=5, retry_on=("timeout",), retry_delay=2),
                episode=Episode(environment_class_id="e", seed=2**62),
                group="g",
                metadata={"k": [1]},
                idempotency_key="k",
                resources_id="r",
            ),
            "02fe0b7da5f3c3f1fec5cd1d707801868d1f92b278992ebb084df7e727aeb256",
        ),
    ],
)
def test_what_an_older_client_queued_is_the_same_to_its_retry(item: NewRollout, digest: str) -> None:
    """The digests are those that schema version 1 stored."""
    from leyden.server.operations.rollouts import hash_of

    assert hash_of(item) == digest
    assert hash_of(item.model_copy(update={"queue": "other"})) != digest
