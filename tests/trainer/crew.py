"""Agents, hooks and algorithms for the trainer's tests. None of them needs a model."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import leyden
from leyden.algorithm.algorithm import Algorithm, as_list
from leyden.types import NewRollout, Rollout


@leyden.rollout
async def double(task: dict[str, Any]) -> float:
    return 2.0 * task["n"]


@leyden.rollout
async def pid_of(task: dict[str, Any]) -> float:
    return float(os.getpid())


class WritingHook(leyden.Hook):
    """Leaves a file, so that another process can see that it was called."""

    async def on_rollout_end(self, *, agent: Any, runner: Any, rollout: Rollout, spans: Any) -> None:
        open(f"{rollout.input['directory']}/{rollout.id}.{os.getpid()}", "x").close()  # noqa: ASYNC230


class Rewards(Algorithm):
    """Queues the tasks and returns what each earned."""

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> list[float]:
        store = self.get_store()
        queued = await store.enqueue([NewRollout(input=task) for task in as_list(train_dataset)])
        ids = [rollout.id for rollout in queued]
        while len(await store.wait_rollouts(ids)) < len(ids):
            pass
        rewards = {reward.rollout_id: reward.value for reward in await store.list_rewards(ids)}
        return [rewards[id] for id in ids]


class Waits(Rewards):
    """Goes on for ever, once its runners have shown that they live."""

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> list[float]:
        await super().run(train_dataset)
        print("waiting", flush=True)
        await asyncio.Event().wait()
        return []


class Fails(Rewards):
    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> list[float]:
        await super().run(train_dataset)
        raise leyden.Unavailable("the algorithm has had enough")


class Resumable(Rewards):
    """Fails the first time in its run directory; then it goes on."""

    resumable = True

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> list[float]:
        mark = self.context.run.path / "begun"
        if not mark.exists():
            mark.touch()
            raise leyden.Unavailable("the light went out")
        rewards = await super().run(train_dataset)
        self.context.run.write_summary({"rewards": rewards})
        return rewards
