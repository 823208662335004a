"""POST /v1/traces: what is refused as a whole, group by group, or for now, and what an exporter is told."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from otlpkit import JSON, PROTOBUF, all_spans, at_the_door, export, json_export, json_span, partial_success, post, wire_span
from storekit import Kit

from leyden.errors import InvalidRequest
from leyden.server import intake
from leyden.server.otlp import inflate, json_body
from leyden.server.otlp.fields import bytes_field
from leyden.server.routes import otlp


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        (b"\xff\xff\xff", PROTOBUF, 400),
        (export([wire_span(1)]).SerializeToString()[:-1], PROTOBUF, 400),
        (b"[1", JSON, 400),
        (b"[]", JSON, 400),
        (b'"x"', JSON, 400),
        (b"", JSON, 400),
        (b"[" * 100_000, JSON, 400),
        (b'{"resourceSpans": 5}', JSON, 400),
        (b"{}", "text/plain", 415),
        (b"{}", "", 415),
        (b"", "application/grpc", 415),
    ],
)
def test_what_is_no_export_is_refused_with_a_status(body: bytes, content_type: str, status: int) -> None:
    async def check(kit: Kit, http: httpx.AsyncClient) -> None:
        answer = await post(http, body, content_type)
        assert answer.status_code == status and await all_spans(kit) == []
        if content_type == PROTOBUF:
            assert answer.headers["content-type"] == PROTOBUF and answer.content.startswith(b"\x08\x03\x12") and b"not an" in answer.content
        else:
            said = answer.json()
            assert answer.headers["content-type"] == JSON and said["code"] == 3 and said["message"]
        if status == 400:
            (counted,) = await kit.store.list_rejections()
            assert counted.reason == "a whole body is no export" and counted.n == 1

    at_the_door(check)


def test_a_body_beyond_bounds_is_413(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "MAX_WIRE", 1 << 20)
    monkeypatch.setattr(inflate, "MAX_INFLATED", 4 << 20)
    monkeypatch.setattr(json_body, "MAX_CONTAINERS", 10_000)
    too_many = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [{}] * 10_000}]}]}).encode()

    async def check(kit: Kit, http: httpx.AsyncClient) -> None:
        async def streamed() -> Any:  # without a length
            for _ in range(5):
                yield bytes(300_000)

        headers = {"content-type": PROTOBUF}
        assert (await http.post("/v1/traces", content=bytes((1 << 20) + 1), headers=headers)).status_code == 413
        assert (await http.post("/v1/traces", content=streamed(), headers=headers)).status_code == 413
        answer = await post(http, bytes(5 << 20), zipped=True)
        assert answer.status_code == 413 and b"inflates" in answer.content
        assert (await post(http, too_many, JSON)).status_code == 413
        (counted,) = await kit.store.list_rejections()
        assert (counted.reason, counted.n) == ("a whole body is too large", 4)

    at_the_door(check)


def test_gzip_may_be_in_parts_and_must_be_whole() -> None:
    body = export([wire_span(1), wire_span(2)]).SerializeToString()
    parts = gzip.compress(body[:20]) + gzip.compress(body[20:])

    async def check(kit: Kit, http: httpx.AsyncClient) -> None:
        headers = {"content-type": PROTOBUF, "content-encoding": "gzip"}
        assert (await http.post("/v1/traces", content=parts, headers=headers)).status_code == 200
        assert len(await all_spans(kit)) == 2
        for broken in (parts[:-9], parts[5:], b"\x1f\x8b", body, zlib.compress(body)):
            assert (await http.post("/v1/traces", content=broken, headers=headers)).status_code == 400
        assert (await http.post("/v1/traces", content=body, headers=headers | {"content-encoding": "br"})).status_code == 415

    at_the_door(check)


def test_an_exporter_that_comes_while_the_intake_is_full_is_told_when_to_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "MAX_HELD", 10)

    async def check(kit: Kit, http: httpx.AsyncClient) -> None:
        for content_type, body in ((PROTOBUF, export([wire_span(1)]).SerializeToString()), (JSON, json_export([json_span(1)]))):
            with kit.sql.intake.holding() as hold:
                hold(1)
                answer = await post(http, body, content_type)
            assert answer.status_code == 429 and 1 <= int(answer.headers["retry-after"]) <= 3
            assert answer.headers["content-type"] == content_type
            assert answer.json()["code"] == 8 if content_type == JSON else answer.content.startswith(b"\x08\x08\x12")
        assert await all_spans(kit) == []
        assert (await post(http, export([wire_span(1)]).SerializeToString())).status_code == 200, "one body always has room"

    at_the_door(check)


def test_a_store_that_cannot_write_answers_503() -> None:
    async def check(kit: Kit, http: httpx.AsyncClient) -> None:
        await kit.sql.close()
        answer = await post(http, json_export([json_span(1)]), JSON)
        assert answer.status_code == 503 and answer.json()["code"] == 14

    at_the_door(check)


def test_a_body_of_very_many_gzip_files_is_refused_by_their_number() -> None:
    empty = gzip.compress(b"")
    assert inflate.inflate(gzip.compress(b"x") + empty * (inflate.MAX_MEMBERS - 1)) == b"x"
    with pytest.raises(InvalidRequest, match="more than 16 gzip files"):
        inflate.inflate(empty * ((4 << 20) // len(empty)))


def test_an_export_that_repeats_itself_is_no_bomb() -> None:
    async def check(kit: Kit, http: httpx.AsyncClient) -> None:
        body = export([wire_span(n, {"text": "the same " * 120_000}) for n in range(20)]).SerializeToString()
        assert len(body) > 20 << 20 and len(gzip.compress(body)) < len(body) / 200
        assert partial_success(await post(http, body, zipped=True)) == (0, "")

    at_the_door(check)


def test_spans_under_a_name_that_is_not_theirs_are_not_lost_in_silence() -> None:
    group = json.loads(json_export([json_span(1)]))["resourceSpans"][0]
    library = group["scopeSpans"][0]
    renamed = [
        {"resourceSpans": [{"scope_spans": [library], "resource": group["resource"]}]},
        {"resourceSpans": [{"instrumentationLibrarySpans": [library]}]},
        {"resourceSpans": [group | {"scopeSpans": [{"scope": library["scope"], "span": library["spans"]}]}]},
        {"resource_spans": [group]},
    ]
    good = export([wire_span(2)])
    scope_spans = good.resource_spans[0].scope_spans[0].SerializeToString()
    span = good.resource_spans[0].scope_spans[0].spans[0].SerializeToString()
    unknown = [
        bytes_field(1, bytes_field(1000, scope_spans)),  # where instrumentation libraries once were
        bytes_field(1, bytes_field(2, bytes_field(9, span))),
        bytes_field(7, scope_spans),
    ]
    nothing = ExportTraceServiceRequest()
    nothing.resource_spans.add(schema_url="s").scope_spans.add(schema_url="s")

    async def check(kit: Kit, http: httpx.AsyncClient) -> None:
        for request in renamed:
            rejected, message = partial_success(await post(http, json.dumps(request).encode(), JSON))
            assert rejected == 1 and "has no" in message, request
        for body in unknown:
            rejected, message = partial_success(await post(http, body))
            assert rejected == 1 and "none of its members" in message, body
        assert partial_success(await post(http, nothing.SerializeToString())) == (0, "")
        harmless = {"resourceSpans": [{"resource": {}, "schemaUrl": "s"}, {"scopeSpans": [{"scope": {}, "schemaUrl": "s"}], "new": 1}, {}]}
        assert partial_success(await post(http, json.dumps(harmless).encode(), JSON)) == (0, "")

    at_the_door(check)
