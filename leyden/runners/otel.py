"""OpenTelemetry's side of ``OtelTracer``: a span processor that hands each span to its attempt's recorder."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from leyden.errors import MissingExtra
from leyden.runners.tracer import Recorder, current_recorder
from leyden.types import Rollout, Span

try:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
except ModuleNotFoundError as error:
    raise MissingExtra("opentelemetry", "runners") from error

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import Span as OtelSpan


class ToRecorder(SpanProcessor):
    """Whose a span is, is known where it starts; where it ends may be another thread."""

    def __init__(self) -> None:
        self._owners: dict[int, Recorder] = {}

    def on_start(self, span: OtelSpan, parent_context: Context | None = None) -> None:
        context = span.get_span_context()
        recorder = current_recorder()
        if recorder is not None and context is not None:
            self._owners[context.span_id] = recorder

    def on_end(self, span: ReadableSpan) -> None:
        context = span.get_span_context()
        recorder = self._owners.pop(context.span_id, None) if context else None
        if recorder is not None:
            recorder.add(to_span(span))


def to_span(span: ReadableSpan) -> Span:
    """An OpenTelemetry span as a record. Its attributes stay as they are."""
    context = span.get_span_context()
    assert context is not None
    return Span(
        trace_id=format(context.trace_id, "032x"),
        span_id=format(context.span_id, "016x"),
        parent_id=format(span.parent.span_id, "016x") if span.parent else None,
        name=span.name,
        kind=span.kind.name.lower(),
        start_ns=span.start_time or 0,
        end_ns=span.end_time or span.start_time or 0,
        status=span.status.status_code.name.lower(),
        attributes=_plain(span.attributes),
        events=[{"name": event.name, "time_ns": event.timestamp, "attributes": _plain(event.attributes)} for event in span.events],
    )


@contextmanager
def rollout_span(rollout: Rollout) -> Iterator[None]:
    """The root span of an attempt: a trace of its own, in which everything the agent does is found."""
    attributes: dict[str, str | int] = {"leyden.rollout_id": rollout.id, "leyden.attempt": rollout.attempt}
    with _tracer().start_as_current_span("rollout", context=Context(), attributes=attributes):
        yield


def _tracer() -> trace.Tracer:
    with _joining:  # runners may share a process, each in a thread: joined twice, each span would come twice
        return _join()


_joining = threading.Lock()


@cache
def _join() -> trace.Tracer:
    """Join the process's provider, once."""
    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        provider = TracerProvider()
        trace.set_tracer_provider(provider)
    provider.add_span_processor(ToRecorder())
    return trace.get_tracer("leyden")


def _plain(attributes: Any) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in (attributes or {}).items()}
