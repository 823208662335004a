"""Our agents, as runner processes load them: ``store_agents.py:five_spans``."""

from __future__ import annotations

import time

from opentelemetry import trace

import leyden

SPANS = 5


@leyden.rollout
async def five_spans(task: int) -> float:
    tracer = trace.get_tracer("benchmark")
    for n in range(SPANS):
        with tracer.start_as_current_span("step", attributes={"own": task, "n": n, "text": "word " * 40}):
            pass
    return 1.0


@leyden.rollout
async def first_line(task: float) -> float:
    return time.monotonic() - task
