"""The recipe's ways to write an agent, as agents of ours."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from leyden.agentlightning.emit import last_reward
from leyden.agentlightning.records import AttemptedRollout
from leyden.runners.agent import Agent
from leyden.runners.agent import rollout as make_agent
from leyden.types import LLM, Mode, Resource, Rollout

T = TypeVar("T")


class RecipeAgent(Agent):
    """An agent that sees the recipe's records, and may ignore the key it is given: its endpoint is the attempt's own URL."""

    def bind(self, rollout: Rollout, resources: Mapping[str, Resource]) -> dict[str, Any]:
        bound = super().bind(rollout, {name: _own_url(resource) for name, resource in resources.items()})
        return {name: AttemptedRollout.at(rollout) if value is rollout else value for name, value in bound.items()}

    async def run(self, rollout: Rollout, resources: Mapping[str, Resource]) -> Any:
        """The answer; for an agent that returned none, the last reward it emitted."""
        answer = await super().run(rollout, resources)
        return last_reward() if answer is None else answer


def rollout(function: Callable[..., Any]) -> Agent:
    """Decorate an agent: ``async def agent(task, llm)`` or ``agent(task, prompt_template)``, also ``resources`` and ``rollout``.

    It returns its reward, or None when it called ``emit_reward``. Raises ``UsageError`` for a signature that cannot be filled.
    """
    return RecipeAgent(make_agent(function).function)


def llm_rollout(function: Callable[..., Any] | None = None, *, strip_proxy: bool = True) -> Any:
    """``rollout`` for an agent with an ``llm``. ``strip_proxy`` is how it always is: the URL it gets is the attempt's own."""
    return rollout if function is None else rollout(function)


def prompt_rollout(function: Callable[..., Any] | None = None) -> Any:
    """``rollout`` for an agent with a ``prompt_template``."""
    return rollout if function is None else rollout(function)


class LitAgent(RecipeAgent, Generic[T]):
    """An agent as a class. Override ``rollout`` or ``rollout_async``; or the training and validation forms, which call them.

    Each takes ``(task, resources, rollout)``. Mode "train" runs the training form, every other one the validation form.
    """

    def __init__(self) -> None:
        """Nothing: a subclass need not call it."""

    @property
    def name(self) -> str:  # type: ignore[override]
        return type(self).__qualname__

    def rollout(self, task: T, resources: dict[str, Any], rollout: AttemptedRollout) -> Any:
        raise NotImplementedError(f"{self.name} has neither `rollout` nor `rollout_async`")

    async def rollout_async(self, task: T, resources: dict[str, Any], rollout: AttemptedRollout) -> Any:
        raise NotImplementedError(f"{self.name} has neither `rollout` nor `rollout_async`")

    def training_rollout(self, task: T, resources: dict[str, Any], rollout: AttemptedRollout) -> Any:
        return self.rollout(task, resources, rollout)

    async def training_rollout_async(self, task: T, resources: dict[str, Any], rollout: AttemptedRollout) -> Any:
        return await self.rollout_async(task, resources, rollout)

    def validation_rollout(self, task: T, resources: dict[str, Any], rollout: AttemptedRollout) -> Any:
        return self.rollout(task, resources, rollout)

    async def validation_rollout_async(self, task: T, resources: dict[str, Any], rollout: AttemptedRollout) -> Any:
        return await self.rollout_async(task, resources, rollout)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.rollout(*args, **kwargs)

    async def run(self, rollout: Rollout, resources: Mapping[str, Resource]) -> Any:
        form = "training_rollout" if rollout.mode is Mode.TRAIN else "validation_rollout"
        asynchronous = any(getattr(type(self), name) is not getattr(LitAgent, name) for name in ("rollout_async", f"{form}_async"))
        method = getattr(self, f"{form}_async" if asynchronous else form)
        return await RecipeAgent(_by_name(method)).run(rollout, resources)


def _by_name(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method with arguments that can be filled by name, whatever it calls them."""
    if inspect.iscoroutinefunction(method):

        async def call_async(task: Any, resources: Any, rollout: Any) -> Any:
            return await method(task, resources, rollout)

        return call_async

    def call(task: Any, resources: Any, rollout: Any) -> Any:
        return method(task, resources, rollout)

    return call


def _own_url(resource: Resource) -> Resource:
    if isinstance(resource, LLM) and resource.proxied and resource.api_key:
        base = resource.endpoint.rstrip("/").removesuffix("/v1")
        return resource.model_copy(update={"endpoint": f"{base}/a/{resource.api_key}/v1"})
    return resource
