"""Endings on their way to the store: together where they come together, each told what became of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tracing_room import line

from leyden.errors import Conflict, LeydenError, Unavailable
from leyden.runners.buffer import Buffer
from leyden.runners.endings import MOST_BYTES, Endings
from leyden.server.interface import MAX_ENDS, AttemptEnd
from leyden.types import LeaseRef


def ref(number: int) -> LeaseRef:
    return LeaseRef(rollout_id=f"ro-{number}", attempt=1, token=1)


class Desk:
    """Where a store would be: answers the requests one by one, when the test says how."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[list[LeaseRef]] = asyncio.Queue()
        self.answers: asyncio.Queue[list[LeydenError | None] | Exception] = asyncio.Queue()

    async def end_attempts(self, ends: Sequence[AttemptEnd]) -> list[LeydenError | None]:
        self.asked.put_nowait([end.ref for end in ends])
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer


def run(scenario: Any) -> None:
    async def limited() -> None:
        desk = Desk()
        endings = Endings(desk)  # type: ignore[arg-type]
        await asyncio.wait_for(scenario(desk, endings), 30)

    asyncio.run(limited())


def start(endings: Endings, numbers: Sequence[int], spans: Sequence[bytes] = ()) -> list[asyncio.Task[None]]:
    return [asyncio.create_task(endings.end(AttemptEnd(ref(number), spans=spans))) for number in numbers]


def test_what_ends_while_a_request_is_under_way_goes_together_in_the_next() -> None:
    async def scenario(desk: Desk, endings: Endings) -> None:
        (first,) = start(endings, [0])
        assert await desk.asked.get() == [ref(0)]
        others = start(endings, range(1, 8))
        await asyncio.sleep(0)
        assert desk.asked.empty() and not first.done()
        desk.answers.put_nowait([None])
        assert await desk.asked.get() == [ref(number) for number in range(1, 8)]
        desk.answers.put_nowait([None] * 7)
        await asyncio.gather(first, *others)
        (later,) = start(endings, [8])
        assert await desk.asked.get() == [ref(8)], "it sends again after it had nothing to send"
        desk.answers.put_nowait([None])
        await later

    run(scenario)


def test_each_is_told_of_its_own_and_one_that_left_is_told_nothing() -> None:
    async def scenario(desk: Desk, endings: Endings) -> None:
        refused, gone, done = start(endings, range(3))
        await desk.asked.get()
        gone.cancel()
        await asyncio.wait([gone])
        desk.answers.put_nowait([Conflict("another reward"), None, None])
        with pytest.raises(Conflict, match="another reward"):
            await refused
        await done

    run(scenario)


@pytest.mark.parametrize("error", [Unavailable("away"), ZeroDivisionError("a bug")])
def test_a_request_that_fails_is_told_to_all_of_it_and_the_next_is_sent(error: Exception) -> None:
    async def scenario(desk: Desk, endings: Endings) -> None:
        both = start(endings, range(2))
        await desk.asked.get()
        (next_one,) = start(endings, [2])
        desk.answers.put_nowait(error)
        assert await asyncio.gather(*both, return_exceptions=True) == [error, error]
        await desk.asked.get()
        desk.answers.put_nowait([None])
        await next_one

    run(scenario)


def test_a_request_is_bounded_in_attempts_and_in_bytes() -> None:
    async def scenario(desk: Desk, endings: Endings) -> None:
        waiting = start(endings, range(MAX_ENDS + 3))
        assert len(await desk.asked.get()) == MAX_ENDS
        waiting += start(endings, range(1000, 1004), [b"x" * (MOST_BYTES // 2)])
        desk.answers.put_nowait([None] * MAX_ENDS)
        for expected in (5, 2):
            assert len(await desk.asked.get()) == expected
            desk.answers.put_nowait([None] * expected)
        await asyncio.gather(*waiting)

    run(scenario)


def test_the_rest_of_an_attempt_is_taken_only_where_all_of_it_is_here_and_little() -> None:
    buffer = Buffer(100, 1 << 20)
    assert buffer.take_rest(ref(1), 10, 10_000) == [], "it has none"
    lines = [line(n) for n in range(3)]
    for one in lines:
        buffer.put(ref(1), one)
    assert buffer.take_rest(ref(1), 2, 10_000) is None
    assert buffer.take_rest(ref(1), 10, len(lines[0])) is None
    assert buffer.take_rest(ref(1), 10, 10_000) == lines
    assert (buffer.spans, buffer.bytes, buffer.left) == (0, 0, 3), "they are not settled yet"
    assert buffer.take_rest(ref(1), 10, 10_000) is None, "they are elsewhere"
    buffer.put_back((ref(1), lines))
    assert buffer.take(due=False) == (ref(1), lines), "what could not be sent so is sent as ever"
    buffer.settle(ref(1), 3, ["refused"])
    assert buffer.take_rest(ref(1), 10, 10_000) is None, "something has to be said of it"
