"""Run an agent on some tasks in this process, without store, proxy or runners."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leyden.runners.agent import Agent
from leyden.runners.failures import classify, describe
from leyden.runners.rewards import add_answer, collecting
from leyden.types import LLM, FailureKind, Mode, PromptTemplate, Resource, Reward, Rollout, RolloutConfig, RolloutState


@dataclass(frozen=True)
class DevResult:
    task: Any
    rewards: tuple[Reward, ...] = ()
    failure: FailureKind | None = None
    error: str | None = None

    @property
    def reward(self) -> float | None:
        return next((reward.value for reward in self.rewards if reward.name == "reward"), None)


def dev(
    agent: Agent,
    tasks: Sequence[Any],
    llm: LLM | None = None,
    prompt_template: PromptTemplate | None = None,
    resources: Mapping[str, Resource] | None = None,
    concurrency: int = 4,
) -> list[DevResult]:
    """Run each task once and return the results in the tasks' order. What the agent raises is in its result, not raised."""
    return asyncio.run(adev(agent, tasks, llm, prompt_template, resources, concurrency))


async def adev(
    agent: Agent,
    tasks: Sequence[Any],
    llm: LLM | None = None,
    prompt_template: PromptTemplate | None = None,
    resources: Mapping[str, Resource] | None = None,
    concurrency: int = 4,
) -> list[DevResult]:
    """``dev`` for a program that has an event loop already."""
    named: dict[str, Resource] = dict(resources or {})
    named |= {"llm": llm} if llm else {}
    named |= {"prompt_template": prompt_template} if prompt_template else {}
    slots = asyncio.Semaphore(concurrency)

    async def one(number: int, task: Any) -> DevResult:
        rollout = Rollout(
            id=f"dev-{number}", input=task, mode=Mode.TEST, priority=0, state=RolloutState.RUNNING, config=RolloutConfig(), created_at=0
        )
        async with slots:
            with collecting() as rewards:
                try:
                    add_answer(rewards, await agent.run(rollout, named))
                except Exception as error:
                    return DevResult(task, failure=classify(error), error=describe(error))
                return DevResult(task, tuple(rewards.values()))

    return list(await asyncio.gather(*(one(number, task) for number, task in enumerate(tasks))))
