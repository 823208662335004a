"""The recipe's runner, made of ours."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic, Self, TypeVar

from leyden.agentlightning.records import EnqueueRolloutRequest, Rollout, RolloutConfig, RolloutMode
from leyden.agentlightning.store import FIRST, LightningStore, new_rollout
from leyden.errors import LeydenError, Unavailable, UsageError
from leyden.runners.agent import Agent
from leyden.runners.hooks import Hook, Observers
from leyden.runners.runner import Ending, Runner, RunnerConfig
from leyden.runners.tracer import Tracer
from leyden.server.client import StoreClient
from leyden.server.interface import MAX_WAIT
from leyden.types import Resource

T = TypeVar("T")


class LitAgentRunner(Generic[T]):
    """Runs an agent for a store: ``with runner.run_context(agent=..., store=...): asyncio.run(runner.iter())``.

    ``concurrency``: rollouts at once; the recipe's runner does one, ours can do many where the agent is async. It neither polls nor
    needs to be told when to beat: the two intervals have no effect.
    """

    def __init__(
        self,
        tracer: Tracer | None = None,
        max_rollouts: int | None = None,
        poll_interval: float | None = None,
        heartbeat_interval: float | None = None,
        *,
        concurrency: int = 1,
    ) -> None:
        self.tracer = tracer or Tracer()
        self.max_rollouts = max_rollouts
        self.concurrency = concurrency
        self.worker_id: int | str | None = None
        self._work: tuple[Agent, LightningStore, Sequence[Hook]] | None = None

    @contextmanager
    def run_context(
        self, *, agent: Agent, store: LightningStore, hooks: Sequence[Hook] | None = None, worker_id: int | str | None = None
    ) -> Iterator[Self]:
        """Agent and store for what is called inside."""
        self._work, self.worker_id = (agent, store, tuple(hooks or ())), worker_id
        try:
            yield self
        finally:
            self._work = None

    async def iter(self, *, event: Any = None) -> None:
        """Run rollouts until cancelled (Ctrl+C), until ``event`` is set, or ``max_rollouts`` are done. What it holds is handed back.

        Raises ``Unavailable`` when an agent cannot be stopped: end this process then.
        """
        runner = self._runner(self.max_rollouts)
        running = asyncio.create_task(runner.run())
        watch = asyncio.create_task(_drain_at(event, runner)) if event is not None else None
        try:
            ending = await asyncio.shield(running)
        except asyncio.CancelledError:
            runner.release()
            await running
            raise
        finally:
            if watch is not None:
                watch.cancel()
        if ending is Ending.STUCK:
            raise Unavailable("an agent could not be stopped", "end this process; leyden runners does so by itself, and starts another")

    async def step(
        self, input: T, *, resources: Mapping[str, Resource] | None = None, mode: RolloutMode | None = None, event: Any = None
    ) -> Rollout:
        """Run one task now, and return its rollout. Raises ``LeydenError`` with the agent's error when it failed."""
        _, store, _ = self._bound
        pinned = (await store.add_resources(resources)).resources_id if resources else None
        request = EnqueueRolloutRequest(input=input, mode=mode, resources_id=pinned, config=RolloutConfig())
        (queued,) = await store.inner.enqueue([new_rollout(request, FIRST)])
        runner = self._runner(max_rollouts=1)
        running = asyncio.create_task(runner.run())
        try:
            while not (ended := await store.inner.wait_rollouts([queued.id], wait=MAX_WAIT)):
                pass
        finally:
            runner.release()
            await running
        rollout = Rollout.of(ended[0])
        if rollout.status != "succeeded":
            raise LeydenError(f"rollout {rollout.rollout_id} {rollout.status}: {rollout.error}", "look at it: store.query_spans(...)")
        return rollout

    @property
    def _bound(self) -> tuple[Agent, LightningStore, Sequence[Hook]]:
        if self._work is None:
            raise UsageError("the runner has no agent and no store", "with runner.run_context(agent=agent, store=store): ...")
        return self._work

    def _runner(self, max_rollouts: int | None) -> Runner:
        agent, store, hooks = self._bound
        name = "runner" if self.worker_id is None else f"runner-{self.worker_id}"
        config = RunnerConfig(name=name, concurrency=self.concurrency, max_rollouts=max_rollouts)
        return Runner(agent, lambda: StoreClient(store.url), config, observers=Observers(hooks, self.tracer))


async def _drain_at(event: Any, runner: Runner) -> None:
    """``event`` may be of threading, multiprocessing or the recipe's own: all it has is ``is_set``."""
    while not event.is_set():
        await asyncio.sleep(0.2)
    runner.drain()
