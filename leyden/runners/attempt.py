"""One attempt: the agent is run once, on what was claimed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from leyden.runners.agent import Agent
from leyden.runners.endpoints import is_gone
from leyden.runners.failures import classify, describe
from leyden.runners.rewards import add_answer, collecting
from leyden.types import LLM, FailureKind, Lease, Resource, Reward


@dataclass(frozen=True)
class Outcome:
    """What came of it: rewards, or a failure. ``gone``: nobody answers at its LLM's endpoint, so it is not the attempt that failed."""

    rewards: tuple[Reward, ...] = ()
    failure: FailureKind | None = None
    error: str | None = None
    gone: bool = False


async def run_attempt(agent: Agent, lease: Lease) -> Outcome:
    """One call of the agent, in a context of its own. Nothing but cancellation is raised: what is no ``Exception`` (``SystemExit``, a test
    framework's verdicts) would end the runner, or leave the attempt without an end."""
    resources = resources_of(lease)
    with collecting() as rewards:
        try:
            add_answer(rewards, await agent.run(lease.rollout, resources))
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:
            gone = await is_gone(error, [resource for resource in resources.values() if isinstance(resource, LLM)])
            return Outcome(failure=classify(error), error=describe(error), gone=gone)
        return Outcome(tuple(rewards.values()))


def resources_of(lease: Lease) -> dict[str, Resource]:
    """The pinned resources; a proxied LLM gets the attempt's own key, which binds its calls to this attempt."""
    named = dict(lease.resources.resources) if lease.resources else {}
    return {
        name: resource.model_copy(update={"api_key": lease.key}) if isinstance(resource, LLM) and resource.proxied else resource
        for name, resource in named.items()
    }
