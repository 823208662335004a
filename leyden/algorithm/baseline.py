"""``Baseline``: run the agent over some tasks and say what it earned. Trains nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from leyden.algorithm.algorithm import FastAlgorithm, as_list
from leyden.algorithm.sft.collect import Ended, Patience, run_rollouts
from leyden.types import LLM, Mode, NewRollout

PATIENCE = Patience(max_failed_share=1.0, without_runner=600.0, without_progress=3600.0)  # a failed task is an answer here


@dataclass(frozen=True)
class Report:
    """One ``Ended`` for each task, in the tasks' order."""

    ended: list[Ended]

    @property
    def mean_reward(self) -> float | None:
        """Over the scored ones; None where there is none."""
        scored = [end.reward for end in self.ended if end.reward is not None]
        return sum(scored) / len(scored) if scored else None


class Baseline(FastAlgorithm):
    """``serve``: brings the LLM to use while it runs; None: what the proxy lists or the store's latest resources hold."""

    def __init__(self, n_epochs: int = 1, serve: Callable[[Baseline], AbstractAsyncContextManager[LLM | None]] | None = None) -> None:
        self.n_epochs = n_epochs
        self._serve = serve or _listed

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> Report:
        """Each task ``n_epochs`` times; those of ``val_dataset`` once more, in mode ``val``."""
        context = self.context
        async with self._serve(self) as llm:
            resources = await context.store.add_resources({**context.initial_resources, "main_llm": llm}) if llm else None
            pinned = resources.id if resources else None
            tasks = [(task, Mode.TRAIN) for task in as_list(train_dataset) * self.n_epochs]
            tasks += [(task, Mode.VAL) for task in as_list(val_dataset)]
            new = [NewRollout(input=task, mode=mode, resources_id=pinned, run_id=context.run.id) for task, mode in tasks]
            with context.board.step("run the agent", total=len(new)) as view:
                ended = await run_rollouts(context.store, new, PATIENCE, context.board, view) if new else []
        for (task, _), end in zip(tasks, ended, strict=True):
            context.board.say(f"  {_outcome(end):>12}  {task}"[:160])
        return Report(ended)


@asynccontextmanager
async def _listed(baseline: Baseline) -> AsyncIterator[LLM | None]:
    """The proxy's only model, if it has exactly one."""
    proxy = baseline.context.proxy
    yield proxy.as_resource() if len(proxy.models) == 1 else None


def _outcome(end: Ended) -> str:
    if end.failed:
        return str(end.rollout.failure or end.rollout.state)
    return "no reward" if end.reward is None else f"reward {end.reward:g}"
