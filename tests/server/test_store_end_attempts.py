"""``end_attempts``: many attempts end in one request, each as if alone, behind its own fence, whatever becomes of the others."""

from __future__ import annotations

import asyncio

import pytest
from storekit import Kit, make_span, run, task

from leyden.errors import Conflict, InvalidRequest, LeaseLost, NotFound
from leyden.server.codec import encode
from leyden.server.interface import AttemptEnd
from leyden.types import AttemptState, FailureKind, Lease, LeaseRef, Reward, RolloutState

ONE = Reward(value=1.0)


async def claimed(kit: Kit, n: int) -> list[Lease]:
    await kit.store.enqueue([task(i, run_id="r") for i in range(n)])
    return await kit.store.claim("w", n)


def test_each_ends_in_its_own_way_with_its_own_spans_and_rewards(kind: str) -> None:
    async def check(kit: Kit) -> None:
        first, second, third = await claimed(kit, 3)
        ends = [
            AttemptEnd(first.ref, [ONE, Reward(name="passed", value=0.0)], [make_span(1), encode(make_span(2))]),
            AttemptEnd(second.ref, [], [make_span(3)], FailureKind.AGENT, "ValueError: no"),
            AttemptEnd(third.ref),
        ]
        assert await kit.store.end_attempts(ends) == [None, None, None]
        found = [await kit.store.get_rollout(lease.rollout.id) for lease in (first, second, third)]
        assert [item.state for item in found] == [RolloutState.SUCCEEDED, RolloutState.FAILED, RolloutState.SUCCEEDED]
        assert (found[1].failure, found[1].error) == (FailureKind.AGENT, "ValueError: no")
        spans = [[span.start_ns for span in await kit.store.list_spans(item.id)] for item in found]
        assert spans == [[1, 2], [3], []]
        rewards = await kit.store.list_rewards([item.id for item in found])
        assert {(item.rollout_id, item.name, item.value) for item in rewards} == {
            (first.rollout.id, "reward", 1.0),
            (first.rollout.id, "passed", 0.0),
        }
        assert (await kit.store.count(run_id="r")).running == 0

    run(check, kind)


def test_one_that_is_refused_costs_the_others_nothing_and_leaves_nothing(kind: str) -> None:
    async def check(kit: Kit) -> None:
        lost, held, other = await claimed(kit, 3)
        await kit.store.release(lost.ref)
        await kit.store.add_rewards(other.ref, [Reward(value=0.5)])
        nobody = LeaseRef(rollout_id="nobody", attempt=1, token=1)
        refs = [lost.ref, held.ref, other.ref, nobody]
        ends = [AttemptEnd(ref, [ONE], [make_span(number)]) for number, ref in enumerate(refs, 1)]
        outcomes = await kit.store.end_attempts(ends)
        assert [type(outcome) for outcome in outcomes] == [LeaseLost, type(None), Conflict, NotFound]
        assert "already 0.5" in str(outcomes[2])
        assert [len(await kit.store.list_spans(lease.rollout.id)) for lease in (lost, held, other)] == [0, 1, 0]
        assert (await kit.store.get_rollout(held.rollout.id)).state is RolloutState.SUCCEEDED
        assert (await kit.store.get_rollout(other.rollout.id)).state is RolloutState.RUNNING
        assert await kit.store.end_attempts([AttemptEnd(other.ref, [Reward(value=0.5)])]) == [None]

    run(check, kind)


def test_said_again_it_changes_nothing_and_said_otherwise_it_is_refused(kind: str) -> None:
    async def check(kit: Kit) -> None:
        first, second = await claimed(kit, 2)
        ends = [AttemptEnd(first.ref, [ONE], [make_span(1)]), AttemptEnd(second.ref, [], [make_span(2)], FailureKind.TOOL, "x")]
        both = await asyncio.gather(kit.store.end_attempts(ends), kit.store.end_attempts(ends))
        assert both == [[None, None], [None, None]]
        assert await kit.store.end_attempts([*ends, *ends]) == [None] * 4
        otherwise = [AttemptEnd(first.ref, [Reward(value=0.0)]), AttemptEnd(second.ref, [ONE])]
        assert [type(outcome) for outcome in await kit.store.end_attempts(otherwise)] == [Conflict, LeaseLost]
        for lease in (first, second):
            (span,) = await kit.store.list_spans(lease.rollout.id)
            assert not span.late
            assert len(await kit.store.list_attempts(lease.rollout.id)) == 1
        assert [item.value for item in await kit.store.list_rewards([first.rollout.id])] == [1.0]

    run(check, kind)


def test_spans_of_an_attempt_that_somebody_else_ended_likewise_are_kept_as_late(kind: str) -> None:
    async def check(kit: Kit) -> None:
        (lease,) = await claimed(kit, 1)
        await kit.store.cancel([lease.rollout.id])
        end = AttemptEnd(lease.ref, [], [make_span(1)], FailureKind.CANCELLED, "cancelled")
        assert await kit.store.end_attempts([end]) == [None]
        (span,) = await kit.store.list_spans(lease.rollout.id)
        (attempt,) = await kit.store.list_attempts(lease.rollout.id)
        assert span.late and attempt.state is AttemptState.CANCELLED

    run(check, kind)


def test_what_is_no_span_ends_nothing(kind: str) -> None:
    async def check(kit: Kit) -> None:
        first, second = await claimed(kit, 2)
        with pytest.raises(InvalidRequest):
            await kit.store.end_attempts([AttemptEnd(first.ref), AttemptEnd(second.ref, [], [b'{"name": 1}'])])
        assert (await kit.store.count(run_id="r")).running == 2

    run(check, kind)


def test_waiters_hear_of_it_and_none_at_all_is_nothing(kind: str) -> None:
    async def check(kit: Kit) -> None:
        assert await kit.store.end_attempts([]) == []
        (lease,) = await claimed(kit, 1)
        waiting = asyncio.create_task(kit.store.wait_rollouts([lease.rollout.id], wait=20))
        await kit.store.end_attempts([AttemptEnd(lease.ref)])
        (ended,) = await asyncio.wait_for(waiting, 10)
        assert ended.state is RolloutState.SUCCEEDED

    run(check, kind)
