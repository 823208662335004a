"""Spans on their way to the store: sent while their attempts run, kept while it is away, counted when there is no room."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from tracing_room import line, outbox, room, run, until

from leyden.errors import Busy, LeydenError
from leyden.runners import Runner, RunnerConfig, rollout
from leyden.runners.buffer import BATCH, FULL
from leyden.runners.outbox import Limits, Outbox
from leyden.runners.spool import Spool, read
from leyden.runners.tracer import LEFT_OUT, Recorder, current_recorder
from leyden.server.client import StoreClient
from leyden.server.interface import AttemptEnd
from leyden.server.queries import SpanQuery
from leyden.types import LeaseRef, NewRollout, RolloutState, Span

NEVER = lambda: False  # noqa: E731
REF = LeaseRef(rollout_id="ro-1", attempt=1, token=7)


def rows(spool: Path) -> list[dict[str, Any]]:
    return [json.loads(row) for path in sorted(spool.rglob("*.jsonl")) for row in path.read_bytes().splitlines()]


def test_spans_are_stored_while_their_attempt_still_runs_and_all_of_them_before_it_ends(tmp_path: Path) -> None:
    place = room(tmp_path)
    go = asyncio.Event()
    ended_with: list[int] = []

    @rollout
    async def agent(task: str) -> float:
        recorder = current_recorder()
        assert recorder is not None
        recorder.note("early", {})
        await go.wait()
        for n in range(3):
            recorder.note("late", {"n": n})
        return 1.0

    class Counting(StoreClient):
        async def end_attempts(self, ends: Sequence[AttemptEnd]) -> list[LeydenError | None]:
            (end,) = ends
            ended_with.append(len(await self.list_spans(end.ref.rollout_id)) + len(end.spans))
            return await super().end_attempts(ends)

    async def scenario() -> None:
        async with place.store() as store:
            (item,) = await store.enqueue([NewRollout(input="x")])
            running = asyncio.create_task(Runner(agent, lambda: Counting(place.url), RunnerConfig(max_rollouts=1)).run())
            while not (early := await store.list_spans(item.id)):
                await asyncio.sleep(0.01)
            assert [span.name for span in early] == ["early"] and (await store.get_rollout(item.id)).state is RolloutState.RUNNING
            go.set()
            await running
            spans = await store.list_spans(item.id)
            assert sorted(span.name for span in spans) == ["early", "late", "late", "late", "rollout"]
            assert ended_with == [5] and not [span for span in spans if span.late]

    run(scenario)


def test_spans_of_many_attempts_and_threads_each_go_to_their_own(tmp_path: Path) -> None:
    place = room(tmp_path)
    attempts, each = 16, BATCH + 50

    async def scenario() -> None:
        async with place.store(), outbox(place.url) as box:
            refs = await place.attempts(attempts)

            def put(number: int) -> None:
                for n in range(each):
                    assert box.put(refs[number], line(n, trace=number + 1, own=number)) is None

            threads = [threading.Thread(target=put, args=(number,)) for number in range(attempts)]
            for thread in threads:
                thread.start()
            for thread in threads:
                await asyncio.to_thread(thread.join)
            await asyncio.gather(*(box.finish(ref, Recorder(), NEVER) for ref in refs))
            assert box.buffer.left == 0 and box.buffer.bytes == 0
            for number, ref in enumerate(refs):
                spans = await place.spans(ref)
                assert len(spans) == each and {span.attributes["own"] for span in spans} == {number}

    run(scenario)


def test_a_store_that_is_behind_gets_its_spans_when_it_says_and_they_are_kept_meanwhile(tmp_path: Path) -> None:
    place, spool = room(tmp_path), tmp_path / "spool"
    refused: list[int] = []

    class Behind(StoreClient):
        async def add_encoded_spans(self, ref: LeaseRef, spans: Any) -> int:
            if len(refused) < 2:
                refused.append(len(spans))
                raise Busy("behind", "later", 0.05)
            return await super().add_encoded_spans(ref, spans)

    async def scenario() -> None:
        async with place.store():
            (ref,) = await place.attempts(1)
            box = Outbox(lambda: Behind(place.url), "test", spool)
            box.start()
            box.put(ref, line(1))
            await box.finish(ref, Recorder(), NEVER)
            assert len(await place.spans(ref)) == 1 and refused == [1, 1] and rows(spool) == []
            await box.stop(1.0)

    run(scenario)


def test_while_the_store_is_away_spans_wait_on_the_disk_and_are_sent_when_it_is_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, spool = room(tmp_path), tmp_path / "spool"

    async def scenario() -> None:
        async with place.store():
            refs = await place.attempts(2)
        async with outbox(place.url, spool) as box:
            for n in range(20):
                box.put(refs[n % 2], line(n))
            await until(lambda: len(rows(spool)) == 20)
            assert box.buffer.spans == 0 and box.buffer.left == 20
            (own,) = spool.iterdir()
            assert own.stat().st_mode & 0o077 == 0 and all(path.stat().st_mode & 0o077 == 0 for path in own.iterdir())
            flushing = asyncio.gather(*(box.finish(ref, Recorder(), NEVER) for ref in refs))
            async with place.store():
                await flushing
                assert [len(await place.spans(ref)) for ref in refs] == [10, 10]
                await until(lambda: rows(spool) == [])
        assert list(spool.iterdir()) == []

    run(scenario)
    said = capsys.readouterr().err
    assert said.count("keeping them in") == 1 and said.count("the store has the 20 spans") == 1


def test_a_full_spool_and_a_full_memory_are_said_and_every_span_left_out_is_counted_under_its_attempt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, spool = room(tmp_path), tmp_path / "spool"
    made, said = 200, []

    def told() -> str:
        said.append(capsys.readouterr().err)
        return "".join(said)

    async def scenario() -> None:
        async with place.store():
            (ref,) = await place.attempts(1)
        async with outbox(place.url, spool, Limits(spans=40, spool=6000)) as box:
            recorder = Recorder(lambda data: box.put(ref, data), keep=False)
            for n in range(made):
                recorder.note("said", {"n": n})
            await until(lambda: rows(spool) and "no more spans" in told())
            for n in range(made):
                recorder.note("said", {"n": n})
            assert box.buffer.spans >= 40 and recorder.left_out.n
            flushing = asyncio.create_task(box.finish(ref, recorder, NEVER))
            async with place.store():
                await flushing
                spans = await place.spans(ref)
                (note,) = [span for span in spans if span.name == LEFT_OUT]
                assert note.attributes == {"leyden.count": 2 * made - len(spans) + 1, "leyden.reason": FULL}

    run(scenario)
    assert told().count("no more spans can be kept in") == 1 and "spans left out: the store was away" in told()


def test_a_disk_that_takes_nothing_is_said_once_and_the_spans_stay_in_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place, blocked = room(tmp_path), tmp_path / "a file"
    blocked.write_text("not a directory")

    async def scenario() -> None:
        async with place.store():
            (ref,) = await place.attempts(1)
        async with outbox(place.url, blocked / "spool") as box:
            for n in range(5):
                box.put(ref, line(n))
                await asyncio.sleep(0)
            await until(lambda: box.away)
            flushing = asyncio.create_task(box.finish(ref, Recorder(), NEVER))
            async with place.store():
                await flushing
                assert len(await place.spans(ref)) == 5

    run(scenario)
    assert capsys.readouterr().err.count("no more spans can be kept") == 1


def test_without_a_spool_spans_wait_in_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = room(tmp_path)

    async def scenario() -> None:
        async with place.store():
            (ref,) = await place.attempts(1)
        async with outbox(place.url) as box:
            box.put(ref, line(1))
            await until(lambda: box.away)
            box.put(ref, line(2))
            flushing = asyncio.create_task(box.finish(ref, Recorder(), NEVER))
            async with place.store():
                await flushing
                assert len(await place.spans(ref)) == 2
        async with outbox(place.url) as box:
            box.put(ref, line(3))
            await until(lambda: box.away)

    run(scenario)
    assert "1 spans left out: the store was away" in capsys.readouterr().err


def test_what_a_runner_leaves_on_the_disk_is_sent_by_the_next_and_never_what_a_live_one_keeps(tmp_path: Path) -> None:
    place, spool = room(tmp_path), tmp_path / "spool"

    async def scenario() -> None:
        async with place.store():
            first, second = await place.attempts(2)
        async with outbox(place.url, spool) as dead:
            dead.put(first, line(1))
            await until(lambda: dead.away)
        alive = Spool(spool)
        alive.append(second, [line(2)])
        assert [row["ref"]["rollout_id"] for row in rows(spool)] in (
            [first.rollout_id, second.rollout_id], [second.rollout_id, first.rollout_id],
        )  # fmt: skip
        async with place.store() as store:
            await store.release(first)  # nobody holds it any more: its spans come late
            async with outbox(place.url, spool):
                while not await place.spans(first):
                    await asyncio.sleep(0.01)
                await until(lambda: len(rows(spool)) == 1)
            (span,) = await place.spans(first)
            assert span.late and span.attributes["n"] == 1
            assert await place.spans(second) == []
            alive.close()
            async with outbox(place.url, spool):
                while not await place.spans(second):
                    await asyncio.sleep(0.01)
            (span,) = await place.spans(second)
            assert not span.late  # under the lease it was recorded under, which still holds

    run(scenario)
    assert list(spool.iterdir()) == []


def test_spans_that_were_sent_before_their_runner_died_are_not_stored_twice(tmp_path: Path) -> None:
    place, spool = room(tmp_path), tmp_path / "spool"

    async def scenario() -> None:
        async with place.store():
            (ref,) = await place.attempts(1)
            async with outbox(place.url) as box:
                box.put(ref, line(1))
            left = Spool(spool)
            left.append(ref, [line(1), line(2)])
            left.close()
            async with outbox(place.url, spool):
                await until(lambda: rows(spool) == [])
            assert [span.attributes["n"] for span in await place.spans(ref)] == [1, 2]

    run(scenario)


def test_spans_of_an_attempt_that_the_store_does_not_know_are_dropped_from_the_disk_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, spool = room(tmp_path), tmp_path / "spool"

    async def scenario() -> None:
        left = Spool(spool)
        left.append(REF, [line(1), line(2)])
        left.close()
        async with place.store(), outbox(place.url, spool):
            await until(lambda: rows(spool) == [])

    run(scenario)
    assert "rollout ro-1, attempt 1: 2 spans left out: rollout ro-1 does not exist" in capsys.readouterr().err


def test_a_line_that_a_crash_cut_short_costs_none_of_the_others(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append(REF, [line(1), line(2)])
    spool.close()
    (segment,) = tmp_path.rglob("*.jsonl")
    segment.write_bytes(segment.read_bytes()[:-30])
    ((ref, lines),) = read(segment)
    assert ref == REF and [json.loads(item)["attributes"]["n"] for item in lines] == [1]


def test_the_spool_is_cut_into_files_and_gives_room_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leyden.runners.spool.SEGMENT", 300)
    spool = Spool(tmp_path, limit=4000)
    for n in range(30):
        spool.append(REF, [line(n)])
    assert len(list(tmp_path.rglob("*.jsonl"))) > 5 and spool.size <= 4000
    assert spool.append(REF, [line(99)] * 100) < 100  # the limit
    numbers = []
    while (segment := spool.oldest()) is not None:
        kept = list(read(segment))
        numbers += [json.loads(item)["attributes"]["n"] for _, lines in kept for item in lines]
        assert not spool.drop(segment, kept)
    assert spool.size == 0 and [n for n in numbers if n != 99] == list(range(len([n for n in numbers if n != 99])))
    spool.close()


def test_no_secret_is_written_to_the_disk_nor_to_the_store_and_both_doors_of_the_store_agree(tmp_path: Path) -> None:
    place, spool = room(tmp_path), tmp_path / "spool"
    header = "http.request.header.authorization"
    secrets = {header: "Bearer abc123def456ghi789", "api_key": "hunter2", "text": "my sk-0123456789abcdefghijkl"}

    async def export(trace_id: str, attributes: dict[str, str]) -> None:
        span = {"traceId": trace_id, "spanId": "cd" * 8, "name": "said", "startTimeUnixNano": "1", "endTimeUnixNano": "2"}
        given = [{"key": name, "value": {"stringValue": value}} for name, value in attributes.items()]
        async with httpx.AsyncClient(timeout=60) as http:
            body = {"resourceSpans": [{"scopeSpans": [{"spans": [span | {"attributes": given}]}]}]}
            (await http.post(f"{place.url}/v1/traces", json=body)).raise_for_status()

    async def scenario() -> None:
        async with place.store():
            (ref,) = await place.attempts(1)
        async with outbox(place.url, spool) as box:
            box.put(ref, line(1, **secrets))
            await until(lambda: rows(spool))
            (row,) = rows(spool)
            async with place.store():
                await box.finish(ref, Recorder(), NEVER)
                (kept,) = await place.spans(ref)
                direct = Span.model_validate_json(line(2, **secrets))
                await place.sql.add_spans(ref, [direct])  # type: ignore[union-attr]
                _, straight = await place.spans(ref)
                await export("ab" * 16, secrets)
                (at_the_door,) = await place.sql.query_spans(SpanQuery(trace_id="ab" * 16))  # type: ignore[union-attr]
                told = [{name: span.attributes[name] for name in secrets} for span in (kept, straight, at_the_door)]
                assert told[0] == told[1] == told[2] == {name: row["span"]["attributes"][name] for name in secrets}
                assert told[0] == {header: "[redacted]", "api_key": "[redacted]", "text": "my [redacted]"}

    run(scenario)


def test_a_fork_of_the_process_sends_nothing_of_its_own(tmp_path: Path) -> None:
    box = Outbox(lambda: StoreClient("http://127.0.0.1:9"), "test")
    child = os.fork()
    if not child:
        os._exit(0 if box.put(REF, line(1)) is None and box.buffer.left == 0 else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_sender_that_fails_holds_nobody_up_and_what_comes_after_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    def nowhere() -> StoreClient:
        raise RuntimeError("no client")

    async def scenario() -> None:
        box = Outbox(nowhere, "test")
        box.start()
        recorder = Recorder(lambda data: box.put(REF, data), keep=False)
        recorder.note("said", {})
        await box.finish(REF, recorder, NEVER)
        assert recorder.left_out.n == 1 and "no client" in recorder.left_out.reason
        await box.stop(1.0)

    run(scenario)
    assert "what sends spans has failed" in capsys.readouterr().err


def test_spans_that_have_not_ended_when_their_attempt_has_are_counted(tmp_path: Path) -> None:
    trace = pytest.importorskip("opentelemetry.trace")
    from tracing_room import traced

    @rollout
    async def agent(task: str) -> float:
        trace.get_tracer("mine").start_span("never ends")
        return 1.0

    async def scenario() -> None:
        ((done, spans),) = await traced(agent, ["x"])
        assert done.state is RolloutState.SUCCEEDED
        (note,) = [span for span in spans if span.name == LEFT_OUT]
        assert note.attributes == {"leyden.count": 1, "leyden.reason": "it had not ended when its attempt had"}

    run(scenario)
