"""Hooks: code of the user's around each attempt. What goes wrong in one is said and counted; it never fails the attempt."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from leyden.runners.failures import describe
from leyden.runners.tracer import AgentTracer, Recorder, Tracer, recording
from leyden.types import Rollout, Span

if TYPE_CHECKING:
    from leyden.runners.agent import Agent
    from leyden.runners.runner import Runner


class Hook:
    """Override what you need. All four are called in the runner's event loop, in this order, around each attempt.

    ``on_trace_end`` and ``on_rollout_end`` come however the attempt went: answered, failed, stopped or cancelled.
    """

    async def on_rollout_start(self, *, agent: Agent, runner: Runner, rollout: Rollout) -> None:
        """The attempt was claimed."""

    async def on_trace_start(self, *, agent: Agent, runner: Runner, tracer: Tracer, rollout: Rollout) -> None:
        """Spans are gathered from here on: the agent is called next."""

    async def on_trace_end(self, *, agent: Agent, runner: Runner, tracer: Tracer, rollout: Rollout) -> None:
        """The agent has ended; what this makes is still traced."""

    async def on_rollout_end(self, *, agent: Agent, runner: Runner, rollout: Rollout, spans: Sequence[Span]) -> None:
        """Everything that was recorded of the attempt; most of it is stored by now."""


class Observers:
    """The hooks and the tracer of one runner. ``failures`` counts what went wrong in them, by hook and method."""

    def __init__(self, hooks: Sequence[Hook] = (), tracer: Tracer | None = None) -> None:
        self.hooks = tuple(hooks)
        self.tracer = tracer or AgentTracer()
        self.failures: Counter[str] = Counter()

    @asynccontextmanager
    async def watch(self, agent: Agent, runner: Runner, rollout: Rollout, recorder: Recorder) -> AsyncIterator[None]:
        """Around one attempt of the agent."""
        about: dict[str, Any] = {"agent": agent, "runner": runner, "rollout": rollout}
        with recording(recorder):
            await self._call("on_rollout_start", about)
            try:
                with self.tracer.trace(rollout):
                    await self._call("on_trace_start", {**about, "tracer": self.tracer})
                    try:
                        yield
                    finally:
                        await self._call("on_trace_end", {**about, "tracer": self.tracer})
            finally:
                await self._call("on_rollout_end", {**about, "spans": tuple(recorder.spans)})

    async def _call(self, method: str, arguments: dict[str, Any]) -> None:
        for hook in self.hooks:
            try:
                await getattr(hook, method)(**arguments)
            except (Exception, SystemExit) as error:
                name = f"{type(hook).__name__}.{method}"
                self.failures[name] += 1
                if self.failures[name] in (1, 10, 100, 1000):
                    print(f"hook {name} failed (time {self.failures[name]}): {describe(error)}", file=sys.stderr, flush=True)
