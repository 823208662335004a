"""OpenTelemetry's side of the tracer: a span processor that hands each span to its attempt's recorder."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any, cast

from leyden.errors import MissingExtra
from leyden.runners import openai_agents
from leyden.runners.tracer import NOBODY, Ended, Place, begun, ended, gathering_recorder, owner_of
from leyden.types import Span

try:
    from opentelemetry import context as contexts
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
    from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags
except ModuleNotFoundError as error:
    raise MissingExtra("opentelemetry", "runners") from error

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import Span as OtelSpan


NOMINAL = 1024  # bytes of a span beside its texts
# The SDK's own 128 are fewer than the attributes of one long conversation: it drops the first messages.
LIMITS = {
    "max_span_attributes": ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", 10_000),
    "max_events": ("OTEL_SPAN_EVENT_COUNT_LIMIT", 10_000),
}

_KINDS = [kind.name.lower() for kind in sorted(SpanKind, key=lambda kind: kind.value)]


class ToRecorder(SpanProcessor):
    def on_start(self, span: OtelSpan, parent_context: Context | None = None) -> None:
        context = span.get_span_context()
        if context is None:
            return
        owner = gathering_recorder()
        if owner is None and span.parent is not None:  # a thread that was given OpenTelemetry's context alone
            owner = owner_of(span.parent.span_id)
        if owner is not None:
            within = openai_agents.place_in(_place(span.parent)) if span.parent is not None and openai_agents.is_joined() else None
            begun(context.span_id, owner, within)

    def on_end(self, span: ReadableSpan) -> None:
        context = span.get_span_context()
        owner, within = ended(context.span_id) if context else NOBODY
        if owner is not None:
            texts = sum([len(value) for value in _attributes(span).values() if isinstance(value, str)])
            owner.take_ended(Ended(partial(to_record, span, within), NOMINAL + texts))


def to_record(span: ReadableSpan, within: Place | None = None) -> dict[str, Any]:
    """An OpenTelemetry span as a ``Span``'s fields. Its attributes stay as they are. ``within``: the span it began in, if that is not the
    one that OpenTelemetry knows of."""
    context, parent, status = span.get_span_context(), span.parent, span.status
    assert context is not None
    attributes = _attributes(span)
    for name, dropped in (("attributes", span.dropped_attributes), ("events", span.dropped_events), ("links", span.dropped_links)):
        if dropped:  # by the provider's limits
            attributes[f"otel.dropped_{name}_count"] = dropped  # as OpenTelemetry's exporters have it
    record: dict[str, Any] = {
        "trace_id": f"{context.trace_id:032x}",
        "span_id": f"{context.span_id:016x}",
        "name": span.name,
        "kind": _KINDS[span.kind.value],
        "start_ns": span.start_time or 0,
        "end_ns": span.end_time or span.start_time or 0,
        "attributes": attributes,
    }
    if parent is not None:
        record["parent_id"] = within.span_id if within is not None else f"{parent.span_id:016x}"
    if not status.is_unset:
        record["status"], record["status_message"] = "ok" if status.is_ok else "error", status.description
    if span.instrumentation_scope is not None:
        record["scope"] = span.instrumentation_scope.name
    if events := span.events:
        record["events"] = [
            {"name": event.name, "time_ns": event.timestamp, "attributes": dict(event.attributes or {})} for event in events
        ]
    if links := span.links:
        record["links"] = [
            {
                "trace_id": format(link.context.trace_id, "032x"),
                "span_id": format(link.context.span_id, "016x"),
                "attributes": dict(link.attributes or {}),
            }
            for link in links
        ]
    return record


def _attributes(span: ReadableSpan) -> dict[str, Any]:
    """A copy: its own, which is many times as fast as one through the mapping it shows."""
    attributes: Any = span.attributes
    return {} if attributes is None else attributes.copy()


def to_span(span: ReadableSpan) -> Span:
    """The same as a record."""
    return Span(**to_record(span))


def current_place() -> Place | None:
    """The span that OpenTelemetry's API holds for the current one."""
    context = trace.get_current_span().get_span_context()
    return _place(context) if context.is_valid else None


def _place(context: SpanContext) -> Place:
    return Place(f"{context.trace_id:032x}", f"{context.span_id:016x}")


@contextmanager
def inside(place: Place) -> Iterator[None]:
    parent = SpanContext(int(place.trace_id, 16), int(place.span_id, 16), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    token = contexts.attach(trace.set_span_in_context(NonRecordingSpan(parent)))
    try:
        yield
    finally:
        contexts.detach(token)


def join() -> None:
    with _joining:  # runners may share a process, each in a thread: joined twice, each span would come twice
        _join()


_joining = threading.Lock()


@cache
def _join() -> None:
    """Join the process's provider, once."""
    provider = trace.get_tracer_provider()
    if not hasattr(provider, "add_span_processor"):  # the API's own, which stands for none; others' wrap the SDK's
        limits = {name: most for name, (variable, most) in LIMITS.items() if variable not in os.environ}
        provider = TracerProvider(span_limits=SpanLimits(**limits))
        trace.set_tracer_provider(provider)
    cast("TracerProvider", provider).add_span_processor(ToRecorder())
