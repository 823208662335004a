"""What an attempt's spans are gathered in, and who puts them there.

``recording`` opens a recorder for one attempt; whatever runs inside it (its tasks and threads too) adds to that one alone. The runner
stores the spans under the attempt's lease before it reports the attempt's end.
"""

from __future__ import annotations

import contextvars
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from leyden.types import Rollout, Span

MAX_SPANS = 10_000  # of one attempt; an agent that makes more is not worth the memory

_recorder: contextvars.ContextVar[Recorder | None] = contextvars.ContextVar("leyden_recorder", default=None)


class Recorder:
    """The spans of one attempt, in the order they ended. ``dropped``: how many came after ``MAX_SPANS``."""

    def __init__(self) -> None:
        self.trace_id = secrets.token_hex(16)
        self.spans: list[Span] = []
        self.dropped = 0

    def add(self, span: Span) -> None:
        if len(self.spans) < MAX_SPANS:
            self.spans.append(span)
        else:
            self.dropped += 1

    def note(self, name: str, attributes: Mapping[str, Any]) -> Span:
        """Add a span of no length: something that was said, not something that lasted."""
        now = time.time_ns()
        span = Span(trace_id=self.trace_id, span_id=secrets.token_hex(8), name=name, start_ns=now, end_ns=now, attributes=dict(attributes))
        self.add(span)
        return span


def current_recorder() -> Recorder | None:
    """The running attempt's; None outside one."""
    return _recorder.get()


@contextmanager
def recording(recorder: Recorder) -> Iterator[Recorder]:
    token = _recorder.set(recorder)
    try:
        yield recorder
    finally:
        _recorder.reset(token)


class Tracer:
    """Gathers spans that the agent's libraries make. This one gathers none: what is said through a ``Recorder`` is kept all the same."""

    def trace(self, rollout: Rollout) -> AbstractContextManager[None]:
        """Around one attempt; the recorder is open. Concurrent ones do not mix."""
        return nullcontext()


class OtelTracer(Tracer):
    """Keeps every span made with the OpenTelemetry API inside an attempt, beside whatever else listens to them.

    It joins the process's tracer provider, and brings one where there is none. A span that leaves its context (a thread without it, a
    trace begun anew in a callback) belongs to no attempt, and is not kept. Raises ``MissingExtra`` without ``opentelemetry-sdk``.
    """

    def __init__(self) -> None:
        import leyden.runners.otel  # noqa: F401  here, where what is missing can still be told, and not in the middle of each attempt

    def trace(self, rollout: Rollout) -> AbstractContextManager[None]:
        from leyden.runners.otel import rollout_span

        return rollout_span(rollout)
