"""POST /v1/traces as the protocol has it: what is stored, what is refused, and what an exporter is told."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status
from otlpkit import (
    JSON,
    PROTOBUF,
    all_spans,
    at_the_door,
    claim,
    door,
    export,
    json_export,
    json_span,
    pairs,
    partial_success,
    post,
    wire_span,
)  # fmt: skip
from storekit import Kit, run

from leyden.server.operations.fence import attempt_key
from leyden.server.otlp import json_body, protobuf_body
from leyden.types import FailureKind, LeaseRef


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_span_comes_back_as_it_was_sent(database: str) -> None:
    full = wire_span(
        1,
        {
            "text": "é",
            "yes": True,
            "n": 2**63 - 1,
            "x": 0.5,
            "raw": b"\0\xff",
            "list": ["a", 1, None],
            "map": {"k": [{"deep": "v"}]},
            "none": None,
        },
        parent_span_id=bytes([9] * 8),
        trace_state="vendor=1",
        status=Status(code=Status.STATUS_CODE_ERROR, message="it broke"),
        dropped_attributes_count=3,
        dropped_events_count=4,
        dropped_links_count=5,
        events=[WireSpan.Event(name="e", time_unix_nano=7, attributes=pairs({"a": 1}), dropped_attributes_count=2)],
        links=[WireSpan.Link(trace_id=bytes([1] * 16), span_id=bytes([2] * 8), trace_state="t=1", attributes=pairs({"b": "c"}))],
    )

    async def check(kit: Kit, http: httpx.AsyncClient) -> None:
        request = export([full], {"service.name": "agent", "host.id": "h"}, scope="library")
        request.resource_spans[0].scope_spans[0].scope.version = "1.2"
        request.resource_spans[0].scope_spans[0].scope.attributes.extend(pairs({"s": 1}))
        answer = await post(http, request.SerializeToString())
        assert (answer.status_code, answer.content, answer.headers["content-type"]) == (200, b"", PROTOBUF)
        (span,) = await all_spans(kit)
        assert span.attributes == {
            "text": "é", "yes": True, "n": 2**63 - 1, "x": 0.5, "raw": "base64:AP8=", "list": ["a", 1, None],
            "map": {"k": [{"deep": "v"}]}, "none": None, "w3c.tracestate": "vendor=1", "otel.dropped_attributes_count": 3,
            "otel.dropped_events_count": 4, "otel.dropped_links_count": 5, "otel.scope.version": "1.2", "otel.scope.attributes": {"s": 1},
        }  # fmt: skip
        assert span.events == [{"name": "e", "time_ns": 7, "attributes": {"a": 1}, "dropped_attributes_count": 2}]
        assert span.links == [{"trace_id": "01" * 16, "span_id": "02" * 8, "trace_state": "t=1", "attributes": {"b": "c"}}]
        assert (span.resource, span.scope) == ({"service.name": "agent", "host.id": "h"}, "library")
        assert (span.parent_id, span.kind, span.status, span.status_message) == ("09" * 8, "client", "error", "it broke")
        assert (span.start_ns, span.end_ns, span.rollout_id, span.attempt, span.late) == (1_000_001, 2_000_001, None, None, False)
        assert (span.received_at, span.normalizer) == (kit.clock.now, 1)

    at_the_door(check, database)


def test_both_encodings_say_the_same(database: str) -> None:
    values = {
        "text": {"stringValue": "é"}, "yes": {"boolValue": True}, "n": {"intValue": "9007199254740993"}, "m": {"intValue": 7},
        "x": {"doubleValue": 0.5}, "whole": {"doubleValue": 2}, "raw": {"bytesValue": "AP8="}, "none": {},
        "list": {"arrayValue": {"values": [{"stringValue": "a"}]}},
        "map": {"kvlistValue": {"values": [{"key": "k", "value": {"intValue": "1"}}]}},
    }  # fmt: skip
    same = {
        "text": "é", "yes": True, "n": 9007199254740993, "m": 7, "x": 0.5, "whole": 2.0, "raw": b"\0\xff", "none": None, "list": ["a"],
        "map": {"k": 1},
    }  # fmt: skip

    async def check(kit: Kit, http: httpx.AsyncClient) -> None:
        first = wire_span(1, same, status=Status(code=Status.STATUS_CODE_OK))
        assert (await post(http, export([first]).SerializeToString())).status_code == 200
        # Unknown fields are passed over; enumerations by name are no OTLP, but what protobuf's own JSON printers write.
        span = json_span(
            2, values, traceId="0" * 31 + "A", somethingNew={"x": 1}, kind="SPAN_KIND_CLIENT", status={"code": "STATUS_CODE_OK"}
        )
        answer = await post(http, json_export([span]), JSON + "; charset=utf-8", zipped=True)
        assert (answer.status_code, answer.content, answer.headers["content-type"]) == (200, b"{}", JSON)
        one, two = await all_spans(kit)
        assert two.trace_id == "0" * 31 + "a"
        differing = {"trace_id", "span_id", "name", "start_ns", "end_ns"}
        assert one.model_dump(exclude=differing) == two.model_dump(exclude=differing)

    at_the_door(check, database)


def test_nothing_to_store_is_a_success() -> None:
    async def check(kit: Kit, http: httpx.AsyncClient) -> None:
        for body, content_type in ((b"", PROTOBUF), (b"{}", JSON), (b'{"resourceSpans": null}', JSON), (b'{"resourceSpans": []}', JSON)):
            assert partial_success(await post(http, body, content_type)) == (0, "")
        assert await kit.store.list_rejections() == []

    at_the_door(check)


def test_a_bad_span_is_refused_alone_and_counted(database: str) -> None:
    bad = [
        wire_span(10, trace_id=b"12345"),
        wire_span(11, span_id=b""),
        wire_span(12, trace_id=bytes(16)),
        wire_span(13, span_id=bytes(8)),
        wire_span(14, parent_span_id=b"1"),
        wire_span(15, start_time_unix_nano=2**63),
        wire_span(16, {"leyden.rollout_id": "no such", "leyden.attempt": 1}),
        wire_span(17, {"leyden.rollout_id": "ro-none", "leyden.attempt": 1}),
    ]
    bad_json = [
        json_span(20, traceId="xyz"),
        json_span(21, spanId="0123"),
        json_span(22, startTimeUnixNano=-1),
        json_span(23, endTimeUnixNano="1e9"),
        json_span(24) | {"attributes": {}},
        json_span(25, kind="client"),
        json_span(26, spanId=5),
        *(5, None, []),
        json_span(27, events=[1]),
        json_span(28, startTimeUnixNano=True),
        json_span(29, startTimeUnixNano=10**30),
    ]

    async def check(kit: Kit, http: httpx.AsyncClient) -> None:
        rejected, message = partial_success(await post(http, export([wire_span(1), *bad, wire_span(2)]).SerializeToString()))
        assert rejected == len(bad) and "its trace id is not 16 bytes, e.g. 3132333435" in message and "ro-none" in message
        rejected, message = partial_success(await post(http, json_export([json_span(3), *bad_json, json_span(4)]), JSON))
        assert rejected == len(bad_json) and "its trace id is not 16 bytes, e.g. xyz" in message
        assert [span.name for span in await all_spans(kit)] == ["span 1", "span 2", "span 3", "span 4"]
        counted = {(item.source, item.reason): item.n for item in await kit.store.list_rejections()}
        assert sum(counted.values()) == len(bad) + len(bad_json)
        assert counted["otlp", "its trace id is not 16 bytes"] == 2 and counted["otlp", "its attempt does not exist"] == 1

    at_the_door(check, database)


def test_rejections_are_listed_over_http_too(kind: str) -> None:
    async def check(kit: Kit) -> None:
        async with door(kit) as http:
            for n in range(3):
                kit.clock.advance(1)
                await post(http, export([wire_span(n, span_id=b"x" * (n + 1))]).SerializeToString())
        (found,) = await kit.store.list_rejections()
        assert (found.source, found.n, found.example, found.last_at) == ("otlp", 3, "787878", kit.clock.now)

    run(check, kind)


def test_bytes_that_are_not_text_cost_nothing_but_themselves() -> None:
    request = export([wire_span(1), wire_span(2, {"a": "XXXX", "b": {"c": ["XXXX"]}}), wire_span(3)], {"r": "XXXX"}).SerializeToString()
    request = request.replace(b"XXXX", b"\xff\xfe\0\xc3")

    async def check(kit: Kit, http: httpx.AsyncClient) -> None:
        assert partial_success(await post(http, request)) == (0, "")
        one, two, three = await all_spans(kit)
        odd = "\ufffd" * 4
        assert one.resource == two.resource == three.resource == {"r": odd}
        assert two.attributes == {"a": odd, "b": {"c": [odd]}, "leyden.altered": ["a", "b", "resource"]}

    at_the_door(check)


def test_a_span_that_is_no_message_is_refused_alone() -> None:
    async def check(kit: Kit, http: httpx.AsyncClient) -> None:
        good = wire_span(2).SerializeToString()
        body = (
            export([wire_span(1), wire_span(2), wire_span(3)])
            .SerializeToString()
            .replace(good, b"\x0a\xff" * (len(good) // 2) + b"\x0a" * (len(good) % 2))
        )
        rejected, message = partial_success(await post(http, body))
        assert rejected == 1 and "its Span cannot be decoded" in message
        assert [span.name for span in await all_spans(kit)] == ["span 1", "span 3"]

    at_the_door(check)


def test_odd_values_are_kept_harmless_and_marked(database: str) -> None:
    body = json_export(
        [
            json_span(1, {
                "nan": {"doubleValue": "NaN"}, "inf": {"doubleValue": "-Infinity"}, "nul\0": {"stringValue": "a\0b"},
                "half": {"stringValue": "\ud800x"}, "big": {"intValue": "99999999999999999999"}, "ok": {"intValue": "5"},
                "word": {"intValue": "five"}, "odd": "just text",
            }, name="n\0\udc00")
        ]
    )  # fmt: skip

    async def check(kit: Kit, http: httpx.AsyncClient) -> None:
        assert partial_success(await post(http, body, JSON)) == (0, "")
        floats = wire_span(2, {"nan": float("nan"), "nested": {"x": [float("inf")]}}, name="nul \0")
        assert partial_success(await post(http, export([floats]).SerializeToString())) == (0, "")
        one, two = await all_spans(kit)
        assert one.name == "n\ufffd\ufffd"
        assert one.attributes == {
            "nan": "NaN", "inf": "-Infinity", "nul\ufffd": "a\ufffdb", "half": "\ufffdx", "big": "99999999999999999999", "ok": 5,
            "word": "five", "odd": "just text", "leyden.altered": ["nan", "inf", "nul\ufffd", "half", "big"],
        }  # fmt: skip
        assert two.attributes == {"nan": "NaN", "nested": {"x": ["Infinity"]}, "leyden.altered": ["nan", "nested"]}
        assert two.name == "nul \ufffd"

    at_the_door(check, database)


def test_a_nan_written_as_a_number_loses_no_span() -> None:
    body = json_export([json_span(1, {"x": {"doubleValue": "HERE"}}), json_span(2)]).replace(b'"HERE"', b"NaN")

    async def check(kit: Kit, http: httpx.AsyncClient) -> None:
        for content in (body, body.replace(b"span 2", b"span \xff")):
            assert partial_success(await post(http, content, JSON)) == (0, "")
        assert [span.attributes.get("x") for span in await all_spans(kit)] == ["NaN", None]

    at_the_door(check)


# -- whose a span is ---------------------------------------------------------------------------------------------------


def test_a_span_goes_to_the_attempt_it_names(database: str) -> None:
    async def check(kit: Kit, http: httpx.AsyncClient) -> None:
        one, two, three = [await claim(kit) for _ in range(3)]
        named = wire_span(1, {"leyden.rollout_id": one.rollout_id, "leyden.attempt": 1})
        request = export([named, wire_span(2)], {"leyden.rollout_id": two.rollout_id, "leyden.attempt": "1"})
        request.MergeFrom(export([wire_span(3)]))
        for headers in ({"x_leyden_attempt_key": key_of(kit, three)}, {"authorization": f"Bearer {key_of(kit, three)}"}):
            assert partial_success(await post(http, request.SerializeToString(), **headers)) == (0, "")
        spans = {span.name: span for span in await all_spans(kit)}
        whose = {name: (span.rollout_id, span.attempt) for name, span in spans.items()}
        assert whose == {"span 1": (one.rollout_id, 1), "span 2": (two.rollout_id, 1), "span 3": (three.rollout_id, 1)}
        assert [span.name for span in await kit.store.list_spans(two.rollout_id)] == ["span 2"]
        assert not any(span.late for span in spans.values())

    at_the_door(check, database)


def test_a_span_of_an_ended_attempt_is_kept_as_late(database: str) -> None:
    async def check(kit: Kit, http: httpx.AsyncClient) -> None:
        ref = await claim(kit)
        key = key_of(kit, ref)
        await kit.sql.fail(ref, FailureKind.INFRASTRUCTURE)
        await kit.pass_time(1)
        (again,) = await kit.sql.claim("w")
        spans = [wire_span(n, {"leyden.rollout_id": ref.rollout_id, "leyden.attempt": n}) for n in (1, 2)]
        assert partial_success(await post(http, export(spans).SerializeToString())) == (0, "")
        assert partial_success(await post(http, export([wire_span(3)]).SerializeToString(), x_leyden_attempt_key=key)) == (0, "")
        assert [(span.attempt, span.late) for span in await kit.store.list_spans(again.ref.rollout_id)] == [
            (1, True),
            (1, True),
            (2, False),
        ]

    at_the_door(check, database)


def test_a_key_that_was_never_issued_costs_only_the_spans_that_need_it() -> None:
    async def check(kit: Kit, http: httpx.AsyncClient) -> None:
        ref = await claim(kit)
        spans = [wire_span(1), wire_span(2, {"leyden.rollout_id": ref.rollout_id, "leyden.attempt": 1})]
        rejected, message = partial_success(await post(http, export(spans).SerializeToString(), authorization="Bearer nonsense"))
        assert rejected == 1 and "never issued" in message and "nonsense" not in message
        assert [span.name for span in await all_spans(kit)] == ["span 2"]

    at_the_door(check)


def key_of(kit: Kit, ref: LeaseRef) -> str:
    return attempt_key(kit.sql._database.secret, ref)


# -- what others sent along, replays and size --------------------------------------------------------------------------


def test_no_span_is_lost_for_what_is_wrong_with_its_process_or_library(database: str) -> None:
    """What can be read of those is kept: also whose the spans are."""

    async def check(kit: Kit, http: httpx.AsyncClient) -> None:
        ref = await claim(kit)
        resource = {"leyden.rollout_id": ref.rollout_id, "leyden.attempt": "1", "deep": "HERE"}
        body = export([wire_span(1)], resource).SerializeToString()
        assert partial_success(await post(http, body.replace(b"\x0a\x04HERE", b"\x0f\x0f\x0f\x0f\x0f\x0f"))) == (0, "")
        group = json.loads(json_export([json_span(2)], resource))["resourceSpans"][0]
        group["resource"]["attributes"] += [5, {"key": "x", "value": {"arrayValue": 5}}]
        group["scopeSpans"][0]["scope"] = []
        answer = await post(http, json.dumps({"resourceSpans": [group, {"scopeSpans": [5]}, 5]}).encode(), JSON)
        assert partial_success(answer)[0] == 2, "the two groups that are none"
        for span in await kit.store.list_spans(ref.rollout_id):
            assert span.resource["leyden.attempt"] == "1" and "leyden.unreadable" in span.resource
        assert len(await all_spans(kit)) == 2

    at_the_door(check, database)


def test_exports_of_the_same_at_once_are_stored_once_and_each_refusal_is_counted(database: str) -> None:
    async def check(kit: Kit, http: httpx.AsyncClient) -> None:
        ref = await claim(kit)
        named = {"leyden.rollout_id": ref.rollout_id, "leyden.attempt": 1}
        good = [wire_span(n, named | {"text": f"{n} " * 9000}) for n in range(20)]
        bad = [wire_span(100, trace_id=b"1"), wire_span(101, {"leyden.rollout_id": "ro-none", "leyden.attempt": 1})]
        bodies = [export(spans).SerializeToString() for spans in ([*good, *bad], [*bad, *good[::-1]])]
        answers = await asyncio.gather(*(post(http, bodies[n % 2], zipped=n % 3 == 0) for n in range(24)))
        assert {partial_success(answer)[0] for answer in answers} == {2}
        assert [span.attributes["text"] for span in await kit.store.list_spans(ref.rollout_id)] == [f"{n} " * 9000 for n in range(20)]
        counted = {item.reason: item.n for item in await kit.store.list_rejections()}
        assert counted == {"its trace id is not 16 bytes": 24, "its attempt does not exist": 24}

    at_the_door(check, database)


def test_a_replay_adds_nothing(database: str) -> None:
    async def check(kit: Kit, http: httpx.AsyncClient) -> None:
        body = export([wire_span(n, {"text": "x" * 20_000}) for n in range(60)]).SerializeToString()
        for _ in range(3):
            assert partial_success(await post(http, body)) == (0, "")
        changed = export([wire_span(5, name="another"), wire_span(60)]).SerializeToString()
        assert partial_success(await post(http, changed)) == (0, "")
        spans = await all_spans(kit)
        assert len(spans) == 61 and spans[5].name == "span 5" and spans[5].attributes == {"text": "x" * 20_000}

    at_the_door(check, database)


def test_a_trace_of_10_000_spans_is_stored_whole(database: str) -> None:
    async def check(kit: Kit, http: httpx.AsyncClient) -> None:
        spans = [wire_span(n, {"i": n}, trace_id=bytes([7] * 16)) for n in range(10_000)]
        assert partial_success(await post(http, export(spans).SerializeToString(), zipped=True)) == (0, "")
        found = await all_spans(kit)
        assert [span.attributes["i"] for span in found] == list(range(10_000))

    at_the_door(check, database)


def test_what_one_span_may_hold_is_bounded_and_the_rest_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf_body, "MAX_ITEMS", 10)
    monkeypatch.setattr(json_body, "MAX_ITEMS", 10)
    monkeypatch.setattr(protobuf_body, "MAX_SPAN", 100_000)

    async def check(kit: Kit, http: httpx.AsyncClient) -> None:
        many = {f"a{n}": n for n in range(12)}
        crowded = wire_span(1, many, events=[WireSpan.Event()] * 13, dropped_events_count=2)
        huge = wire_span(2, {"text": "x" * 100_000})
        rejected, message = partial_success(await post(http, export([crowded, huge]).SerializeToString()))
        assert rejected == 1 and "larger than" in message
        values = {name: {"intValue": n} for name, n in many.items()}
        assert partial_success(await post(http, json_export([json_span(3, values, events=[{}] * 15)]), JSON)) == (0, "")
        for span, events in zip(await all_spans(kit), (5, 5), strict=True):
            assert len(span.events) == 10 and len([name for name in span.attributes if name.startswith("a")]) == 10
            assert (span.attributes["otel.dropped_attributes_count"], span.attributes["otel.dropped_events_count"]) == (2, events)

    at_the_door(check)
