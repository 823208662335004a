"""What one answer may hold, and how long it may take, so that no question stops the others."""

from __future__ import annotations

import asyncio
import threading

import pytest
from otlpkit import claim
from storekit import Kit, make_generation, make_span, open_kit, run

from leyden.errors import TooLarge, Unavailable
from leyden.server import postgres, sqlite
from leyden.server.operations import generations, spans
from leyden.server.queries import SpanQuery
from leyden.server.transaction import Transaction

ENDLESS = "WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c) SELECT count(*) FROM c"
KINDS = pytest.mark.parametrize("kind", ["sqlite", "postgres"])


def test_a_page_of_spans_ends_where_it_holds_enough(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "MAX_PAGE", 100_000)

    async def check(kit: Kit) -> None:
        ref = await claim(kit)
        text = "the same in each " * 2500  # 42 kB, stored once
        large = make_span(9, attributes={"text": "x" * 150_000})
        await kit.store.add_spans(ref, [*(make_span(n, attributes={"text": text}) for n in range(1, 6)), large])
        found: list[str] = []
        pages = []
        after = None
        while page := await kit.store.query_spans(SpanQuery(rollout_id=ref.rollout_id, after=after)):
            pages.append(len(page))
            found += [span.span_id for span in page]
            after = f"{page[-1].trace_id}-{page[-1].span_id}"
        assert pages == [2, 2, 1, 1] and found == [f"{n:016x}" for n in (1, 2, 3, 4, 5, 9)], "one too large comes alone"
        with pytest.raises(TooLarge, match="hold more"):
            await kit.store.list_spans(ref.rollout_id)

    run(check, kind)


def test_more_generations_than_an_answer_can_hold_are_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generations, "MAX_ANSWER", 100_000)

    async def check(kit: Kit) -> None:
        one, two = await claim(kit), await claim(kit)
        for ref in (one, two):
            await kit.store.add_generations(ref, [make_generation(ref, f"g-{ref.rollout_id}", prompt_token_ids=list(range(15_000)))])
        assert len(await kit.store.list_generations([one.rollout_id])) == 1
        with pytest.raises(TooLarge, match="generations"):
            await kit.store.list_generations([one.rollout_id, two.rollout_id])

    run(check, kind)


@KINDS
def test_a_question_that_takes_too_long_is_stopped_and_the_next_is_answered(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "READ_SECONDS", 0.2)
    monkeypatch.setattr(postgres, "READ_SECONDS", 0.2)

    async def check(kit: Kit) -> None:
        asked = [kit.sql._executor.read(lambda tx: tx.conn.exec_driver_sql(ENDLESS).scalar()) for _ in range(6)]
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(answer, Unavailable) and "takes too long" in answer.message
        assert await kit.store.list_rollouts() == []

    run(check, kind)


@KINDS
def test_a_store_closes_while_questions_are_asked(kind: str) -> None:
    async def check() -> None:
        begun = threading.Semaphore(0)

        def ask(tx: Transaction) -> None:
            begun.release()
            tx.conn.exec_driver_sql(ENDLESS).scalar()

        async with open_kit(kind) as kit:
            asked = [asyncio.create_task(kit.sql._executor.read(ask)) for _ in range(6)]  # two of them wait for a thread
            for _ in range(4):
                assert await asyncio.to_thread(begun.acquire, timeout=30)
            await asyncio.wait_for(kit.sql.close(), 20)
            for answer in await asyncio.gather(*asked, return_exceptions=True):
                assert isinstance(answer, Unavailable) and "closed" in answer.message

    asyncio.run(check())
