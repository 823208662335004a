"""OpenTelemetry's side of the tracer: a span processor that hands each span to its attempt's recorder."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from leyden.errors import MissingExtra
from leyden.runners.tracer import Place, begun, ended, gathering_recorder, owner_of
from leyden.types import Span

try:
    from opentelemetry import context as contexts
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
    from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags
except ModuleNotFoundError as error:
    raise MissingExtra("opentelemetry", "runners") from error

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import Span as OtelSpan


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
            begun(context.span_id, owner)

    def on_end(self, span: ReadableSpan) -> None:
        context = span.get_span_context()
        owner = ended(context.span_id) if context else None
        if owner is not None:
            owner.take_ended(partial(to_record, span))


def to_record(span: ReadableSpan) -> dict[str, Any]:
    """An OpenTelemetry span as a ``Span``'s fields. Its attributes stay as they are."""
    context, parent, status = span.get_span_context(), span.parent, span.status
    assert context is not None
    record: dict[str, Any] = {
        "trace_id": f"{context.trace_id:032x}",
        "span_id": f"{context.span_id:016x}",
        "name": span.name,
        "kind": _KINDS[span.kind.value],
        "start_ns": span.start_time or 0,
        "end_ns": span.end_time or span.start_time or 0,
        "attributes": dict(span.attributes or {}),
    }
    if parent is not None:
        record["parent_id"] = f"{parent.span_id:016x}"
    if not status.is_unset:
        record["status"], record["status_message"] = "ok" if status.is_ok else "error", status.description
    if span.instrumentation_scope is not None:
        record["scope"] = span.instrumentation_scope.name
    if span.events:
        record["events"] = [
            {"name": event.name, "time_ns": event.timestamp, "attributes": dict(event.attributes or {})} for event in span.events
        ]
    if span.links:
        record["links"] = [
            {
                "trace_id": format(link.context.trace_id, "032x"),
                "span_id": format(link.context.span_id, "016x"),
                "attributes": dict(link.attributes or {}),
            }
            for link in span.links
        ]
    return record


def to_span(span: ReadableSpan) -> Span:
    """The same as a record."""
    return Span(**to_record(span))


def current_place() -> Place | None:
    """The span that OpenTelemetry's API holds for the current one."""
    context = trace.get_current_span().get_span_context()
    return Place(f"{context.trace_id:032x}", f"{context.span_id:016x}") if context.is_valid else None


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
    if not isinstance(provider, TracerProvider):
        provider = TracerProvider()
        trace.set_tracer_provider(provider)
    provider.add_span_processor(ToRecorder())
