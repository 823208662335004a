"""What every ``Store`` promises of named queues: who claims from which, pauses, limits, and what is counted."""

from __future__ import annotations

import asyncio

import pytest
from storekit import Kit, run, task

from leyden.errors import InvalidRequest
from leyden.types import Counts, FailureKind, Mode, NewRollout, RolloutConfig, RolloutState


def in_queue(queue: str, *inputs: object, **fields: object) -> list[NewRollout]:
    return [task(value, queue=queue, **fields) for value in inputs]


def test_a_claim_takes_from_its_queues_only_best_priority_first_over_all_of_them(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([*in_queue("a", "a1", "a2"), *in_queue("b", "b1"), *in_queue("b", "b0", priority=-1), task("d")])
        assert [lease.rollout.input for lease in await kit.store.claim("w", 9)] == ["d"]
        assert [lease.rollout.input for lease in await kit.store.claim("w", 3, queues=["a", "b", "a"])] == ["b0", "a1", "a2"]
        assert [lease.rollout.input for lease in await kit.store.claim("w", 9, queues=["nothing", "b"])] == ["b1"]
        assert await kit.store.claim("w", 9, queues=["a", "b", "default"]) == []

    run(check, kind)


def test_waiters_of_several_queues_each_get_what_is_theirs(kind: str) -> None:
    async def check(kit: Kit) -> None:
        wants = {"wa": ["a"], "wb": ["b"], "wab": ["a", "b"], "wc": ["c"]}
        waiting = {name: asyncio.create_task(kit.store.claim(name, 4, wait=20, queues=queues)) for name, queues in wants.items()}
        while len(kit.sql._desk._waiters) < len(wants):
            await asyncio.sleep(0.001)
        await kit.store.enqueue(in_queue("c", "c1"))
        assert [lease.rollout.input for lease in await waiting.pop("wc")] == ["c1"]
        await kit.store.enqueue(in_queue("b", *range(9)))
        given = {name: [lease.rollout.input for lease in await waiting.pop(name)] for name in ("wb", "wab")}
        assert sorted(given["wb"] + given["wab"]) == list(range(8)), "the one of the other queue stood in nobody's way"
        await kit.store.enqueue(in_queue("a", "a1"))
        assert [lease.rollout.input for lease in await waiting.pop("wa")] == ["a1"]

    run(check, kind)


def test_a_paused_queue_gives_nothing_until_it_is_resumed_and_what_runs_goes_on(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([*in_queue("a", 1, 2), *in_queue("b", 3)])
        (held,) = await kit.store.claim("w", queues=["a"])
        paused = await kit.store.set_queue("a", paused=True)
        assert (paused.paused, paused.max_running, paused.counts) == (True, None, Counts(queued=1, running=1))
        assert await kit.store.claim("w", queues=["a"]) == []
        assert [lease.rollout.input for lease in await kit.store.claim("w", 5, queues=["a", "b"])] == [3]
        assert (await kit.store.complete(held.ref)).state is RolloutState.SUCCEEDED
        waiting = asyncio.create_task(kit.store.claim("w", wait=20, queues=["a"]))
        assert not (await kit.store.set_queue("a", paused=False)).paused
        assert [lease.rollout.input for lease in await waiting] == [2]

    run(check, kind)


def test_no_more_of_a_queue_run_at_once_than_its_limit(kind: str) -> None:
    async def check(kit: Kit) -> None:
        assert (await kit.store.set_queue("a", max_running=2)).max_running == 2
        await kit.store.enqueue([*in_queue("a", *range(6)), *in_queue("b", "b")])
        first, second = await kit.store.claim("w", 5, queues=["a"])
        assert await kit.store.claim("v", queues=["a"]) == []
        assert [lease.rollout.input for lease in await kit.store.claim("w", 5, queues=["a", "b"])] == ["b"]
        waiting = asyncio.create_task(kit.store.claim("v", 5, wait=20, queues=["a"]))
        while not kit.sql._desk._waiters:
            await asyncio.sleep(0.001)
        await kit.store.complete(first.ref)
        (third,) = await waiting  # the slot that became free woke it
        assert (await kit.store.set_queue("a", paused=False)).max_running == 2, "what is not named stays"
        waiting = asyncio.create_task(kit.store.claim("v", 5, wait=20, queues=["a"]))
        assert (await kit.store.set_queue("a", max_running=3)).counts.running == 2
        assert len(await waiting) == 1
        for lease in (second, third):
            await kit.store.release(lease.ref)
        await kit.store.set_queue("a", max_running=None)
        assert len(await kit.store.claim("w", 9, queues=["a"])) == 4

    run(check, kind)


def test_a_crashed_attempt_gives_its_slot_back_with_its_lease(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.set_queue("a", max_running=1)
        last, _ = await kit.store.enqueue(in_queue("a", 1, 2, config=RolloutConfig(max_lost=1)))
        (lease,) = await kit.store.claim("w", lease_seconds=5, queues=["a"])
        waiting = asyncio.create_task(kit.store.claim("v", wait=20, queues=["a"]))
        await kit.pass_time(6)
        assert [lease.rollout.input for lease in await waiting] == [2]
        assert (await kit.store.get_rollout(last.id)).failure is FailureKind.LOST and lease.rollout.id == last.id

    run(check, kind)


def test_a_lowered_limit_stops_nothing_and_lets_nothing_new_in(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue(in_queue("a", *range(5)))
        leases = await kit.store.claim("w", 3, queues=["a"])
        await kit.store.set_queue("a", max_running=1)
        assert len(await kit.store.heartbeat("w", [lease.ref for lease in leases])) == 3
        for lease in leases:
            assert await kit.store.claim("w", queues=["a"]) == []
            await kit.store.complete(lease.ref)
        assert len(await kit.store.claim("w", 5, queues=["a"])) == 1

    run(check, kind)


def test_queues_are_listed_with_what_they_hold(kind: str) -> None:
    async def check(kit: Kit) -> None:
        assert await kit.store.list_queues() == []
        await kit.store.enqueue([*in_queue("a", 1, 2), task(3), *in_queue("late", 4, delay=5)])
        await kit.store.set_queue("empty", paused=True, max_running=7)
        a, default, empty, late = await kit.store.list_queues()
        assert [queue.name for queue in (a, default, empty, late)] == ["a", "default", "empty", "late"]
        assert (a.counts, default.counts, late.counts) == (Counts(queued=2), Counts(queued=1), Counts(scheduled=1))
        assert (empty.paused, empty.max_running, empty.counts.total, a.max_running) == (True, 7, 0, None)
        for bad in (0, -1):
            with pytest.raises(InvalidRequest, match="max_running"):
                await kit.store.set_queue("a", max_running=bad)
        with pytest.raises(InvalidRequest, match="name"):
            await kit.store.set_queue("no name")

    run(check, kind)


def test_counts_are_by_run_iteration_mode_and_queue_and_tell_the_lost_from_the_failed(kind: str) -> None:
    async def check(kit: Kit) -> None:
        once = RolloutConfig(max_attempts=1, max_lost=1)
        await kit.store.enqueue(
            [
                *in_queue("a", 1, 2, 3, run_id="r", iteration=1, config=once),
                *in_queue("b", 4, run_id="r", iteration=2, mode=Mode.VAL),
                task(5, run_id="other"),
            ]
        )
        agent, tool, _ = await kit.store.claim("w", 3, lease_seconds=5, queues=["a"])
        await kit.store.fail(agent.ref, FailureKind.AGENT)
        await kit.store.fail(tool.ref, FailureKind.TOOL)
        await kit.pass_time(6)
        counts = await kit.store.count("r")
        assert counts == Counts(queued=1, failed=3, failures={FailureKind.AGENT: 1, FailureKind.TOOL: 1, FailureKind.LOST: 1})
        assert (counts.lost, counts.total, counts.final) == (1, 4, 3)
        assert await kit.store.count("r", queue="b") == await kit.store.count("r", mode=Mode.VAL) == Counts(queued=1)
        assert await kit.store.count(iteration=2) == Counts(queued=1)
        assert (await kit.store.count()).total == 5
        assert await kit.store.count("nobody") == Counts()

    run(check, kind)
