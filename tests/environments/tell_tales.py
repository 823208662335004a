"""Agents that write into everything they can reach, and what is needed to see whether anybody noticed."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import types
import weakref
from collections.abc import Iterator
from typing import Any

from agents import (
    Agent,
    AgentHooks,
    GuardrailFunctionOutput,
    InputGuardrail,
    ModelSettings,
    OutputGuardrail,
    WebSearchTool,
    function_tool,
    handoff,
)
from openai import AsyncOpenAI
from openai.types.shared import Reasoning
from pydantic import TypeAdapter

from leyden.environments.subjects.recording import Log

MARK = "written by an attempt"

# What cannot be written to, or is shared by nature: code, types, connections, compiled validators; and what we write down of an attempt.
SHARED = (
    Log,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
    type,
    AsyncOpenAI,
    TypeAdapter,
    weakref.ref,
    enum.Enum,
    property,
)
ATOMS = (str, bytes, int, float, bool, type(None), asyncio.AbstractEventLoop)


def parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What a thing holds, by where."""
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", inner) for key, inner in list(value.items()))
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{place}]", inner) for place, inner in enumerate(list(value)))
    elif isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
    elif hasattr(value, "__dict__"):
        yield from ((f".{name}", inner) for name, inner in list(vars(value).items()))


def reachable(*roots: Any) -> dict[int, tuple[str, Any]]:
    """Everything that can be reached, once, by id, with the first way there."""
    found: dict[int, tuple[str, Any]] = {}
    waiting = [("it", root) for root in roots]
    while waiting:
        where, value = waiting.pop()
        if isinstance(value, (*SHARED, *ATOMS)) or id(value) in found:
            continue
        found[id(value)] = (where, value)
        waiting += [(where + way, inner) for way, inner in parts(value)]
    return found


def frozen(*roots: Any) -> dict[int, Any]:
    """The whole graph: every object, and the identity of everything that it holds."""
    return {
        key: (where, type(value), [(way, inner if isinstance(inner, ATOMS) else id(inner)) for way, inner in parts(value)])
        for key, (where, value) in reachable(*roots).items()
    }


def marks(*roots: Any) -> list[str]:
    """Where an attempt has written before."""
    return [where for where, value in reachable(*roots).values() if any(MARK in way or inner == MARK for way, inner in parts(value))]


def write_everywhere(*roots: Any) -> int:
    """Into every list, dict, set and object that can be reached; how many of them took it."""
    written = 0
    for _, value in reachable(*roots).values():
        try:
            if isinstance(value, dict):
                value[MARK] = MARK
            elif isinstance(value, list):
                value.append(MARK)
            elif isinstance(value, set):
                value.add(MARK)
            elif hasattr(value, "__dict__"):
                vars(value)[MARK] = MARK
            else:
                continue
        except TypeError:  # frozen
            continue
        written += 1
    return written


@dataclasses.dataclass
class Scene:
    """What the attempts have found and done. It is reached through a global name alone: no isolation reaches module state."""

    together: asyncio.Barrier | None = None  # all of them are at work at once
    found: list[str] = dataclasses.field(default_factory=list)
    written: list[int] = dataclasses.field(default_factory=list)


scene = Scene()


class Vandal(AgentHooks[Any]):
    """Looks for marks before the model is asked."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    async def on_start(self, context: Any, agent: Any) -> None:
        scene.found += marks(agent, context.context)
        if scene.together is not None:
            await scene.together.wait()


class Prompter:
    """Instructions that are a method, of an object with a memory."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def text(self, context: Any, agent: Any) -> str:
        self.asked.append("again")
        return f"Asked {len(self.asked)} times. Tools: {[tool.name for tool in agent.tools]}."


class Guard:
    """A guardrail that is an object, and keeps what it is shown, the task's input among it. The last to come, it writes everywhere."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.times = 0

    async def __call__(self, context: Any, agent: Any, shown: Any) -> GuardrailFunctionOutput:
        scene.found += marks(shown)
        self.seen.append(shown)
        self.times += 1
        if shown == "4" and scene.together is not None:
            scene.written.append(write_everywhere(agent, context.context))
        return GuardrailFunctionOutput(None, tripwire_triggered=self.times > 1)


def make_agent(model: Any) -> Agent[Any]:
    """With something that can be written to in every field the SDK's agents have (MCP servers aside: these are refused)."""

    @function_tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    add.allowed_callers = None
    settings = ModelSettings(
        temperature=0.0, max_tokens=8, metadata={"who": "me"}, extra_body={"user": "someone"}, extra_headers={"x-who": "me"},
        extra_query={"q": "1"}, extra_args={"seed": 1}, response_include=["reasoning.encrypted_content"], reasoning=Reasoning(),
    )  # fmt: skip
    second = Agent(name="second", instructions="You are second.", tools=[add], model=model, hooks=Vandal())
    third = Agent(name="third", model=model, mcp_config={"convert_schemas_to_strict": True})
    first = Agent(
        name="first",
        handoff_description="The first.",
        tools=[add],
        mcp_config={"convert_schemas_to_strict": True},
        instructions=Prompter().text,
        handoffs=[second, handoff(third, tool_name_override="to_third", is_enabled=True)],
        model=model,
        model_settings=settings,
        input_guardrails=[InputGuardrail(guardrail_function=Guard(), name="guard")],
        output_guardrails=[OutputGuardrail(guardrail_function=Guard(), name="guard")],
        hooks=Vandal(),
        tool_use_behavior={"stop_at_tool_names": ["none"]},
    )
    second.handoffs.append(first)  # and round again
    return first


def hosted_tool() -> WebSearchTool:
    return WebSearchTool(user_location={"type": "approximate", "city": "Leiden"})
