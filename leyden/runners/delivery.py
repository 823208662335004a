"""An attempt's spans on their way to the store. One that it does not take costs neither the others nor the attempt."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from leyden.errors import InvalidRequest, TooLarge
from leyden.runners.tracer import Recorder
from leyden.server.interface import Store
from leyden.types import LeaseRef, Span

LEFT_OUT = "leyden.spans_left_out"  # a span that says how many are missing, and why the first one is


async def store_spans(store: Store, ref: LeaseRef, recorder: Recorder) -> None:
    """Store what was recorded; repeating it adds nothing. Raises ``LeaseLost``, and what says that the store is away or behind."""
    if not recorder.spans:
        return
    reasons = await _add(store, ref, tuple(recorder.spans))
    if recorder.dropped:
        reasons += [f"an attempt keeps {len(recorder.spans)} spans"] * recorder.dropped
    if reasons:
        print(f"rollout {ref.rollout_id}, attempt {ref.attempt}: {len(reasons)} spans left out: {reasons[0]}", file=sys.stderr, flush=True)
        at = recorder.spans[-1].end_ns
        attributes = {"leyden.count": len(reasons), "leyden.reason": reasons[0]}
        trace_id, span_id = recorder.trace_id, recorder.trace_id[:16]  # the same when this is repeated
        note = Span(trace_id=trace_id, span_id=span_id, name=LEFT_OUT, start_ns=at, end_ns=at, status="error", attributes=attributes)
        await store.add_spans(ref, [note])


async def _add(store: Store, ref: LeaseRef, spans: Sequence[Span]) -> list[str]:
    """Why spans were refused, one reason each. What is refused together is tried in halves."""
    try:
        await store.add_spans(ref, spans)
    except (InvalidRequest, TooLarge) as error:
        if len(spans) == 1:
            return [f"{spans[0].name}: {error.message}"[:500]]
        half = len(spans) // 2
        return await _add(store, ref, spans[:half]) + await _add(store, ref, spans[half:])
    return []
