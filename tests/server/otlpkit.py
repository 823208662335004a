"""What the tests of the OTLP route share: the app in this process without a port, and bodies in both encodings."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any

import httpx
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan
from storekit import Kit, run, task

from leyden.server.app import create_app
from leyden.server.queries import SpanQuery
from leyden.types import LeaseRef, Span

PROTOBUF = "application/x-protobuf"
JSON = "application/json"


@asynccontextmanager
async def door(kit: Kit) -> AsyncIterator[httpx.AsyncClient]:
    """The store's app in this process."""
    transport = httpx.ASGITransport(create_app(kit.sql), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as http:
        yield http


def at_the_door(check: Callable[[Kit, httpx.AsyncClient], Coroutine[Any, Any, None]], kind: str = "sqlite") -> None:
    async def go(kit: Kit) -> None:
        async with door(kit) as http:
            await check(kit, http)

    run(go, kind)


async def post(
    http: httpx.AsyncClient, body: bytes, content_type: str = PROTOBUF, *, zipped: bool = False, **headers: str
) -> httpx.Response:
    headers = {"content-type": content_type, **{name.replace("_", "-"): value for name, value in headers.items()}}
    if zipped:
        body, headers["content-encoding"] = gzip.compress(body), "gzip"
    return await http.post("/v1/traces", content=body, headers=headers)


def partial_success(answer: httpx.Response) -> tuple[int, str]:
    """How many spans are rejected, and why."""
    assert answer.status_code == 200, answer.content
    if answer.headers["content-type"] == JSON:
        said = answer.json().get("partialSuccess", {})
        return int(said.get("rejectedSpans", 0)), said.get("errorMessage", "")
    partial = ExportTraceServiceResponse.FromString(answer.content).partial_success
    return partial.rejected_spans, partial.error_message


async def all_spans(kit: Kit) -> list[Span]:
    found: list[Span] = []
    while page := await kit.sql.query_spans(SpanQuery(limit=1000, after=f"{found[-1].trace_id}-{found[-1].span_id}" if found else None)):
        found += page
    return found


async def claim(kit: Kit) -> LeaseRef:
    await kit.sql.enqueue([task()])
    (lease,) = await kit.sql.claim("w")
    return lease.ref


# -- Protocol Buffers --------------------------------------------------------------------------------------------------


def wire_span(n: int, attributes: dict[str, Any] | None = None, **fields: Any) -> WireSpan:
    """Number ``n`` decides its ids: 50 spans a trace."""
    span = WireSpan(
        trace_id=(n // 50 + 1).to_bytes(16),
        span_id=(n + 1).to_bytes(8),
        name=f"span {n}",
        kind=WireSpan.SPAN_KIND_CLIENT,
        start_time_unix_nano=1_000_000 + n,
        end_time_unix_nano=2_000_000 + n,
        attributes=pairs(attributes or {}),
    )
    for name, value in fields.items():
        if isinstance(value, str | bytes | int):
            setattr(span, name, value)
        elif isinstance(value, list):
            getattr(span, name).extend(value)
        else:
            getattr(span, name).CopyFrom(value)
    return span


def pairs(attributes: dict[str, Any]) -> list[KeyValue]:
    return [KeyValue(key=key, value=any_value(value)) for key, value in attributes.items()]


def any_value(value: Any) -> AnyValue:
    match value:
        case None:
            return AnyValue()
        case bool():
            return AnyValue(bool_value=value)
        case int():
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case str():
            return AnyValue(string_value=value)
        case bytes():
            return AnyValue(bytes_value=value)
        case list():
            return AnyValue(array_value=ArrayValue(values=[any_value(item) for item in value]))
    return AnyValue(kvlist_value=KeyValueList(values=pairs(value)))


def export(spans: Iterable[WireSpan], resource: dict[str, Any] | None = None, scope: str = "test") -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add()
    group.resource.attributes.extend(pairs(resource or {}))
    library = group.scope_spans.add()
    library.scope.name = scope
    library.spans.extend(spans)
    return request


# -- JSON --------------------------------------------------------------------------------------------------------------


def json_span(n: int, attributes: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """The same span as ``wire_span(n)``, with AnyValues as attributes."""
    span = {
        "traceId": f"{n // 50 + 1:032x}",
        "spanId": f"{n + 1:016x}",
        "name": f"span {n}",
        "kind": 3,
        "startTimeUnixNano": str(1_000_000 + n),
        "endTimeUnixNano": str(2_000_000 + n),
        "attributes": [{"key": key, "value": value} for key, value in (attributes or {}).items()],
    }
    return span | fields


def json_export(spans: Iterable[Any], resource: dict[str, Any] | None = None) -> bytes:
    attributes = [{"key": key, "value": {"stringValue": value}} for key, value in (resource or {}).items()]
    group = {"resource": {"attributes": attributes}, "scopeSpans": [{"scope": {"name": "test"}, "spans": list(spans)}]}
    return json.dumps({"resourceSpans": [group]}).encode()
