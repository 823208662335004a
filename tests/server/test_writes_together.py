"""Small writes that go together: each gets its own outcome, none waits for others, and none is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from storekit import Kit, make_generation, make_span, run, task

from leyden.errors import Conflict, InvalidRequest, LeaseLost, LeydenError, Unavailable
from leyden.server import capture, messages
from leyden.server.client import StoreClient
from leyden.server.rows import Batch
from leyden.together import Together
from leyden.types import Generation, LeaseRef

MOST_BYTES = 1000


class Sender:
    """Keeps what is sent, and answers when it is let."""

    def __init__(self, *outcomes: Exception | None) -> None:
        self.sent: list[list[bytes]] = []
        self.open = asyncio.Event()
        self.refuse: dict[bytes, LeydenError] = {}
        self.fail: Exception | None = None

    async def __call__(self, items: list[bytes]) -> Sequence[LeydenError | None]:
        self.sent.append(items)
        await self.open.wait()
        if self.fail is not None:
            raise self.fail
        return [self.refuse.get(item) for item in items]


async def settled() -> None:
    """Every task has got as far as it can."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_what_comes_while_a_request_is_under_way_goes_with_the_next_one() -> None:
    async def go() -> None:
        sender = Sender()
        together = Together(sender, 4, MOST_BYTES, len)
        adding = [asyncio.create_task(together.add(b"0"))]
        await settled()
        assert sender.sent == [[b"0"]]  # it waited for nobody
        adding += [asyncio.create_task(together.add(b"%d" % n)) for n in range(1, 7)]
        await settled()
        assert len(sender.sent) == 1
        sender.open.set()
        await asyncio.gather(*adding)
        assert sender.sent == [[b"0"], [b"1", b"2", b"3", b"4"], [b"5", b"6"]]

    asyncio.run(go())


def test_a_second_request_goes_out_beside_the_first_once_half_as_many_wait_and_a_third_does_not() -> None:
    async def go() -> None:
        sender = Sender()
        sender.refuse[b"5"] = LeaseLost("gone")
        together = Together(sender, 64, MOST_BYTES, len, overlap=True)
        adding = [asyncio.create_task(together.add(b"%d" % n)) for n in range(4)]
        await settled()
        adding.append(asyncio.create_task(together.add(b"4")))
        await settled()
        assert sender.sent == [[b"0", b"1", b"2", b"3"]]  # one is less than half of four
        for n in range(5, 9):
            adding.append(asyncio.create_task(together.add(b"%d" % n)))
            await settled()
        assert sender.sent[1:] == [[b"4", b"5"]]
        sender.open.set()
        outcomes = await asyncio.gather(*adding, return_exceptions=True)
        assert sender.sent[2:] == [[b"6", b"7", b"8"]]
        assert [n for n, outcome in enumerate(outcomes) if isinstance(outcome, LeaseLost)] == [5]

    asyncio.run(go())


def test_a_request_is_no_longer_than_its_bound_unless_one_item_is() -> None:
    async def go() -> None:
        sender = Sender()
        together = Together(sender, 64, MOST_BYTES, len)
        large, half = b"x" * (MOST_BYTES + 1), b"y" * (MOST_BYTES // 2)
        adding = [asyncio.create_task(together.add(item)) for item in (b"0", large, half, half, half)]
        sender.open.set()
        await asyncio.gather(*adding)
        assert [[len(item) for item in items] for items in sender.sent] == [[1], [len(large)], [len(half)] * 2, [len(half)]]

    asyncio.run(go())


def test_each_is_told_what_came_of_it() -> None:
    async def go() -> None:
        sender = Sender()
        sender.refuse[b"bad"] = LeaseLost("gone")
        together = Together(sender, 64, MOST_BYTES, len)
        sender.open.set()
        good, bad, other = await asyncio.gather(*(together.add(item) for item in (b"good", b"bad", b"other")), return_exceptions=True)
        assert good is None and isinstance(bad, LeaseLost) and other is None

    asyncio.run(go())


@pytest.mark.parametrize("error", [Unavailable("away"), ZeroDivisionError("a bug")])
def test_what_is_wrong_with_a_request_is_told_to_all_in_it_and_the_next_one_is_sent(error: Exception) -> None:
    async def go() -> None:
        sender = Sender()
        sender.fail = error
        together = Together(sender, 2, MOST_BYTES, len)
        adding = asyncio.gather(*(together.add(b"%d" % n) for n in range(3)), return_exceptions=True)
        await settled()
        sender.open.set()
        assert await adding == [error] * 3 and len(sender.sent) == 2
        sender.fail = None
        await together.add(b"3")

    asyncio.run(go())


def test_one_that_leaves_takes_nobody_along_and_a_stop_leaves_nobody_waiting() -> None:
    async def go() -> None:
        sender = Sender()
        together = Together(sender, 64, MOST_BYTES, len)
        first, second, third = (asyncio.create_task(together.add(item)) for item in (b"1", b"2", b"3"))
        await settled()
        second.cancel()
        sender.open.set()
        assert await asyncio.gather(first, third) == [None, None] and second.cancelled()
        sender.open.clear()
        flying = asyncio.create_task(together.add(b"4"))
        await settled()
        waiting = asyncio.create_task(together.add(b"5"))
        await settled()
        together.stop()
        await asyncio.wait({flying, waiting}, timeout=5)
        assert flying.cancelled() and waiting.cancelled()

    asyncio.run(go())


@pytest.mark.parametrize("steps", range(6))
def test_a_stop_at_any_moment_leaves_nobody_waiting(steps: int) -> None:
    async def go() -> None:
        together = Together(Sender(), 64, MOST_BYTES, len)
        adding = asyncio.create_task(together.add(b"1"))
        for _ in range(steps):
            await asyncio.sleep(0)
        together.stop()
        if steps:  # else it was not even added
            await asyncio.wait({adding}, timeout=5)
            assert adding.cancelled()
        adding.cancel()

    asyncio.run(go())


def test_a_loop_that_ends_sends_nothing_more() -> None:
    sender = Sender()

    async def go() -> None:
        together = Together(sender, 2, MOST_BYTES, len)
        adding = [asyncio.create_task(together.add(b"%d" % n)) for n in range(8)]
        await settled()
        assert len(sender.sent) == 1 and not any(task.done() for task in adding)

    asyncio.run(go())
    assert len(sender.sent) == 1


def test_an_answer_that_leaves_some_out_is_an_error_to_all() -> None:
    async def go() -> None:
        async def send(items: list[bytes]) -> Sequence[LeydenError | None]:
            return [None]

        together = Together(send, 64, MOST_BYTES, len)
        outcomes = await asyncio.gather(*(together.add(b"%d" % n) for n in range(3)), return_exceptions=True)
        assert [str(outcome) for outcome in outcomes] == ["1 outcomes of 3 items"] * 3

    asyncio.run(go())


def test_a_call_on_which_the_store_fails_costs_only_its_own(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_rows = capture.generation_batch

    def fails_on_one(ref: LeaseRef, generations: Sequence[Generation]) -> Batch:
        if generations[0].id == "g-1":
            raise TypeError("a bug")
        return make_rows(ref, generations)

    async def check(kit: Kit) -> None:
        monkeypatch.setattr(capture, "generation_batch", fails_on_one)
        await kit.store.enqueue([task(n) for n in range(4)])
        leases = await kit.store.claim("w", 4)
        adding = [kit.store.add_generations(lease.ref, [make_generation(lease.ref, f"g-{n}")]) for n, lease in enumerate(leases)]
        outcomes = await asyncio.gather(*adding, return_exceptions=True)
        assert str(outcomes.pop(1)) == "the store failed on this call" and outcomes == [None] * 3
        found = await kit.store.list_generations([lease.rollout.id for lease in leases])
        assert {row.id for row in found} == {"g-0", "g-2", "g-3"}

    run(check, kind)


def test_of_two_attempts_that_claim_one_generation_at_once_the_second_is_told(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task(n) for n in range(2)])
        refs = [lease.ref for lease in await kit.store.claim("w", 2)]
        adding = [kit.store.add_generations(ref, [make_generation(ref, "g")]) for ref in refs]
        outcomes = await asyncio.gather(*adding, return_exceptions=True)
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Conflict", "NoneType"]
        (row,) = await kit.store.list_generations([ref.rollout_id for ref in refs])
        assert row.rollout_id == refs[outcomes.index(None)].rollout_id

    run(check, kind)


def test_a_request_of_many_calls_is_cut_into_commits_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task()])
        (lease,) = await kit.store.claim("w", 1)
        large = [make_generation(lease.ref, f"g-{n}", request={"messages": [{"role": "user", "content": "x" * 4000}]}) for n in range(8)]
        calls = [messages.AddGenerations(ref=lease.ref, generations=[one]) for one in large]
        size = batch_of_calls(lease.ref, large) // 4
        monkeypatch.setattr(capture, "MAX_BYTES", size)
        before = kit.sql._executor.metrics.batch_operations.total
        assert await kit.sql.add_calls(calls) == [None] * 8
        assert 4 <= kit.sql._executor.metrics.batch_operations.total - before <= 8
        assert len(await kit.store.list_generations([lease.rollout.id])) == 8

    run(check, "sqlite")


def test_a_call_that_sampled_nothing_is_no_failure(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task()])
        (lease,) = await kit.store.claim("w", 1)
        await kit.store.add_generations(lease.ref, [])
        assert await kit.store.list_generations([lease.rollout.id]) == []

    run(check, kind)


def test_of_a_request_that_is_cut_only_what_was_refused_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task(n) for n in range(2)])
        first, second = (lease.ref for lease in await kit.store.claim("w", 2))
        await kit.store.add_generations(first, [make_generation(first, "taken")])
        made = [make_generation(second, name) for name in ("a", "b", "taken", "c")]
        monkeypatch.setattr(capture, "MAX_BYTES", 1)
        before = kit.sql._executor.metrics.bytes
        outcomes = await kit.sql.add_calls([messages.AddGenerations(ref=second, generations=[one]) for one in made])
        assert [type(outcome) for outcome in outcomes] == [type(None), type(None), Conflict, type(None)]
        stored = sum(batch_of_calls(second, [one]) for one in made if one.id != "taken")
        assert kit.sql._executor.metrics.bytes - before == stored

    run(check, "sqlite")


def batch_of_calls(ref: LeaseRef, generations: Sequence[Generation]) -> int:
    return capture.generation_batch(ref, generations).size


@pytest.mark.parametrize("kind", ["http-sqlite", "http-postgres"])
def test_calls_of_many_attempts_go_in_few_requests_and_one_that_is_refused_costs_only_its_own(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task(n) for n in range(9)])
        leases = await kit.store.claim("w", 9)
        refs = [lease.ref for lease in leases]
        refs[0] = refs[0].model_copy(update={"token": refs[0].token + 1})
        assert isinstance(kit.store, StoreClient)
        sent: list[str] = []
        send = kit.store._send

        async def counted(method: str, path: str, *rest: bytes) -> bytes:
            sent.append(path)
            return await send(method, path, *rest)

        kit.store._send = counted  # type: ignore[assignment]

        def add(ref: LeaseRef) -> asyncio.Future[None]:
            generation = make_generation(refs[2] if ref is refs[1] else ref, f"g-{ref.rollout_id}")
            return asyncio.ensure_future(kit.store.add_generations(ref, [generation], [make_span()]))

        outcomes = await asyncio.gather(*map(add, refs), return_exceptions=True)
        assert isinstance(outcomes[0], LeaseLost) and isinstance(outcomes[1], InvalidRequest) and outcomes[2:] == [None] * 7
        assert sent == ["/v1/generations"]
        found = await kit.store.list_generations([lease.rollout.id for lease in leases])
        assert sorted(row.rollout_id for row in found) == sorted(lease.rollout.id for lease in leases[2:])

    run(check, kind)
