"""What of an agent of the Agents SDK is the question (prompts, tools, schemas), and what is who answers (models, sampling)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from importlib.metadata import version
from operator import or_
from typing import TYPE_CHECKING, Any

from leyden.environments.code_digest import digest_of
from leyden.environments.credentials import CREDENTIAL, place_of, without_credentials
from leyden.environments.fingerprint import canonical
from leyden.environments.subject import Components
from leyden.environments.subjects.endpoint import llm_components
from leyden.types import LLM

if TYPE_CHECKING:
    from agents import Agent

# Not who answers: what the question is made of, what carries a key, how often something is tried, what is kept of it.
_NOT_SAMPLING = {"tool_choice", "parallel_tool_calls", "extra_headers", "metadata", "store", "retry", "timeout", "include_usage",
                 "preserve_raw_usage", "prompt_cache_retention", "prompt_cache_options", "response_include"}  # fmt: skip


@dataclass(frozen=True)
class Described:
    """An agent and those it hands off to, each once, the first one first; those that any of them uses as tools; and what its MCP servers
    offer."""

    answering: Sequence[Agent[Any]]
    used: Sequence[Agent[Any]]
    offered: Sequence[Sequence[Any]]

    @property
    def agents(self) -> Sequence[Agent[Any]]:
        return (*self.answering, *self.used)


Describe = Callable[[], Described]


def question_components(describe: Describe) -> Components:
    """The body of a tool is not in it, only what the model sees of it: change the environment's ``version`` when that changes."""
    return {
        "tools": lambda: [[_tools(agent) for agent in describe().agents], describe().offered],
        "prompt": lambda: [_prompt(agent) for agent in describe().agents],
        "output_schema": lambda: [_output_schema(agent) for agent in describe().agents],
        "handoffs": lambda: [[_handoff(each) for each in agent.handoffs] for agent in describe().agents],
        "guardrails": lambda: [_guardrails(agent) for agent in describe().agents],
    }


def policy_components(describe: Describe, llm: LLM | None) -> Components:
    """With ``llm`` it answers for all of the agents, with its parameters over theirs."""
    named: Components = {"library": lambda: ["openai-agents", version("openai-agents")]}
    if llm is not None:
        own = llm_components(llm)
        return {**named, **own, "sampling": lambda: [[_sampling(agent, True) for agent in describe().agents], own["sampling"]()]}
    return {
        **named,
        "model": lambda: [_model(agent.model) for agent in describe().agents],
        "endpoint": lambda: [_endpoint(agent.model) for agent in describe().agents],
        "sampling": lambda: [_sampling(agent, False) for agent in describe().agents],
    }


def _tools(agent: Agent[Any]) -> Any:
    settings = agent.model_settings
    choice = settings.tool_choice
    behaviour = digest_of(agent.tool_use_behavior) if callable(agent.tool_use_behavior) else agent.tool_use_behavior
    return {
        "tools": sorted((_tool(tool) for tool in agent.tools), key=canonical),
        "choice": dataclasses.asdict(choice) if dataclasses.is_dataclass(choice) and not isinstance(choice, type) else choice,
        "parallel": settings.parallel_tool_calls,
        "behaviour": behaviour,
        "reset_choice": agent.reset_tool_choice,
        "mcp": {name: digest_of(value) for name, value in agent.mcp_config.items()},
    }


def _tool(tool: Any) -> Any:
    if hasattr(tool, "params_json_schema"):
        guards = [each.guardrail_function for each in (*(tool.tool_input_guardrails or ()), *(tool.tool_output_guardrails or ()))]
        when = [tool.is_enabled, tool.needs_approval, tool.defer_loading, guards]
        failing = [tool._failure_error_function, tool.timeout_seconds, tool.timeout_behavior, tool.timeout_error_function]
        return [tool.name, tool.description, tool.params_json_schema, tool.strict_json_schema, digest_of(when), digest_of(failing)]
    return [type(tool).__name__, {name: digest_of(_public_setting(value)) for name, value in vars(tool).items()}]


def _public_setting(value: Any) -> Any:
    """A server's address and what it offers, and no key to it."""
    if not isinstance(value, dict):
        return value
    kept = {name: part for name, part in value.items() if name not in ("authorization", "headers")}
    return {**kept, "server_url": place_of(kept["server_url"])} if isinstance(kept.get("server_url"), str) else kept


def _prompt(agent: Agent[Any]) -> Any:
    return [digest_of(part) if callable(part) else part for part in (agent.instructions, agent.prompt)]


def _output_schema(agent: Agent[Any]) -> Any:
    from agents import AgentOutputSchema
    from agents.agent_output import AgentOutputSchemaBase

    kind = agent.output_type
    if kind is None or kind is str:
        return None
    schema = kind if isinstance(kind, AgentOutputSchemaBase) else AgentOutputSchema(kind)
    return [schema.name(), schema.json_schema(), schema.is_strict_json_schema()]


def answer_type(agents: Sequence[Agent[Any]]) -> Any:
    """What any of them may answer with besides a text; None if nothing, or if a schema of the user's own does not tell."""
    from agents.agent_output import AgentOutputSchemaBase

    declared = [agent.output_type for agent in agents]
    told = [getattr(kind, "output_type", None) if isinstance(kind, AgentOutputSchemaBase) else kind for kind in declared]
    kinds = [kind for kind in told if kind is not None and kind is not str]
    return reduce(or_, kinds) if kinds else None


def _handoff(each: Any) -> Any:
    from agents import handoff

    offer = handoff(each) if hasattr(each, "instructions") else each
    trimmed = None if offer.input_filter is None else digest_of(offer.input_filter)
    enabled = digest_of(offer.is_enabled)
    return [offer.tool_name, offer.tool_description, offer.input_json_schema, offer.nest_handoff_history, trimmed, enabled]


def _guardrails(agent: Agent[Any]) -> Any:
    return [[digest_of(each.guardrail_function) for each in kind] for kind in (agent.input_guardrails, agent.output_guardrails)]


def _model(model: Any) -> Any:
    from agents.models.default_models import get_default_model

    if model is None or isinstance(model, str):
        return model or get_default_model()
    return [f"{type(model).__module__}.{type(model).__qualname__}", _public(vars(model))]


def _public(values: dict[str, Any]) -> dict[str, Any]:
    """What a model says of itself. Raises ``FingerprintError`` for what is no JSON value."""
    told = {}
    for name, value in values.items():
        if name.startswith("_") or value is None or CREDENTIAL.search(name):
            continue
        told[name] = digest_of(value) if callable(value) else without_credentials(value) if isinstance(value, dict) else value
        canonical(told[name])
    return told


def _endpoint(model: Any) -> str | None:
    """Without credentials; of a name, where this process would ask. None: nobody can tell."""
    if model is None or isinstance(model, str):
        model = resolved(model)
    url = getattr(getattr(model, "_client", None), "base_url", None)
    return None if url is None else place_of(str(url))


def resolved(model: str | None) -> Any:
    """The model that the SDK would take for a name. None if there is no key for it."""
    from agents.models.multi_provider import MultiProvider

    try:
        return MultiProvider().get_model(model)
    except Exception:  # OpenAI's client says so when it is made; other providers have errors of their own
        return None


def _sampling(agent: Agent[Any], replaced: bool) -> dict[str, Any]:
    """As the SDK does, what it chose by the model's name does not count for another model."""
    from agents import ModelSettings
    from agents.models.default_models import get_default_model_settings

    settings = agent.model_settings
    named = agent.model is None or isinstance(agent.model, str)
    if replaced and settings == (get_default_model_settings(agent.model) if named else ModelSettings()):  # type: ignore[arg-type]
        return {}
    found = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if value is None or field.name in _NOT_SAMPLING:
            continue
        value = value.model_dump(mode="json", exclude_none=True) if hasattr(value, "model_dump") else value
        value = without_credentials(value) if isinstance(value, dict) else value
        if value != {}:
            found[field.name] = value
    return found
