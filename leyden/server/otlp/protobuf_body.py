"""Reading an ExportTraceServiceRequest in Protocol Buffers."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan

from leyden.errors import InvalidRequest
from leyden.server.otlp.fields import BYTES, Malformed, Walk
from leyden.server.otlp.sent import MAX_DEPTH, MAX_ITEMS, UNREADABLE, Origin, Refused, SentSpan

MAX_SPAN = 16 << 20  # bytes of one span: decoded, empty items take 30 times as much
RESOURCE_SPANS, SCOPE_SPANS, SPANS = 1, 2, 2  # fields of the request, of ResourceSpans, of ScopeSpans
RESOURCE, SCOPE, SCHEMA_URL = 1, 1, 3
RESOURCE_ATTRIBUTES, SCOPE_ATTRIBUTES = 1, 3

M = TypeVar("M", bound=Message)
Sent = tuple[SentSpan, Origin] | Refused


def read_protobuf(body: bytes) -> Iterator[Sent]:
    """Each span of the export, or why it cannot be read. Raises ``InvalidRequest`` for what is no export at all."""
    reader = _Reader()
    known, unknown = False, set()
    try:
        for number, wire_type, group in reader.fields(memoryview(body)):
            if (number, wire_type) == (RESOURCE_SPANS, BYTES):
                known = True
                yield from reader.resource_spans(group)
            else:
                unknown.add(number)
        if unknown and not known:
            yield _misnamed("the body", unknown)
    except Malformed as error:
        raise InvalidRequest(f"the body is not an ExportTraceServiceRequest in Protocol Buffers: {error}") from error


class _Reader(Walk):
    def resource_spans(self, message: memoryview) -> Iterator[Sent]:
        resource, groups, broken = self._group("a group of spans", message, RESOURCE, SCOPE_SPANS)
        yield from broken
        attributes = self._attributes_of(Resource, RESOURCE_ATTRIBUTES, resource)
        for group in groups:
            scope, spans, broken = self._group("a library", group, SCOPE, SPANS)
            yield from broken
            origin = self._origin(attributes, scope)
            for span in spans:
                try:
                    yield _to_sent(self._parse(WireSpan, span)), origin
                except Refused as refused:
                    yield refused

    def _group(self, what: str, message: memoryview, about: int, members: int) -> tuple[memoryview, list[memoryview], list[Refused]]:
        """What all members have in common (a message that comes in parts is their concatenation), the members, and where it breaks off."""
        common, found, unknown = b"", [], set()
        try:
            for number, wire_type, value in self.fields(message):
                if (number, wire_type) == (about, BYTES):
                    common += value
                elif (number, wire_type) == (members, BYTES):
                    found.append(value)
                elif number not in (about, SCHEMA_URL):
                    unknown.add(number)
        except Malformed as error:
            return memoryview(common), found, [Refused("a group of spans breaks off", str(error))]
        return memoryview(common), found, [_misnamed(what, unknown)] if unknown and not found else []

    def _origin(self, resource: dict[str, Any], scope: memoryview) -> Origin:
        attributes = self._attributes_of(InstrumentationScope, SCOPE_ATTRIBUTES, scope)
        try:
            library = self._parse(InstrumentationScope, scope)
        except Refused:
            return Origin(resource, "", "", attributes)
        return Origin(resource, library.name, library.version, attributes)

    def _attributes_of(self, kind: type[Resource | InstrumentationScope], number: int, message: memoryview) -> dict[str, Any]:
        """Where they cannot be read all at once, those that can be read one by one: no span is lost for what others sent along."""
        try:
            return _attributes(self._parse(kind, message).attributes)
        except Refused as refused:
            readable: dict[str, Any] = {UNREADABLE: str(refused)}
        with suppress(Malformed):
            for field in self.fields(message):
                if (field.number, field.wire_type) == (number, BYTES):
                    with suppress(Refused):
                        readable |= _attributes([self._parse(KeyValue, field.value)])
        return readable

    def _parse(self, kind: type[M], message: memoryview) -> M:
        if len(message) > MAX_SPAN:
            raise Refused(f"it is larger than {MAX_SPAN >> 20} MiB", f"{len(message)} bytes")
        try:
            return kind.FromString(bytes(message))
        except DecodeError:
            pass  # perhaps nothing but its text
        try:
            return kind.FromString(self.with_valid_text(message, kind.DESCRIPTOR))
        except (DecodeError, Malformed) as error:
            raise Refused(f"its {kind.DESCRIPTOR.name} cannot be decoded", str(error)) from error


def _misnamed(what: str, unknown: set[int]) -> Refused:
    """Members in a field that is not theirs (or no longer) would be lost in silence."""
    return Refused(f"{what} has none of its members", f"fields {', '.join(map(str, sorted(unknown)[:10]))}")


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
