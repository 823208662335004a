"""Which kind of agent it is that somebody gave."""

from __future__ import annotations

import inspect
import sys
from typing import Any

from leyden.environments.subject import Subject
from leyden.errors import UsageError
from leyden.runners.agent import Agent, rollout
from leyden.types import LLM

_HINT = "give an agents.Agent, a function that makes one, a @leyden.rollout function, or a leyden.LLM"
_TAKES_A_TASK = {"task", "rollout"}


def as_subject(agent: Any) -> Subject:
    """The subject made of an agent. Raises ``UsageError`` that names what was received where it is none.

    A function with an argument ``task`` counts as decorated with ``@leyden.rollout``; one that needs no argument is a factory.
    """
    from leyden.environments.subjects.agents_sdk import AgentsSDK
    from leyden.environments.subjects.endpoint import Endpoint
    from leyden.environments.subjects.function import Function

    if isinstance(agent, type):
        if callable(getattr(agent, "rollout", None)):
            return Function(rollout(agent))
        raise UsageError(f"the agent is the class {agent.__name__}, not an instance", _HINT)
    if isinstance(agent, Agent):
        return Function(agent)
    if isinstance(agent, LLM):
        return Endpoint(agent)
    if isinstance(agent, Subject):
        return agent
    sdk = sys.modules.get("agents")  # an agent of the SDK can only be there if the SDK is
    if sdk is not None and isinstance(agent, sdk.Agent):
        return AgentsSDK(agent)
    if callable(agent):
        return Function(rollout(agent)) if _takes_a_task(agent) else AgentsSDK(agent)
    raise UsageError(f"{type(agent).__name__} is no kind of agent", _HINT)


def _takes_a_task(function: Any) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return False
    required = [each.name for each in parameters if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    return bool(required) or any(each.name in _TAKES_A_TASK for each in parameters)
