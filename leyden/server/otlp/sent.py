"""One span as it was sent, whichever its encoding, and what is made of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from leyden.record import checked_before
from leyden.server.codec import clean_text
from leyden.types import ID_PATTERN, Span

MAX_ITEMS = 10_000  # attributes, events or links of one span; more are counted as dropped
MAX_DEPTH = 48  # of lists and maps in one value
NO_ID = ""
UNREADABLE = "leyden.unreadable"  # attribute of a process or a library: why some others of it are missing
_KINDS = ("internal", "internal", "server", "client", "producer", "consumer")  # what is unspecified counts as internal
_STATUSES = ("unset", "ok", "error")
_ID = re.compile(ID_PATTERN)
_HEX = re.compile("[0-9a-f]*")
_OURS = {name: field.default for name, field in Span.model_fields.items() if not field.is_required() and field.default_factory is None}
_LAST_TIME = 2**63 - 1  # nanoseconds: in the year 2262


class Refused(Exception):
    """This span is not stored. ``reason`` is one of a few; ``detail`` says more about this one."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


@dataclass
class SentSpan:
    """Ids are lower-case hex. What was dropped was dropped by the sender, or here beyond ``MAX_ITEMS``."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: int
    start_ns: int
    end_ns: int
    status: int
    status_message: str
    trace_state: str
    attributes: dict[str, Any]
    events: list[dict[str, Any]]
    links: list[dict[str, Any]]
    dropped: dict[str, int] = field(default_factory=dict)  # of attributes, events, links


@dataclass(frozen=True)
class Origin:
    """Where the spans of one group come from: the process, and the instrumentation library in it."""

    resource: dict[str, Any]
    scope: str
    scope_version: str
    scope_attributes: dict[str, Any]


Attempt = tuple[str, int]
"""A rollout's id and the number of its attempt."""


def to_span(sent: SentSpan, origin: Origin, keyed: Attempt | None) -> Span:
    """The record, under the attempt that it names itself, that its process names, or whose key came with the request (``keyed``).

    Raises ``Refused``.
    """
    _check_id("trace id", sent.trace_id, 32)
    _check_id("span id", sent.span_id, 16)
    if sent.parent_id.strip("0") == NO_ID:
        sent.parent_id = NO_ID
    else:
        _check_id("parent span id", sent.parent_id, 16)
    for time in (sent.start_ns, sent.end_ns):
        if not 0 <= time <= _LAST_TIME:
            raise Refused("a time is out of range", f"{time} ns")
    rollout_id, attempt = _attempt_named(sent.attributes, origin.resource) or keyed or (None, None)
    # All of it is checked, and text that is no Unicode is cleaned further on.
    return checked_before(Span, _OURS | {
        "trace_id": sent.trace_id,
        "span_id": sent.span_id,
        "parent_id": sent.parent_id or None,
        "rollout_id": rollout_id,
        "attempt": attempt,
        "name": sent.name,
        "kind": _KINDS[sent.kind] if 0 <= sent.kind < len(_KINDS) else "internal",
        "start_ns": sent.start_ns,
        "end_ns": sent.end_ns,
        "status": _STATUSES[sent.status] if 0 <= sent.status < len(_STATUSES) else "unset",
        "status_message": sent.status_message or None,
        "attributes": {**_told_otherwise(sent, origin), **sent.attributes},
        "events": sent.events,
        "links": sent.links,
        "resource": origin.resource,
        "scope": origin.scope or None,
    })  # fmt: skip


def _told_otherwise(sent: SentSpan, origin: Origin) -> dict[str, Any]:
    """What a record has no field for, under the names that OpenTelemetry gives it for such formats."""
    told: dict[str, Any] = {f"otel.dropped_{what}_count": n for what, n in sent.dropped.items() if n}
    if sent.trace_state:
        told["w3c.tracestate"] = sent.trace_state
    if origin.scope_version:
        told["otel.scope.version"] = origin.scope_version
    if origin.scope_attributes:
        told["otel.scope.attributes"] = origin.scope_attributes
    return told


def _check_id(what: str, value: str, digits: int) -> None:
    if len(value) != digits or _HEX.fullmatch(value) is None:
        raise Refused(f"its {what} is not {digits // 2} bytes", clean_text(value)[:64] or "none")
    if value.strip("0") == "":
        raise Refused(f"its {what} is all zeros", value)


def _attempt_named(attributes: dict[str, Any], resource: dict[str, Any]) -> Attempt | None:
    for source in (attributes, resource):
        rollout_id, attempt = source.get("leyden.rollout_id"), source.get("leyden.attempt")
        if rollout_id is None and attempt is None:
            continue
        if isinstance(attempt, str) and len(attempt) < 10 and attempt.isascii() and attempt.isdigit():
            attempt = int(attempt)  # an environment variable (OTEL_RESOURCE_ATTRIBUTES) holds nothing but text
        valid = isinstance(rollout_id, str) and _ID.fullmatch(rollout_id) and type(attempt) is int and 0 < attempt < 2**31
        if not valid:
            raise Refused("leyden.rollout_id and leyden.attempt do not name an attempt", clean_text(f"{rollout_id!r}, {attempt!r}")[:150])
        return rollout_id, attempt  # type: ignore[return-value]
    return None
