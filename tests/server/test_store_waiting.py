"""Long polls: order, those who leave, those who come twice, and the stop."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from storekit import Kit, hold_writer, run, task

from leyden.types import AttemptState, Lease


async def waiting_claims(kit: Kit, n: int) -> None:
    """Returns once ``n`` claims wait at the desk and none is being asked for."""
    desk = kit.sql._desk
    while len(desk._waiters) != n or desk._serving:
        await asyncio.sleep(0.001)


def test_waiters_are_served_first_in_first_out() -> None:
    async def check(kit: Kit) -> None:
        order: list[int] = []

        async def claim(n: int) -> None:
            assert await kit.store.claim(f"w{n}", wait=20)
            order.append(n)

        tasks = []
        for n in range(5):
            tasks.append(asyncio.create_task(claim(n)))
            await waiting_claims(kit, n + 1)
        for n in range(5):
            await kit.store.enqueue([task(n)])
            await asyncio.wait({tasks[n]})
        assert order == list(range(5))

    run(check)


def test_what_a_cancelled_waiter_was_given_goes_to_the_next_at_once() -> None:
    async def check(kit: Kit) -> None:
        gate, holding = await hold_writer(kit)
        enqueued = asyncio.create_task(kit.store.enqueue([task()]))
        leaving = asyncio.create_task(kit.store.claim("leaving", wait=20))
        while not any(waiter.asked for waiter in kit.sql._desk._waiters):
            await asyncio.sleep(0)
        leaving.cancel()  # the claim that serves it is behind the enqueue, both uncommitted
        staying = asyncio.create_task(kit.store.claim("staying", wait=20))
        await asyncio.wait({leaving})
        gate.set()
        await holding
        (lease,) = await staying
        assert lease.rollout.id == (await enqueued)[0].id
        states = [(attempt.worker_id, attempt.state) for attempt in await kit.store.list_attempts(lease.rollout.id)]
        assert states == [("leaving", AttemptState.RELEASED), ("staying", AttemptState.RUNNING)]

    run(check)


@pytest.mark.parametrize("moment", range(12))
def test_a_claim_cancelled_at_any_moment_leaks_no_lease(moment: int) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task()])
        claiming = asyncio.create_task(kit.store.claim("leaving", wait=20))
        for _ in range(moment):
            await asyncio.sleep(0 if moment < 6 else 0.0005)
        claiming.cancel()
        given: list[Lease] = (await asyncio.gather(claiming, return_exceptions=True))[0]  # type: ignore[assignment]
        if isinstance(given, asyncio.CancelledError):
            (lease,) = await kit.store.claim("next", wait=20)
            assert lease.rollout.attempt in (1, 2)

    run(check)


def test_a_client_that_hangs_up_leaves_no_lease() -> None:
    async def check(kit: Kit) -> None:
        assert kit.url is not None
        _, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(kit.url).port)
        body = json.dumps({"worker_id": "gone", "wait": 20}).encode()
        writer.write(b"POST /v1/leases/claim HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        await waiting_claims(kit, 1)
        (waiter,) = kit.sql._desk._waiters
        writer.close()
        await writer.wait_closed()
        await waiting_claims(kit, 0)
        assert waiter.gone, "it left; it did not wait to the end"
        await kit.store.enqueue([task()])
        (lease,) = await kit.store.claim("here", wait=20)
        assert lease.ref.attempt == 1

    run(check, "http")


def test_the_same_request_twice_is_answered_once() -> None:
    async def check(kit: Kit) -> None:
        first = asyncio.create_task(kit.store.claim("w", wait=20, request_id="r"))
        await waiting_claims(kit, 1)
        again = asyncio.create_task(kit.store.claim("w", wait=20, request_id="r"))
        assert await first == [], "the retry took its place"
        await kit.store.enqueue([task(1), task(2)])
        assert len(await again) == 1
        assert len(await kit.store.claim("w", 5)) == 1

    run(check)


def test_more_waiters_than_a_round_holds_are_all_served() -> None:
    async def check(kit: Kit) -> None:
        waiters = [asyncio.create_task(kit.store.claim(f"w{i}", limit=100, wait=20)) for i in range(12)]
        await waiting_claims(kit, 12)
        assert await kit.store.claim("no-wait", limit=100) == []
        await kit.store.enqueue([task(i) for i in range(1150)])
        leases = [lease for answer in await asyncio.gather(*waiters) for lease in answer]
        assert sorted(lease.rollout.input for lease in leases) == list(range(1150))

    run(check)


def test_a_stop_answers_every_long_poll() -> None:
    async def check(kit: Kit) -> None:
        (rollout,) = await kit.store.enqueue([task()])
        await kit.store.claim("w")
        claiming = asyncio.create_task(kit.store.claim("w", wait=20))
        finishing = asyncio.create_task(kit.store.wait_rollouts([rollout.id], wait=20))
        await waiting_claims(kit, 1)
        while not kit.sql._watch._watchers:
            await asyncio.sleep(0.001)
        await kit.sql.stop_waiting()
        assert await claiming == [] and await finishing == []
        assert await kit.store.claim("w", wait=20) == []

    run(check, "http")


def test_a_wait_that_ends_without_news_returns_what_is_final() -> None:
    async def check(kit: Kit) -> None:
        ids = [rollout.id for rollout in await kit.store.enqueue([task(), task()])]
        await kit.store.cancel([ids[0]])
        assert [rollout.id for rollout in await kit.store.wait_rollouts(ids, wait=0.01)] == [ids[0]]
        assert kit.sql._watch._watchers == {}, "nobody is left registered"

    run(check)
