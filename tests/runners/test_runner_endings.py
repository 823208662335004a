"""What of an attempt's spans may go with its ending."""

from __future__ import annotations

from tracing_room import line

from leyden.runners.buffer import Buffer
from leyden.types import LeaseRef


def ref(number: int) -> LeaseRef:
    return LeaseRef(rollout_id=f"ro-{number}", attempt=1, token=1)


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
