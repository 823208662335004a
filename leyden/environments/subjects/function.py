"""A ``@leyden.rollout`` function or class as the agent of an environment."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import numbers
import typing
from collections.abc import Mapping
from typing import Any

from leyden.environments.code_digest import digest_of
from leyden.environments.fingerprint import FingerprintError
from leyden.environments.output import RunOutput
from leyden.environments.subject import AttemptContext, Components
from leyden.environments.subjects.endpoint import llm_components
from leyden.environments.task import Task
from leyden.errors import UsageError
from leyden.runners.agent import Agent
from leyden.runners.rewards import Rewards, add_answer, collecting
from leyden.types import LLM, Resource


class Function:
    """What the agent returns is the output's ``content``; the numbers that it returns or emits are its ``metrics``. It may also return a
    whole ``RunOutput``, with the conversation and the tools it used.

    Its code is the policy's: two functions on the same tasks ask the same question. An agent made from a class gets a copy of the
    instance for each attempt. What a function keeps in its module or its closure is its own, and is not isolated.
    """

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.name = agent.name

    @property
    def needs_llm(self) -> bool:
        return self.agent.needs_llm

    @property
    def output_type(self) -> Any:
        """The class that the agent says it returns, if that is a dataclass or a model; None: what it returns is JSON."""
        try:
            said = typing.get_type_hints(self.agent.function).get("return")
        except Exception:  # an annotation that only a type checker can resolve
            return None
        typed = isinstance(said, type) and (dataclasses.is_dataclass(said) or hasattr(said, "model_fields"))
        return said if typed and said is not RunOutput else None

    def accept(self, task: Task) -> None:
        """An agent takes whatever it takes."""

    async def check(self) -> None:
        self._fresh_agent()

    async def attempt(self, task: Task, context: AttemptContext) -> None:
        agent = self._fresh_agent()
        rollout = context.rollout.model_copy(update={"input": task.fresh_input()})
        resources: dict[str, Resource] = {"llm": context.llm} if context.llm else {}
        with collecting() as rewards:
            try:
                answer = await agent.run(rollout, resources)
            except BaseException:
                context.partial = RunOutput(content=None, metrics=_metrics(rewards))
                raise
            context.commit(_output(answer, rewards, context.llm))

    def question(self) -> Components:
        return {}

    def policy(self, llm: LLM | None) -> Components:
        return {"agent": lambda: _code(self.agent.function), **(llm_components(llm) if llm else {})}

    def _fresh_agent(self) -> Agent:
        """The agent on a copy of whatever object it belongs to; a plain function is shared."""
        function = self.agent.function
        if inspect.isroutine(function) and not hasattr(function, "__self__"):
            return self.agent
        fresh = copy.copy(self.agent)
        try:
            fresh.function = copy.deepcopy(function)
        except Exception as error:  # __deepcopy__ may be anybody's
            message = f"{self.name} cannot be copied for each attempt: {type(error).__name__}: {error}"
            raise UsageError(message, "make what it holds inside `rollout`, or write a function") from error
        return fresh


def _output(answer: Any, rewards: Rewards, llm: LLM | None) -> RunOutput:
    if isinstance(answer, RunOutput):
        return answer
    if _are_numbers(answer):
        add_answer(rewards, answer)
    return RunOutput(content=answer, metrics=_metrics(rewards), model=llm.model if llm else None)


def _are_numbers(answer: Any) -> bool:
    """A number, or a dict of numbers by name: what a runner would take for rewards."""
    values = list(answer.values()) if isinstance(answer, Mapping) else [answer]
    return bool(values) and all(isinstance(value, numbers.Real) or getattr(value, "shape", None) == () for value in values)


def _metrics(rewards: Rewards) -> dict[str, float]:
    """By name; those of a position within the attempt as ``name@position``."""
    return {name if position == "end" else f"{name}@{position}": reward.value for (name, position), reward in rewards.items()}


def _code(function: Any) -> Any:
    owner = getattr(function, "__self__", None)
    if owner is None:
        return digest_of(function)
    try:
        held = vars(owner)
    except TypeError:
        raise FingerprintError(f"{type(owner).__name__} does not show what it holds") from None
    return [digest_of(type(owner)), {name: digest_of(value) for name, value in held.items()}]
