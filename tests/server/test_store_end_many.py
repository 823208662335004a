"""``end_many``: many attempts end in one transaction, each as if alone, behind its own fence."""

from __future__ import annotations

import asyncio

import pytest
from storekit import Kit, make_span, run, task

from leyden.errors import Conflict
from leyden.server.interface import AttemptEnd
from leyden.types import FailureKind, Lease, Mode, NewRollout, Reward, RolloutConfig, RolloutState

LOCAL = ("sqlite", "postgres")


async def claimed(kit: Kit, n: int, **config: object) -> list[Lease]:
    await kit.store.register_worker("w", "w", n)
    await kit.store.enqueue(
        [NewRollout(input=i, run_id="r", mode=Mode.TEST, config=RolloutConfig(retry_delay=0.0, **config)) for i in range(n)]  # type: ignore[arg-type]
    )
    return await kit.store.claim("w", n)


@pytest.mark.parametrize("kind", LOCAL)
def test_each_ends_in_its_own_way_with_its_own_spans_and_rewards(kind: str) -> None:
    async def check(kit: Kit) -> None:
        leases = await claimed(kit, 4)
        spans = [make_span(number) for number in (1, 2, 3)]
        became = await kit.sql.end_many([
            AttemptEnd(leases[0].ref, [Reward(value=1.0, source="s"), Reward(name="passed", value=1.0, source="s")], [spans[0]]),
            AttemptEnd(leases[1].ref, [], [spans[1]], FailureKind.AGENT, "ValueError: no"),
            AttemptEnd(leases[2].ref, [], [], FailureKind.INFRASTRUCTURE, "engine away"),
            AttemptEnd(leases[3].ref, [Reward(value=0.0, source="s")]),
        ])  # fmt: skip
        assert became == [RolloutState.SUCCEEDED, RolloutState.FAILED, RolloutState.QUEUED, RolloutState.SUCCEEDED]
        ids = [lease.rollout.id for lease in leases]
        rewards = {(reward.rollout_id, reward.name): reward.value for reward in await kit.store.list_rewards(ids)}
        assert rewards == {(ids[0], "reward"): 1.0, (ids[0], "passed"): 1.0, (ids[3], "reward"): 0.0}
        for rollout_id, span in zip(ids, [*spans[:2], None], strict=False):
            kept = await kit.store.list_spans(rollout_id)
            assert [one.span_id for one in kept] == ([span.span_id] if span else []) and not any(one.late for one in kept)
        failed = await kit.store.get_rollout(ids[1])
        assert (failed.failure, failed.error) == (FailureKind.AGENT, "ValueError: no")
        counts = await kit.store.count(run_id="r")
        assert (counts.succeeded, counts.failed, counts.queued, counts.running) == (2, 1, 1, 0)
        assert [row.number for row in await kit.store.list_attempts(ids[2])] == [1]

    run(check, kind)


@pytest.mark.parametrize("kind", LOCAL)
def test_of_a_lease_that_is_lost_nothing_is_kept_and_the_others_end(kind: str) -> None:
    async def check(kit: Kit) -> None:
        lost, held = await claimed(kit, 2)
        await kit.store.release(lost.ref)
        (again,) = await kit.store.claim("w")
        assert again.rollout.id == lost.rollout.id
        ends = [AttemptEnd(lease.ref, [Reward(value=1.0)], [make_span(n)]) for n, lease in enumerate((lost, held), 1)]
        assert await kit.sql.end_many(ends) == [None, RolloutState.SUCCEEDED]
        assert await kit.sql.end_many(ends) == [None, None], "again: neither lease is there"
        assert await kit.store.list_spans(lost.rollout.id) == []
        assert await kit.store.list_rewards([lost.rollout.id], 1) == []
        assert len(await kit.store.list_rewards([held.rollout.id])) == 1
        assert (await kit.store.get_rollout(lost.rollout.id)).state is RolloutState.RUNNING

    run(check, kind)


@pytest.mark.parametrize("kind", LOCAL)
def test_a_reward_that_is_another_already_ends_none(kind: str) -> None:
    async def check(kit: Kit) -> None:
        first, second = await claimed(kit, 2)
        await kit.store.add_rewards(second.ref, [Reward(value=0.5)])
        ends = [AttemptEnd(first.ref, [Reward(value=1.0)]), AttemptEnd(second.ref, [Reward(value=1.0)])]
        with pytest.raises(Conflict, match=r"already 0\.5"):
            await kit.sql.end_many(ends)
        assert (await kit.store.count(run_id="r")).running == 2
        assert await kit.sql.end_many([ends[0], AttemptEnd(second.ref, [Reward(value=0.5)])]) == [RolloutState.SUCCEEDED] * 2
        assert [reward.value for reward in await kit.store.list_rewards([second.rollout.id])] == [0.5]

    run(check, kind)


@pytest.mark.parametrize("kind", LOCAL)
def test_batches_that_cross_each_other_all_end(kind: str) -> None:
    async def check(kit: Kit) -> None:
        leases = await claimed(kit, 60)
        ways = [leases[start::3] for start in range(3)]
        ends = [[AttemptEnd(lease.ref, [Reward(value=1.0)]) for lease in way] for way in (ways[0], ways[1][::-1], ways[2])]
        became = await asyncio.gather(
            *(kit.sql.end_many(way) for way in ends),
            kit.store.heartbeat("w", [lease.ref for lease in leases]),
        )  # fmt: skip
        assert became[:3] == [[RolloutState.SUCCEEDED] * 20] * 3
        assert (await kit.store.count(run_id="r")).succeeded == 60

    run(check, kind)


def test_waiters_hear_of_it() -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task()])
        (lease,) = await kit.store.claim("w")
        waiting = asyncio.create_task(kit.store.wait_rollouts([lease.rollout.id], wait=20))
        await asyncio.sleep(0)
        await kit.sql.end_many([AttemptEnd(lease.ref)])
        (ended,) = await asyncio.wait_for(waiting, 10)
        assert ended.state is RolloutState.SUCCEEDED

    run(check)
