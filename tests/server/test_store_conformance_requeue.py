"""What every ``Store`` promises of rollouts that are queued again on request, and of those that are cancelled by group."""

from __future__ import annotations

import asyncio

import pytest
from storekit import Kit, run, task

from leyden.errors import Conflict, LeaseLost, NotFound
from leyden.types import Counts, FailureKind, Reward, RolloutConfig, RolloutState, Verdict


def test_a_final_rollout_is_queued_again_for_a_new_attempt_as_if_none_had_failed(kind: str) -> None:
    async def check(kit: Kit) -> None:
        config = RolloutConfig(max_attempts=2, max_lost=1, retry_delay=0)
        (item,) = await kit.store.enqueue([task(run_id="run", config=config)])
        for _ in range(2):
            (lease,) = await kit.store.claim("w")
            failed = await kit.store.fail(lease.ref, FailureKind.TOOL, "boom")
        assert (failed.state, failed.failures, failed.error) == (RolloutState.FAILED, 2, "boom")
        (again,) = await kit.store.requeue([item.id])
        assert (again.state, again.attempt, again.failures, again.lost, again.failure, again.error, again.finished_at) == (
            RolloutState.QUEUED, 2, 0, 0, None, None, None,
        )  # fmt: skip
        assert await kit.store.count("run") == Counts(queued=1)
        with pytest.raises(LeaseLost):
            await kit.store.complete(lease.ref)
        (third,) = await kit.store.claim("w")
        assert third.ref.attempt == 3 and third.ref.token > lease.ref.token
        assert (await kit.store.fail(third.ref, FailureKind.TOOL)).state is RolloutState.QUEUED, "its budget is whole again"
        (fourth,) = await kit.store.claim("w")
        await kit.store.complete(fourth.ref, [Reward(value=1.0)])
        assert [attempt.number for attempt in await kit.store.list_attempts(item.id)] == [1, 2, 3, 4]
        assert [reward.attempt for reward in await kit.store.list_rewards([item.id])] == [4]

    run(check, kind)


def test_queueing_again_is_for_all_of_them_or_none(kind: str) -> None:
    async def check(kit: Kit) -> None:
        done, waiting = await kit.store.enqueue([task(1, run_id="run"), task(2, run_id="run")])
        (lease,) = await kit.store.claim("w")
        await kit.store.complete(lease.ref)
        with pytest.raises(Conflict, match=r"rollout_ids\.1: .* is queued"):
            await kit.store.requeue([done.id, waiting.id])
        with pytest.raises(NotFound, match=r"rollout_ids\.1"):
            await kit.store.requeue([done.id, "nobody"])
        assert await kit.store.count("run") == Counts(queued=1, succeeded=1)
        (running,) = await kit.store.claim("w")
        with pytest.raises(Conflict, match="is running"):
            await kit.store.requeue([running.rollout.id])

    run(check, kind)


def test_the_same_request_queues_them_again_once(kind: str) -> None:
    async def check(kit: Kit) -> None:
        (item,) = await kit.store.enqueue([task(run_id="run")])
        await kit.store.cancel([item.id])
        first = await kit.store.requeue([item.id, item.id], request_id="r")
        assert await kit.store.requeue([item.id, item.id], request_id="r") == first, "its retry finds it queued"
        (lease,) = await kit.store.claim("w")
        await kit.store.complete(lease.ref)
        (late,) = await kit.store.requeue([item.id], request_id="r")
        assert late.state is RolloutState.SUCCEEDED, "a retry that came late changes nothing"
        assert await kit.store.count("run") == Counts(succeeded=1)
        (again,) = await kit.store.requeue([item.id], request_id="r2")
        assert again.state is RolloutState.QUEUED

    run(check, kind)


def test_queueing_again_wakes_a_claim_and_who_waits_for_the_end_waits_for_the_new_one(kind: str) -> None:
    async def check(kit: Kit) -> None:
        one, two = (rollout.id for rollout in await kit.store.enqueue([task(1), task(2, queue="other")]))
        (lease,) = await kit.store.claim("w")
        await kit.store.complete(lease.ref)
        ending = asyncio.create_task(kit.store.wait_rollouts([one, two], wait=20))
        while not kit.sql._watch._watchers:
            await asyncio.sleep(0.001)
        claiming = asyncio.create_task(kit.store.claim("w", wait=20))
        await kit.store.requeue([one])
        (again,) = await claiming
        await kit.store.cancel([two])
        await kit.store.complete(again.ref)
        assert [(rollout.id, rollout.attempt) for rollout in await ending] == [(one, 2), (two, 0)]

    run(check, kind)


def test_a_group_is_cancelled_in_one_run_or_in_all(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue(
            [task(i, run_id=run_id, group=group) for run_id in ("r", "s") for group in ("g", "h", None) for i in (1, 2)]
        )
        (held,) = await kit.store.claim("w")
        assert (held.rollout.run_id, held.rollout.group) == ("r", "g")
        assert await kit.store.cancel(run_id="r", group="g") == 2
        assert await kit.store.heartbeat("w", [held.ref]) == [Verdict.CANCEL]
        assert await kit.store.cancel(run_id="r", group="g") == 0
        assert (await kit.store.count("r"), await kit.store.count("s")) == (Counts(queued=4, cancelled=2), Counts(queued=6))
        assert await kit.store.cancel(group="g") == 2
        assert await kit.store.cancel(group="nobody") == await kit.store.cancel() == 0
        (one,) = await kit.store.list_rollouts(run_id="r", group="h", limit=1)
        assert await kit.store.cancel([one.id], run_id="s") == 5
        assert (await kit.store.count("r"), await kit.store.count("s")) == (Counts(queued=3, cancelled=3), Counts(cancelled=6))

    run(check, kind)


def test_more_than_a_transaction_takes_are_cancelled_together(kind: str) -> None:
    async def check(kit: Kit) -> None:
        made = await kit.store.enqueue([task(i, group="g", run_id="run") for i in range(1100)])
        await kit.store.claim("w", 300)
        with pytest.raises(NotFound):
            await kit.store.cancel([*(rollout.id for rollout in made), "nobody"])
        assert (await kit.store.count("run")).cancelled == 0, "none, when one does not exist"
        assert await kit.store.cancel([rollout.id for rollout in made[:600]]) == 600
        assert await kit.store.cancel(group="g") == 500
        assert await kit.store.count("run") == Counts(cancelled=1100)

    run(check, kind)
