"""Reading an ExportTraceServiceRequest in JSON. Not by protobuf's own ``json_format``: that reads 5,000 spans a second, this 100,000."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

import orjson
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status as WireStatus

from leyden.errors import InvalidRequest, TooLarge
from leyden.server.otlp.protobuf_body import Sent
from leyden.server.otlp.sent import MAX_DEPTH, MAX_ITEMS, UNREADABLE, Origin, Refused, SentSpan

MAX_CONTAINERS = 2_000_000  # lists and objects in one body: parsed, each takes up to 200 bytes
MAX_COMMAS = 8_000_000  # other values: each takes 60 bytes
_KINDS = dict(WireSpan.SpanKind.items())
_STATUS_CODES = dict(WireStatus.StatusCode.items())
_INTEGER = re.compile(r"-?[0-9]{1,1000}")


def read_json(body: bytes) -> Iterator[Sent]:
    """Each span of the export, or why it cannot be read. Raises ``InvalidRequest`` for what is no export at all."""
    if body.count(b"{") + body.count(b"[") > MAX_CONTAINERS or body.count(b",") > MAX_COMMAS:
        raise TooLarge("the body holds too many values", "send fewer spans in one request")
    request = _parse(body)
    try:
        yield from _misnamed(request, "resourceSpans", "the body")
        groups = _items(request, "resourceSpans")
    except Refused as refused:
        raise InvalidRequest(f"the body is not an ExportTraceServiceRequest in JSON: {refused.detail}") from refused
    for group in groups:
        try:
            yield from _resource_spans(_checked(group, "resourceSpans"))
        except Refused as refused:
            yield refused


def _resource_spans(group: dict[str, Any]) -> Iterator[Sent]:
    """What is wrong with one library's spans costs those."""
    resource = _readable(group.get("resource"))
    yield from _misnamed(group, "scopeSpans", "a group of spans", "resource", "schemaUrl")
    for library in _items(group, "scopeSpans"):
        try:
            origin = _origin(resource, _checked(library, "scopeSpans").get("scope"))
            yield from _misnamed(library, "spans", "a library", "scope", "schemaUrl")
            for span in _items(library, "spans"):
                yield _span(span, origin)
        except Refused as refused:
            yield refused


def _misnamed(owner: dict[str, Any], members: str, what: str, *others: str) -> Iterator[Refused]:
    """Members under a name that is not theirs would be lost in silence."""
    if members not in owner and (unknown := [name for name in owner if name not in others]):
        yield Refused(f"{what} has no {members}", ", ".join(unknown)[:150])


def _origin(resource: dict[str, Any], scope: Any) -> Origin:
    library = scope if isinstance(scope, dict) else {}
    name, version = (value if isinstance(value, str) else "" for value in (library.get("name"), library.get("version")))
    return Origin(resource, name, version, _readable(scope))


def _readable(owner: Any) -> dict[str, Any]:
    """The attributes of a process or a library. Where they cannot be read all at once, those that can be read one by one: no span is lost
    for what others sent along."""
    try:
        return _attributes(_object({"": owner}, ""))
    except Refused as refused:
        readable: dict[str, Any] = {UNREADABLE: str(refused)}
    pairs = owner.get("attributes") if isinstance(owner, dict) else None
    for pair in pairs[:MAX_ITEMS] if isinstance(pairs, list) else ():
        with suppress(Refused):
            readable |= _attributes({"attributes": [pair]})
    return readable


def _parse(body: bytes) -> dict[str, Any]:
    try:
        request = orjson.loads(body)
    except orjson.JSONDecodeError:
        # Lone surrogates, NaN, bytes that are not UTF-8: read the slow way, so that the spans beside them are not lost.
        try:
            request = json.loads(body.decode("utf-8-sig", errors="replace"), parse_int=_parse_int)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"the body is not JSON: {error}") from None
    if not isinstance(request, dict):
        raise InvalidRequest("the body is not a JSON object")
    return request


def _parse_int(digits: str) -> int | str:
    return int(digits) if len(digits) <= 1000 else digits


def _span(span: Any, origin: Origin) -> Sent:
    try:
        return _to_sent(_checked(span, "spans")), origin
    except Refused as refused:
        return refused


def _to_sent(span: dict[str, Any]) -> SentSpan:
    status = _object(span, "status")
    events, links = _objects(span, "events"), _objects(span, "links")
    return SentSpan(
        trace_id=_text(span, "traceId").lower(),
        span_id=_text(span, "spanId").lower(),
        parent_id=_text(span, "parentSpanId").lower(),
        name=_text(span, "name"),
        kind=_enum(span, "kind", _KINDS),
        start_ns=_number(span, "startTimeUnixNano"),
        end_ns=_number(span, "endTimeUnixNano"),
        status=_enum(status, "code", _STATUS_CODES),
        status_message=_text(status, "message"),
        trace_state=_text(span, "traceState"),
        attributes=_attributes(span),
        events=[_event(event) for event in events[:MAX_ITEMS]],
        links=[_link(link) for link in links[:MAX_ITEMS]],
        dropped={
            "attributes": _number(span, "droppedAttributesCount") + max(0, len(_items(span, "attributes")) - MAX_ITEMS),
            "events": _number(span, "droppedEventsCount") + max(0, len(events) - MAX_ITEMS),
            "links": _number(span, "droppedLinksCount") + max(0, len(links) - MAX_ITEMS),
        },
    )


def _event(event: dict[str, Any]) -> dict[str, Any]:
    told = {"name": _text(event, "name"), "time_ns": _number(event, "timeUnixNano"), "attributes": _attributes(event)}
    return told | _dropped(event)


def _link(link: dict[str, Any]) -> dict[str, Any]:
    told = {"trace_id": _text(link, "traceId").lower(), "span_id": _text(link, "spanId").lower(), "attributes": _attributes(link)}
    state = _text(link, "traceState")
    return told | ({"trace_state": state} if state else {}) | _dropped(link)


def _dropped(item: dict[str, Any]) -> dict[str, int]:
    count = _number(item, "droppedAttributesCount")
    return {"dropped_attributes_count": count} if count else {}


def _attributes(owner: dict[str, Any]) -> dict[str, Any]:
    return {_text(pair, "key"): _value(pair.get("value")) for pair in islice(_objects(owner, "attributes"), MAX_ITEMS)}


def _value(value: Any, depth: int = 0) -> Any:
    """An AnyValue. One that is not what its name says stays as it is, as far as it is plain."""
    if not isinstance(value, dict):
        return None if isinstance(value, list) else value
    for kind, given in value.items():
        match kind:
            case "arrayValue" | "kvlistValue":
                if depth == MAX_DEPTH:
                    raise Refused(f"a value is nested deeper than {MAX_DEPTH}", kind)
                if not isinstance(given, dict):
                    raise _invalid(f"{kind} is not an object")
                if kind == "kvlistValue":
                    return {_text(pair, "key"): _value(pair.get("value"), depth + 1) for pair in _objects(given, "values")}
                return [_value(item, depth + 1) for item in _items(given, "values")]
            case "intValue":
                return _integer(given)
            case "doubleValue":
                return _double(given)
            case "bytesValue":
                return f"base64:{given}" if isinstance(given, str) else _plain(given)
            case "stringValue" | "boolValue":
                return _plain(given)
    return None


def _integer(given: Any) -> Any:
    """64-bit numbers come as text or as numbers; what is longer stays recognisable."""
    if isinstance(given, str) and _INTEGER.fullmatch(given):
        return int(given)
    if isinstance(given, float) and given.is_integer():
        return int(given)
    return _plain(given)


def _double(given: Any) -> Any:
    if isinstance(given, int) and not isinstance(given, bool) and abs(given) <= 2**53:
        return float(given)
    if isinstance(given, str) and len(given) <= 400:
        try:
            return float(given)  # "NaN" and "Infinity" too
        except ValueError:
            return given
    return _plain(given)


def _plain(given: Any) -> Any:
    return None if isinstance(given, dict | list) else given


# -- fields; null is the same as none --------------------------------------------------------------------------------


def _invalid(detail: str) -> Refused:
    return Refused("it is not as the protocol has it", detail)


def _checked(item: Any, name: str) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise _invalid(f"{name} holds something else than objects")
    return item


def _items(owner: dict[str, Any], name: str) -> list[Any]:
    value = owner.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise _invalid(f"{name} is not a list")
    return value


def _objects(owner: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [_checked(item, name) for item in _items(owner, name)]


def _object(owner: dict[str, Any], name: str) -> dict[str, Any]:
    value = owner.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _invalid(f"{name} is not an object")
    return value


def _text(owner: dict[str, Any], name: str) -> str:
    value = owner.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _invalid(f"{name} is not text")
    return value


def _enum(owner: dict[str, Any], name: str, numbers: dict[str, int]) -> int:
    """By number, as OTLP has it, or by name, as protobuf's own JSON has it."""
    value = owner.get(name)
    return numbers[value] if isinstance(value, str) and value in numbers else _number(owner, name)


def _number(owner: dict[str, Any], name: str) -> int:
    value = owner.get(name)
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool):
        raise _invalid(f"{name} is not a number")
    return value
