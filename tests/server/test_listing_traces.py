"""Spans and traces, read back by filters and page by page, on every kind of store."""

from __future__ import annotations

from typing import Any

import pytest
from storekit import Kit, make_span, run, task

from leyden.errors import NotFound
from leyden.server.interface import Store
from leyden.server.queries import SpanQuery, Trace, TraceQuery
from leyden.types import LeaseRef, Span


def chat(trace: int, span: int, tokens: int | None = None, **fields: Any) -> Span:
    attributes = (
        {} if tokens is None else {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": tokens, "gen_ai.usage.output_tokens": 1}
    )
    values = {"trace_id": f"{trace:032x}", "span_id": f"{span:016x}", "attributes": attributes, "name": f"span {span}"}
    return make_span(span, **values | fields)


async def leased(kit: Kit) -> LeaseRef:
    await kit.store.enqueue([task()])
    (lease,) = await kit.store.claim("w", 1)
    return lease.ref


async def all_spans(store: Store, size: int, **fields: Any) -> list[Span]:
    found: list[Span] = []
    query = SpanQuery(**fields, limit=size)
    while page := await store.query_spans(query):
        found += page
        query = query.model_copy(update={"after": f"{page[-1].trace_id}-{page[-1].span_id}"})
    return found


async def all_traces(store: Store, size: int, **fields: Any) -> list[Trace]:
    found: list[Trace] = []
    query = TraceQuery(**fields, limit=size)
    while page := await store.list_traces(query):
        found += page
        query = query.model_copy(update={"after": page[-1].trace_id})
    return found


def names(spans: list[Span]) -> list[str]:
    return [span.name for span in spans]


def test_spans_are_found_by_every_filter_and_paged(kind: str) -> None:
    async def check(kit: Kit) -> None:
        one, two = await leased(kit), await leased(kit)
        await kit.store.add_spans(one, [chat(1, 1), chat(1, 2, 5, parent_id=f"{1:016x}"), chat(1, 3, status="error")])
        began = kit.clock.now
        kit.clock.advance(60)
        await kit.store.add_spans(two, [chat(2, 4, 7), chat(3, 5)])
        expected: list[tuple[dict[str, Any], list[int]]] = [
            ({}, [1, 2, 3, 4, 5]),
            ({"trace_id": f"{1:032x}"}, [1, 2, 3]),
            ({"rollout_id": two.rollout_id}, [4, 5]),
            ({"rollout_id": one.rollout_id, "attempt": 2}, []),
            ({"name": "span 2"}, [2]),
            ({"operation": "chat"}, [2, 4]),
            ({"status": "error"}, [3]),
            ({"received_from": began + 1}, [4, 5]),
            ({"received_to": began + 1}, [1, 2, 3]),
            ({"operation": "chat", "rollout_id": two.rollout_id}, [4]),
        ]
        for fields, numbers in expected:
            wanted = [f"span {n}" for n in numbers]
            assert sorted(names(await kit.store.query_spans(SpanQuery(**fields)))) == wanted, fields
            assert sorted(names(await all_spans(kit.store, 2, **fields))) == wanted, fields
        forwards = names(await all_spans(kit.store, 2))
        assert names(await all_spans(kit.store, 2, newest_first=True)) == forwards[::-1]
        with pytest.raises(NotFound, match="span nowhere"):
            await kit.store.query_spans(SpanQuery(after="nowhere"))

    run(check, kind)


def test_a_trace_sums_up_its_spans_and_is_named_by_its_root(kind: str) -> None:
    async def check(kit: Kit) -> None:
        ref = await leased(kit)
        root = chat(
            1,
            1,
            100,
            name="agent",
            start_ns=10,
            end_ns=90,
            attributes={"gen_ai.operation.name": "invoke_agent", "gen_ai.usage.input_tokens": 9},
        )
        calls = [chat(1, n, 5, parent_id=root.span_id, start_ns=10 + n, end_ns=20 + n) for n in (2, 3)]
        await kit.store.add_spans(ref, calls)
        (early,) = await kit.store.list_traces(TraceQuery())
        assert early.name in ("span 2", "span 3") and early.spans == 2, "its root is not here yet"
        await kit.store.add_spans(ref, [root, chat(1, 4, parent_id=root.span_id, status="error", start_ns=50, end_ns=95)])
        (trace,) = await kit.store.list_traces(TraceQuery())
        assert (trace.name, trace.spans, trace.errors) == ("agent", 4, 1)
        assert (trace.start_ns, trace.end_ns) == (10, 95)
        assert (trace.input_tokens, trace.output_tokens) == (10, 2), "of the calls; the agent's span repeats them"
        assert (trace.rollout_id, trace.attempt) == (ref.rollout_id, ref.attempt)

    run(check, kind)


def test_traces_come_newest_first_and_keep_their_place(kind: str) -> None:
    async def check(kit: Kit) -> None:
        one, two = await leased(kit), await leased(kit)
        for n in range(1, 6):
            await kit.store.add_spans(one if n < 4 else two, [chat(n, 10 * n)])
            kit.clock.advance(1)
        ids = [f"{n:032x}" for n in (5, 4, 3, 2, 1)]
        assert [trace.trace_id for trace in await all_traces(kit.store, 2)] == ids
        first = await kit.store.list_traces(TraceQuery(limit=2))
        await kit.store.add_spans(one, [chat(9, 90), chat(2, 21), chat(5, 51)])  # a new one, and more of old ones
        rest = await kit.store.list_traces(TraceQuery(after=first[-1].trace_id))
        assert [trace.trace_id for trace in first + rest] == ids
        assert [trace.trace_id for trace in await all_traces(kit.store, 1, rollout_id=two.rollout_id)] == ids[:2]
        assert [trace.trace_id for trace in await kit.store.list_traces(TraceQuery(received_to=first[-1].received_at))] == ids[2:]
        in_order = await kit.store.list_traces(TraceQuery(id_prefix="0" * 31))
        assert [trace.trace_id for trace in in_order] == [*ids[::-1], f"{9:032x}"]
        assert await kit.store.list_traces(TraceQuery(id_prefix="f")) == []
        with pytest.raises(NotFound):
            await kit.store.list_traces(TraceQuery(after="nowhere"))

    run(check, kind)
