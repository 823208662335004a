"""The tables against the SDK that is installed: one that grows a field, or a kind of tool, makes these fail until it has a rule."""

from __future__ import annotations

import copy
import dataclasses
import typing
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from agents import Agent, Handoff, InputGuardrail, ModelSettings, OutputGuardrail, function_tool, handoff
from agents.tool import Tool
from tell_tales import write_everywhere

from leyden.environments.subjects.isolation import Isolation, refuse
from leyden.environments.subjects.isolation_rules import CLIENTS, FIELDS, STATELESS_MODELS, TOOLS, Action


def find(name: str) -> Any:
    module, _, kind = name.rpartition(".")
    return getattr(import_module(module), kind)


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_of_the_sdk_has_a_rule_and_every_rule_a_field(name: str) -> None:
    assert set(FIELDS[name]) == {field.name for field in dataclasses.fields(find(name))}


def test_every_kind_of_tool_of_the_sdk_has_a_rule_and_every_rule_a_kind() -> None:
    kinds = {typing.get_origin(kind) or kind for kind in typing.get_args(Tool)}
    assert set(TOOLS) == {f"{kind.__module__}.{kind.__qualname__}" for kind in kinds}


@pytest.mark.parametrize("name", sorted(STATELESS_MODELS | CLIENTS))
def test_what_is_known_by_name_is_called_so(name: str) -> None:
    try:
        kind = find(name)
    except (ImportError, AttributeError):
        assert name in CLIENTS  # by where it was defined before, or after
    else:
        assert f"{kind.__module__}.{kind.__qualname__}" in STATELESS_MODELS | CLIENTS


def test_models_called_stateless_hold_settings_and_a_client_and_nothing_that_changes() -> None:
    for name in STATELESS_MODELS:
        model = find(name)("m", object())
        assert all(isinstance(value, str | bool | None) for field, value in vars(model).items() if field != "_client"), name


def somebody() -> dict[str, Any]:
    """One of each kind, all of them held by one agent."""

    @function_tool
    def tool() -> str:
        """Nothing."""
        return ""

    async def guard(*_: Any) -> Any:
        return None

    return {
        "agents.agent.Agent": Agent(name="a", tools=[tool]),
        "agents.tool.FunctionTool": tool,
        "agents.handoffs.Handoff": handoff(Agent(name="b")),
        "agents.guardrail.InputGuardrail": InputGuardrail(guard),
        "agents.guardrail.OutputGuardrail": OutputGuardrail(guard),
        "agents.model_settings.ModelSettings": ModelSettings(),
    }


@dataclasses.dataclass
class Called:
    """Something to call that has a memory."""

    deep: list[str]

    def __call__(self, *_: Any) -> str:
        return "done"


# Where the SDK looks at what it is given.
SUITABLE: dict[str, Any] = {
    "timeout_error_function": Called(["own"]), "allowed_callers": ["direct"], "output_json_schema": {"type": "object", "properties": {}},
}  # fmt: skip


def copied_fields() -> Iterator[tuple[str, str]]:
    for name, fields in FIELDS.items():
        yield from ((name, field) for field, action in fields.items() if action is Action.COPY)


@pytest.mark.parametrize(("name", "field"), copied_fields())
def test_whatever_a_field_to_copy_holds_no_attempt_writes_into_it(name: str, field: str) -> None:
    things = somebody()
    agent: Agent[Any] = things["agents.agent.Agent"]
    agent.handoffs, agent.model_settings = [things["agents.handoffs.Handoff"]], things["agents.model_settings.ModelSettings"]
    agent.input_guardrails = [things["agents.guardrail.InputGuardrail"]]
    agent.output_guardrails = [things["agents.guardrail.OutputGuardrail"]]
    held = SUITABLE.get(field, {"deep": ["own"]})
    before = copy.deepcopy(held)
    object.__setattr__(things[name], field, held)

    fresh = Isolation(refuse).agent(agent)
    kinds = (fresh, *fresh.tools, *fresh.handoffs, fresh.model_settings, *fresh.input_guardrails, *fresh.output_guardrails)
    own = getattr(next(each for each in kinds if type(each) is type(things[name])), field)
    assert own == held and own is not held
    assert write_everywhere(own) and held == before
    assert isinstance(fresh.handoffs[0], Handoff)
