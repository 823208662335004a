"""A run whose attempts are made in this process, on a store of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from leyden.environments.attempting import Attempts, record_span
from leyden.environments.driving import attempt_of, driving, enqueue, in_order_of_ending, lent, named_generations
from leyden.environments.evaldir import EvalDir
from leyden.environments.plan import Key, Plan
from leyden.environments.stored import RECORD
from leyden.environments.tally import Tally
from leyden.environments.trial import Trial
from leyden.environments.worker import Ended, Worker
from leyden.heap import heap_at_rest
from leyden.runners.attempt import resources_of
from leyden.server.interface import AttemptEnd, LocalStore, open_store
from leyden.server.queries import SpanQuery
from leyden.types import LLM, Lease, Rollout, RunState, Span

PAGE = 1000  # spans


async def run_here(run: EvalDir, asked: Mapping[str, Any], plan: Plan, tally: Tally) -> None:
    """Try what is not in the store yet. Cancelled, it commits what has ended; the next call goes on from there."""
    store = await open_store(run.store)
    try:
        for worker in await store.list_workers():
            if worker.stopped_at is None:  # of a driver that was killed: the store is ours, so it is dead
                await store.stop_worker(worker.id)
        async with driving(store, run.id, asked) as driven, lent(store, plan.llm) as resources_id:
            rollouts = await enqueue(store, plan, run.id, resources_id, remote=False)
            with heap_at_rest():
                await _Here(store, plan, tally, rollouts).run()
            await store.finish_run(run.id, driven.epoch, RunState.SUCCEEDED, {"n_attempts": tally.n_ended, "n_scored": tally.n_scored})
    finally:
        await store.close()


class _Here:
    def __init__(self, store: LocalStore, plan: Plan, tally: Tally, rollouts: dict[Key, Rollout]) -> None:
        self._store = store
        self._plan = plan
        self._tally = tally
        self._rollouts = rollouts
        self._attempts = Attempts(plan.env)
        self._done = asyncio.Event()
        self._worker = Worker(store, self._attempt, self._committed, plan.concurrency)

    async def run(self) -> None:
        await self._take_over()
        if self._tally.open:
            await self._worker.run(self._done)

    async def _take_over(self) -> None:
        """What ended under an earlier driver."""
        ended = list(in_order_of_ending(self._rollouts))
        if not ended:
            return
        spans = await _records(self._store)
        given_up: set[Key] = set()
        for key, rollout in ended:
            attempt = attempt_of(rollout, key[1], spans.get((rollout.id, rollout.attempt)), self._plan.output_type)
            if attempt is None:
                self._tally.give_up([key])
            else:
                given_up |= self._tally.add(key[0], attempt)
        await self._give_up(given_up & self._tally.open)

    async def _attempt(self, lease: Lease) -> Ended:
        llm = next((resource for resource in resources_of(lease).values() if isinstance(resource, LLM)), None)
        trial = await self._attempts.run(lease.rollout, llm)
        if llm is not None:
            trial = Trial(await named_generations(self._store, trial.result), trial.failure)
        trial, record = self._attempts.record_of(trial)
        rewards = self._attempts.rewards_of(trial.result)
        end = AttemptEnd(
            lease.ref, rewards, (record_span(lease.rollout, record),), trial.failure, trial.result.error if trial.failure else None
        )
        return Ended(lease, trial.result, end)

    async def _committed(self, batch: Sequence[Ended]) -> None:
        given_up: set[Key] = set()
        for ended in batch:
            task, _ = self._attempts.task_of(ended.lease.rollout)
            given_up |= self._tally.add(task.id or "", ended.result)
        await self._give_up(given_up & self._tally.open)
        if not self._tally.open:
            self._done.set()

    async def _give_up(self, keys: set[Key]) -> None:
        """What runs goes on to its end, and counts."""
        by_id = {self._rollouts[key].id: key for key in keys}
        dropped = self._worker.drop(by_id)
        if dropped:
            await self._store.cancel(sorted(dropped))
            self._tally.give_up(by_id[rollout_id] for rollout_id in dropped)


async def _records(store: LocalStore) -> dict[tuple[str | None, int | None], Span]:
    """By rollout and attempt. All spans of this name in a store of our own are of this run."""
    found: dict[tuple[str | None, int | None], Span] = {}
    after: str | None = None
    while page := await store.query_spans(SpanQuery(name=RECORD, limit=PAGE, after=after)):
        found |= {(span.rollout_id, span.attempt): span for span in page}
        after = f"{page[-1].trace_id}-{page[-1].span_id}"
    return found
