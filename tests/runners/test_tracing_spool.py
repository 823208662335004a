"""The spool, and what empties it, where the disk or the moment is against them: every span is stored or counted, and nobody is held up."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import resource
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tracing_room import line, outbox, room, run, until

from leyden.runners.buffer import Buffer
from leyden.runners.outbox import UNREADABLE, Outbox
from leyden.runners.spool import Spool, read
from leyden.runners.tracer import LEFT_OUT, Recorder
from leyden.server.client import StoreClient
from leyden.types import LeaseRef

NEVER = lambda: False  # noqa: E731
REF = LeaseRef(rollout_id="ro-1", attempt=1, token=7)


def kept(spool: Spool) -> list[int]:
    """Numbers of the spans in it, which is emptied."""
    found: list[int] = []
    while (segment := spool.oldest()) is not None:
        lots = list(read(segment))
        found += [json.loads(item)["attributes"]["n"] for _, lines in lots for item in lines]
        assert not spool.drop(segment, lots)
    assert spool.size == 0
    return found


def rows(spool: Path) -> int:
    return sum(len(path.read_bytes().splitlines()) for path in spool.rglob("*.jsonl"))


@pytest.mark.parametrize(("left", "lost"), [(None, 2), (1.5, 1), (0.0, 2)], ids=["gone", "cut short", "emptied"])
def test_what_was_kept_and_cannot_be_read_again_is_counted_under_its_attempt_which_ends_all_the_same(
    tmp_path: Path, left: float | None, lost: int
) -> None:
    """``left``: lines that somebody has left in the file."""
    place, spool = room(tmp_path), tmp_path / "spool"

    async def scenario() -> None:
        async with place.store():
            first, second = await place.attempts(2)
        async with outbox(place.url, spool) as box:
            box.put(first, line(1))
            await until(lambda: rows(spool) == 1)  # it is tried again and again, from memory
            for n in (2, 3):
                box.put(second, line(n))
            await until(lambda: rows(spool) == 3)
            segment = max(spool.rglob("*.jsonl"))
            if left is None:
                segment.unlink()
            else:
                os.truncate(segment, int(segment.stat().st_size / 2 * left))
            async with place.store():
                await asyncio.gather(*(box.finish(ref, Recorder(), NEVER) for ref in (first, second)))
                assert [span.name for span in await place.spans(first)] == ["said"]
                *spans, note = await place.spans(second)
                assert len(spans) == 2 - lost and note.name == LEFT_OUT
                assert note.attributes == {"leyden.count": lost, "leyden.reason": UNREADABLE}
                await until(lambda: rows(spool) == 0)
                assert box._spool is not None and box._spool.size == 0

    run(scenario)


def test_a_directory_that_is_not_ours_to_open_is_left_alone_and_costs_nothing(tmp_path: Path) -> None:
    place, spool = room(tmp_path), tmp_path / "spool"
    (spool / "runner-of-another-user" / "lock").mkdir(parents=True)  # opening it fails, for the superuser too

    async def scenario() -> None:
        async with place.store():
            (ref,) = await place.attempts(1)
            async with outbox(place.url, spool) as box:
                box.put(ref, line(1))
                await box.finish(ref, Recorder(), NEVER)
            assert [span.attributes["n"] for span in await place.spans(ref)] == [1]

    run(scenario)
    assert (spool / "runner-of-another-user").exists()


def test_a_disk_that_takes_no_new_file_for_a_while_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path)
    spool.append(REF, [line(1)])
    spool.oldest()  # nothing more is written to it
    touch = Path.touch

    def full(self: Path, *args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "touch", full)
    with pytest.raises(OSError, match="No space"):
        spool.append(REF, [line(2)])
    monkeypatch.setattr(Path, "touch", touch)
    assert spool.append(REF, [line(3)]) == 1
    assert kept(spool) == [1, 3]


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_of_a_write_that_failed_in_the_middle_nothing_stays(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append(REF, [line(0)])
    size = next(tmp_path.rglob("*.jsonl")).stat().st_size
    with files_of_at_most(size * 9 // 2), pytest.raises(OSError):
        spool.append(REF, [line(n) for n in range(1, 9)])
    assert rows(tmp_path) == 1
    spool.append(REF, [line(9)])
    assert kept(spool) == [0, 9]


@pytest.mark.parametrize("steps", range(-6, 7))
def test_what_is_about_to_be_sent_when_the_runner_ends_is_kept(tmp_path: Path, steps: int) -> None:
    """Asked to stop ``steps`` turns of its loop after a span came, or before: that one may be anywhere between the buffer and the store."""
    spool = tmp_path / "spool"

    class Away(StoreClient):
        async def add_encoded_spans(self, ref: LeaseRef, spans: Sequence[bytes]) -> int:
            await asyncio.sleep(60.0)
            return 0

    async def scenario() -> None:
        box = Outbox(lambda: Away("http://127.0.0.1:9"), "test", spool)
        box.start()
        loop = box._loop
        assert loop is not None

        def put() -> None:
            assert box.put(REF, line(1)) is None
            box.buffer.hurry()
            box._wake.set()

        def after(turns: int, then: Callable[[], None]) -> None:
            if turns > 0:
                loop.call_soon(after, turns - 1, then)
            else:
                then()

        def begin() -> None:
            after(-steps, put)
            after(steps, box._stop.set)

        loop.call_soon_threadsafe(begin)
        await asyncio.to_thread(box._thread.join)
        assert rows(spool) == 1

    run(scenario)


def test_what_comes_after_an_attempt_has_ended_leaves_nothing_behind() -> None:
    buffer = Buffer(10, 10_000)
    for n in range(3):
        buffer.put(REF, line(n))
        assert buffer.take(due=False) is not None
        buffer.settle(REF, 1)
        buffer.forget(REF)
    buffer.put(REF, line(9))
    assert buffer.take(due=False) is not None
    buffer.settle(REF, 1)
    assert not buffer._attempts
