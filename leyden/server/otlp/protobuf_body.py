"""Reading an ExportTraceServiceRequest in Protocol Buffers."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan

from leyden.errors import InvalidRequest, TooLarge
from leyden.server.otlp.fields import BYTES, Malformed, fields, with_valid_text
from leyden.server.otlp.sent import MAX_DEPTH, MAX_ITEMS, Origin, Refused, SentSpan

MAX_SPANS = 100_000  # of one library in one process
MAX_SPAN = 16 << 20  # bytes of one span: decoded, empty items take 30 times as much
RESOURCE_SPANS, SCOPE_SPANS, SPANS = 1, 2, 2  # fields of the request, of ResourceSpans, of ScopeSpans
RESOURCE, SCOPE = 1, 1

M = TypeVar("M", bound=Message)
Sent = tuple[SentSpan, Origin] | Refused


def read_protobuf(body: bytes) -> Iterator[Sent]:
    """Each span of the export, or why it cannot be read. Raises ``InvalidRequest`` for what is no export at all."""
    try:
        for number, wire_type, group in fields(memoryview(body)):
            if (number, wire_type) == (RESOURCE_SPANS, BYTES):
                yield from _resource_spans(group)
    except Malformed as error:
        raise InvalidRequest(f"the body is not an ExportTraceServiceRequest in Protocol Buffers: {error}") from error


def _resource_spans(message: memoryview) -> Iterator[Sent]:
    resource, groups, broken = _group(message, RESOURCE, SCOPE_SPANS)
    yield from broken
    for group in groups:
        scope, spans, broken = _group(group, SCOPE, SPANS)
        yield from broken
        try:
            origin = _origin(resource, scope)
        except Refused as refused:
            yield from (refused for _ in spans)
            continue
        for span in spans:
            yield _span(span, origin)


def _group(message: memoryview, about: int, members: int) -> tuple[bytes, list[memoryview], list[Refused]]:
    """What all members have in common (a message that comes in parts is their concatenation), the members, and where it breaks off."""
    common, found = b"", []
    try:
        for number, wire_type, value in fields(message):
            if (number, wire_type) == (about, BYTES):
                common += value
            elif (number, wire_type) == (members, BYTES):
                found.append(value)
                if len(found) > MAX_SPANS:
                    raise TooLarge(f"the body holds more than {MAX_SPANS} spans", "send fewer spans in one request")
    except Malformed as error:
        return common, found, [Refused("a group of spans breaks off", str(error))]
    return common, found, []


def _origin(resource: bytes, scope: bytes) -> Origin:
    library = _parse(InstrumentationScope, memoryview(scope))
    return Origin(
        resource=_attributes(_parse(Resource, memoryview(resource)).attributes),
        scope=library.name,
        scope_version=library.version,
        scope_attributes=_attributes(library.attributes),
    )


def _span(message: memoryview, origin: Origin) -> Sent:
    try:
        return _to_sent(_parse(WireSpan, message)), origin
    except Refused as refused:
        return refused


def _parse(kind: type[M], message: memoryview) -> M:
    if len(message) > MAX_SPAN:
        raise Refused(f"it is larger than {MAX_SPAN >> 20} MiB", f"{len(message)} bytes")
    try:
        return kind.FromString(bytes(message))
    except DecodeError:
        pass  # perhaps nothing but its text
    try:
        return kind.FromString(with_valid_text(message, kind.DESCRIPTOR))
    except (DecodeError, Malformed) as error:
        raise Refused(f"its {kind.DESCRIPTOR.name} cannot be decoded", str(error)) from error


def _to_sent(span: WireSpan) -> SentSpan:
    return SentSpan(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        name=span.name,
        kind=span.kind,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        status=span.status.code,
        status_message=span.status.message,
        trace_state=span.trace_state,
        attributes=_attributes(span.attributes),
        events=[_event(event) for event in islice(span.events, MAX_ITEMS)],
        links=[_link(link) for link in islice(span.links, MAX_ITEMS)],
        dropped={
            "attributes": span.dropped_attributes_count + max(0, len(span.attributes) - MAX_ITEMS),
            "events": span.dropped_events_count + max(0, len(span.events) - MAX_ITEMS),
            "links": span.dropped_links_count + max(0, len(span.links) - MAX_ITEMS),
        },
    )


def _event(event: WireSpan.Event) -> dict[str, Any]:
    told = {"name": event.name, "time_ns": event.time_unix_nano, "attributes": _attributes(event.attributes)}
    return told | _dropped(event.dropped_attributes_count)


def _link(link: WireSpan.Link) -> dict[str, Any]:
    told = {"trace_id": link.trace_id.hex(), "span_id": link.span_id.hex(), "attributes": _attributes(link.attributes)}
    return told | ({"trace_state": link.trace_state} if link.trace_state else {}) | _dropped(link.dropped_attributes_count)


def _dropped(count: int) -> dict[str, int]:
    return {"dropped_attributes_count": count} if count else {}


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in islice(pairs, MAX_ITEMS)}


def _value(value: AnyValue, depth: int = 0) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value" or kind == "kvlist_value":
        if depth == MAX_DEPTH:
            raise Refused(f"a value is nested deeper than {MAX_DEPTH}", kind)
        if kind == "array_value":
            return [_value(item, depth + 1) for item in value.array_value.values]
        return {pair.key: _value(pair.value, depth + 1) for pair in value.kvlist_value.values}
    if kind == "bytes_value":
        return f"base64:{b64encode(value.bytes_value).decode()}"
    return None if kind is None else getattr(value, kind)
