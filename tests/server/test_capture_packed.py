"""Long conversations in the database: they grow by what is new in them, are read back whole, and hold nobody up."""

from __future__ import annotations

import asyncio
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from otlpkit import claim
from sqlalchemy import delete, func, select, text, update
from storekit import Kit, hold_writer, make_generation, make_span, new_postgres_database, open_kit, run

from leyden.errors import Busy, LeydenError
from leyden.server import capture, intake, wire
from leyden.server.codec import pack_ids
from leyden.server.operations.spans import add_spans
from leyden.server.packing import PIECE
from leyden.server.rejected import Rejected
from leyden.server.rows import MAX_BYTES, span_batches
from leyden.server.schema import blob_uses, blobs, generations, spans
from leyden.server.transaction import Transaction
from leyden.types import Generation, LeaseRef, Span, Verdict

TURNS = 50
WORDS = 300  # a turn


def noise(seed: int, size: int) -> str:
    return random.Random(seed).randbytes(size // 2).hex()


def conversation(seed: int) -> tuple[list[dict[str, str]], list[int]]:
    """``TURNS`` messages, and the ids of all their tokens."""
    rng = random.Random(seed)
    said = [" ".join(str(rng.randrange(10**6)) for _ in range(WORDS)) for _ in range(TURNS)]
    return [{"role": "user", "content": text} for text in said], [rng.randrange(50_000) for _ in range(TURNS * WORDS)]


def turns_of(ref: LeaseRef, seed: int = 1) -> list[Generation]:
    messages, ids = conversation(seed)
    return [
        make_generation(
            ref,
            f"g-{ref.rollout_id}-{n}",
            started_at=n,
            prompt_token_ids=ids[: n * WORDS],
            request={"model": "m", "messages": messages[:n], "seed": n},
        )
        for n in range(1, TURNS + 1)
    ]


def span_of(turn: Generation, n: int) -> Span:
    return make_span(n, attributes={"gen_ai.input.messages": turn.request["messages"], "n": n, "note": "x" * n})


async def stored_bytes(kit: Kit) -> int:
    def add_up(tx: Transaction) -> int:
        total = tx.conn.execute(select(func.sum(func.length(blobs.c.data)))).scalar() or 0
        for table, columns in ((generations, ("request", "prompt_token_ids")), (spans, ("attributes",))):
            total += sum(tx.conn.execute(select(func.sum(func.length(table.c[column])))).scalar() or 0 for column in columns)
        return int(total)

    return await kit.sql._executor.read(add_up)


def test_a_conversation_of_50_turns_grows_by_what_is_new(kind: str) -> None:
    async def check(kit: Kit) -> None:
        ref = await claim(kit)
        turns = turns_of(ref)
        sizes = []
        for n, turn in enumerate(turns, 1):
            await kit.store.add_generations(ref, [turn])
            await kit.store.add_spans(ref, [span_of(turn, n)])
            if n % 25 == 0:
                sizes.append(await stored_bytes(kit))
        last = turns[-1]
        said = len(str(last.request["messages"])) + 4 * len(last.prompt_token_ids or ())
        assert sizes[1] < 2.5 * sizes[0], "linear: with every turn stored whole it would be four times as much"
        assert sizes[1] < 6 * said, "and no more than a few times what was said: stored whole it would be 25 times"
        assert await kit.store.list_generations([ref.rollout_id]) == turns
        assert [span.attributes["gen_ai.input.messages"] for span in await kit.store.list_spans(ref.rollout_id)] == [
            turn.request["messages"] for turn in turns
        ]

    run(check, kind)


def test_samples_of_one_task_share_their_prompt() -> None:
    async def check(kit: Kit) -> None:
        refs = [await claim(kit) for _ in range(2)]
        sizes = []
        for ref in refs:
            await kit.store.add_generations(ref, turns_of(ref)[-1:])
            sizes.append(await stored_bytes(kit))
        assert sizes[1] < 1.3 * sizes[0]

        def uses(tx: Transaction) -> dict[str, int]:
            query = select(blob_uses.c.owner, func.count()).group_by(blob_uses.c.owner)
            return {owner: n for owner, n in tx.conn.execute(query)}

        counted = await kit.sql._executor.read(uses)
        assert set(counted) == {ref.rollout_id for ref in refs} and len(set(counted.values())) == 1

    run(check)


@pytest.mark.parametrize("damage", ["gone", "changed"])
@pytest.mark.parametrize("kind", ["sqlite", "http-sqlite"])
def test_a_piece_that_is_damaged_is_named_and_never_read_as_data(kind: str, damage: str) -> None:
    async def check(kit: Kit) -> None:
        ref, other = await claim(kit), await claim(kit)
        await kit.store.add_generations(ref, [make_generation(ref, "g", request={"text": "x" * 3 * PIECE})])
        await kit.store.add_generations(other, [make_generation(other, "h", request={"text": "short"})])

        def hurt(tx: Transaction) -> None:
            if damage == "gone":
                tx.conn.execute(delete(blob_uses))
                tx.conn.execute(delete(blobs))
            else:
                tx.conn.execute(update(blobs).values(data=b"y" * PIECE))

        await kit.sql._executor.write(hurt)
        with pytest.raises(LeydenError, match=r"piece [0-9a-f]{12} of a captured value") as raised:
            await kit.store.list_generations([ref.rollout_id])
        assert raised.value.hint and "backup" in raised.value.hint
        assert len(await kit.store.list_generations([other.rollout_id])) == 1, "the others are read as ever"

    run(check, kind)


def test_rows_from_before_there_were_pieces_are_read_as_they_are() -> None:
    ids = [1, *range(3000)]  # begins with the byte that marks a packed value

    async def check(kit: Kit) -> None:
        ref = await claim(kit)
        await kit.store.add_generations(ref, [make_generation(ref, "g")])
        await kit.store.add_spans(ref, [make_span(1)])

        def age(tx: Transaction) -> None:
            tx.conn.execute(update(generations).values(prompt_token_ids=pack_ids(ids), request=b'{"text":"' + b"x" * 20_000 + b'"}'))
            old = {column: None for column in ("links", "resource", "scope", "normalizer", "operation", "status_message")}
            tx.conn.execute(update(spans).values(attributes=b'{"text":"' + b"y" * 20_000 + b'","x":NaN}', **old))

        await kit.sql._executor.write(age)
        (generation,) = await kit.store.list_generations([ref.rollout_id])
        assert generation.prompt_token_ids == ids and generation.request == {"text": "x" * 20_000}
        (span,) = await kit.store.list_spans(ref.rollout_id)
        assert span.attributes["text"] == "y" * 20_000 and (span.links, span.resource, span.normalizer) == ([], {}, None)

    run(check)


# -- several at once ---------------------------------------------------------------------------------------------------


def test_stores_that_write_the_same_at_once_keep_it_once() -> None:
    """Two stores on one PostgreSQL: the same spans in two orders, and conversations that share their pieces."""

    async def check() -> None:
        url = await asyncio.to_thread(new_postgres_database)
        async with open_kit("postgres", url) as kit, open_kit("postgres", url) as twin:
            refs = [await claim(kit) for _ in range(4)]
            texts = [f"{n} " * 6000 for n in range(40)]
            same = [make_span(n, attributes={"text": texts[n]}) for n in range(1, 40)]
            writes: list[Any] = []
            for n, ref in enumerate(refs):
                store = (kit, twin)[n % 2].store
                turns = turns_of(ref)[::10]
                writes += [store.add_generations(ref, turns), store.add_generations(ref, turns)]
                writes += [store.add_spans(refs[0], same), store.add_spans(refs[0], same[::-1])]
            done = await asyncio.gather(*writes)
            assert sum(added for added in done if added is not None) == len(same)
            for ref in refs:
                assert await twin.store.list_generations([ref.rollout_id]) == turns_of(ref)[::10]
            found = await kit.store.list_spans(refs[0].rollout_id)
            assert [span.attributes["text"] for span in found] == texts[1:]

    asyncio.run(asyncio.wait_for(check(), 90))


def test_an_attempt_ends_before_or_after_its_spans_are_stored_and_never_between() -> None:
    stored, gate = threading.Event(), threading.Event()

    def store_slowly(tx: Transaction, ref: LeaseRef) -> None:
        (batch,) = span_batches([make_span(1)])
        add_spans(tx, ref, batch)
        stored.set()
        assert gate.wait(30)

    def waits(tx: Transaction) -> int:
        return int(tx.conn.execute(text("SELECT count(*) FROM pg_locks WHERE NOT granted")).scalar_one())

    async def check(kit: Kit) -> None:
        ref = await claim(kit)
        storing = asyncio.create_task(kit.sql._executor.write(store_slowly, ref))
        await asyncio.to_thread(stored.wait, 30)
        ending = asyncio.create_task(kit.store.complete(ref))
        while not await kit.sql._executor.read(waits):
            await asyncio.sleep(0.01)
        assert await kit.store.heartbeat("w", [ref]) == [Verdict.HELD], "a beat waits for neither"
        assert not ending.done()
        gate.set()
        await storing
        await ending
        assert [span.late for span in await kit.store.list_spans(ref.rollout_id)] == [False]

    run(check, "postgres")


# -- large bodies ------------------------------------------------------------------------------------------------------


def test_a_body_of_40_mb_holds_up_no_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parts are stopped one after the other until a beat has been answered: parsing, making rows, and between two commits."""
    reached = {"parse": asyncio.Event(), "rows": asyncio.Event()}
    gates = {"parse": threading.Event(), "rows": threading.Event()}

    async def check(kit: Kit) -> None:
        loop = asyncio.get_running_loop()

        def pause(step: str) -> None:
            loop.call_soon_threadsafe(reached[step].set)
            assert gates[step].wait(30)

        parse, make_rows = wire._parse, capture.span_batches
        monkeypatch.setattr(wire, "_parse", lambda model, body: (pause("parse") if len(body) > 1 << 20 else None, parse(model, body))[1])
        monkeypatch.setattr(capture, "span_batches", lambda spans: (pause("rows"), make_rows(spans))[1])
        ref = await claim(kit)
        ref_json = ref.model_dump_json().encode()
        big = [make_span(n, attributes={"text": noise(n, 1_000_000)}).model_dump_json() for n in range(40)]
        body = b'{"ref":' + ref_json + b',"spans":[' + ",".join(big).encode() + b"]}"
        async with httpx.AsyncClient(base_url=kit.url or "", trust_env=False, timeout=60) as http:
            posting = asyncio.create_task(http.post("/v1/spans", content=body))
            for step in reached:
                await reached[step].wait()
                assert await kit.store.heartbeat("w", [ref]) == [Verdict.HELD]
                assert not posting.done()
                gates[step].set()
            beats = 0
            while not posting.done():
                assert await kit.store.heartbeat("w", [ref]) == [Verdict.HELD]
                beats += 1
            assert posting.result().json() == 40 and beats >= 2
        assert len(await kit.sql.list_spans(ref.rollout_id)) == 40

    run(check, "http-sqlite")


def test_spans_are_stored_while_every_thread_of_the_loop_is_taken(kind: str) -> None:
    """As by agents that are plain functions and wait for the very calls that are to be stored."""
    gate = threading.Event()

    async def check(kit: Kit) -> None:
        ref = await claim(kit)
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        waiting = loop.run_in_executor(None, gate.wait)
        try:
            assert await kit.store.add_spans(ref, [make_span(1, attributes={"text": "x" * 1_000_000})]) == 1
            await kit.store.add_generations(ref, [make_generation(ref, "g")])
        finally:
            gate.set()
        await waiting

    run(check, kind)


def test_rows_are_written_in_commits_of_bounded_size() -> None:
    batches = list(span_batches(make_span(n, attributes={"text": noise(n, 100_000)}) for n in range(200)))
    assert sum(len(batch.rows) for batch in batches) == 200
    assert all(batch.size < MAX_BYTES + 200_000 for batch in batches) and len(batches) == 5
    assert len(list(span_batches([]))) == 1, "the fence is looked at even without a span"


def test_captured_data_that_waits_is_bounded_and_beats_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "MAX_HELD", 5 << 20)

    async def check(kit: Kit) -> None:
        ref = await claim(kit)
        gate, holding = await hold_writer(kit)
        many = [[make_span(100 * n + m, attributes={"text": f"{n}{m} " * 1000}) for m in range(100)] for n in range(1, 41)]
        writing = [asyncio.create_task(kit.sql.add_spans(ref, some)) for some in many]
        while not any(task.done() for task in writing):
            await asyncio.sleep(0.01)
        gate.set()
        await holding
        done = await asyncio.gather(*writing, return_exceptions=True)
        refused = [error for error in done if isinstance(error, Busy)]
        assert refused and all(1 <= error.retry_after <= 3 for error in refused)
        kept = sum(added for added in done if isinstance(added, int))
        assert 0 < kept == 100 * (len(many) - len(refused)) == len(await kit.sql.list_spans(ref.rollout_id))
        assert sum([await kit.sql.add_spans(ref, some) for some in many]) == 4000 - kept, "told to come again, they are stored"

    run(check)


def test_a_span_may_be_sent_with_what_only_the_store_fills_and_that_is_not_believed(kind: str) -> None:
    async def check(kit: Kit) -> None:
        ref = await claim(kit)
        sent = make_span(
            1, attributes={"gen_ai.request.model": "m"}, late=True, received_at=5, normalizer=99, model="other", rollout_id="ro-x"
        )
        await kit.store.add_spans(ref, [sent])
        (span,) = await kit.store.list_spans(ref.rollout_id)
        assert (span.late, span.received_at, span.normalizer, span.model) == (False, kit.clock.now, 1, "m")
        assert (span.rollout_id, span.attempt) == (ref.rollout_id, 1)

    run(check, kind)


def test_unattached_pieces_belong_to_their_trace() -> None:
    async def check(kit: Kit) -> None:
        (batch,) = span_batches([make_span(1, attributes={"text": "x" * 2 * PIECE})])
        await kit.sql.add_exported([batch], Rejected())

        def owners(tx: Transaction) -> list[str]:
            return list(tx.conn.execute(select(blob_uses.c.owner)).scalars())

        assert set(await kit.sql._executor.read(owners)) == {f"{1:032x}"}

    run(check)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_pieces_of_a_span_that_is_there_already_are_not_kept(kind: str) -> None:
    async def check(kit: Kit) -> None:
        def spans_of(*texts: str) -> list[Span]:
            return [make_span(1, attributes={"text": text * 2 * PIECE}) for text in texts]

        ref = await claim(kit)
        assert await kit.store.add_spans(ref, [*spans_of("x", "y"), make_span(3)]) == 2
        await kit.store.add_spans(ref, spans_of("z"))
        (again,) = span_batches([span.model_copy(update={"rollout_id": None}) for span in spans_of("z")])
        await kit.sql.add_exported([again], Rejected())

        def uses(tx: Transaction) -> list[Any]:
            return [tuple(row) for row in tx.conn.execute(select(blob_uses.c.owner, blobs.c.data).join(blobs))]

        found = await kit.sql._executor.read(uses)
        assert {owner for owner, _ in found} == {ref.rollout_id} and not any(b"y" in data or b"z" in data for _, data in found)
        assert [span.attributes.get("text") for span in await kit.store.list_spans(ref.rollout_id)] == ["x" * 2 * PIECE, None]

    run(check, kind)


def test_pieces_of_refused_spans_are_not_kept() -> None:
    async def check(kit: Kit) -> None:
        lost = make_span(1, rollout_id="ro-none", attempt=1, attributes={"text": "x" * 2 * PIECE})
        kept = make_span(2, attributes={"text": "y" * PIECE})
        (batch,) = span_batches([lost, kept])
        assert (await kit.sql.add_exported([batch], Rejected())).total == 1

        def stored(tx: Transaction) -> list[bytes]:
            return list(tx.conn.execute(select(blobs.c.data)).scalars())

        assert {data.strip(b'"') for data in await kit.sql._executor.read(stored)} == {b"y" * (PIECE - 1)}

    run(check)
