"""An attempt's own copy of an agent of the OpenAI Agents SDK.

What cannot be isolated, and is the user's own to keep in order:

* what a tool, an instruction function, a hook or a guardrail keeps in its module, its class or its closure (a bound method's object is
  copied or refused, a closure is not);
* what a tool does to the world: files, databases, services; and what a function that the user wrote catches;
* the SDK's tracing: switched off for attempts, but its processors are the process's;
* a sync scorer or a sync agent runs in a thread, which nothing can stop: after its time it is left to itself, and its result is dropped;
* connection pools of clients are shared; ours keep no cookies, an HTTP client that the caller gave to his may;
* what is the process's: environment variables, the working directory, ``random``'s state, context variables that hold an object.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

from leyden.environments.subjects.isolation_rules import CLIENTS, FIELDS, STATELESS_MODELS, TOOLS, Action
from leyden.errors import UsageError

if TYPE_CHECKING:
    from agents import Agent, FunctionTool, Handoff

OnLive = Callable[[Any, str], None]
"""Told of each part that cannot be copied, and where it is: refuses it, or knows that this attempt alone has it."""

# Whose deep copy is itself.
_ATOMIC = frozenset({type(None), bool, int, float, complex, str, bytes, type, FunctionType, BuiltinFunctionType})
FACTORY = "give a function that makes the agent: Environment(agent=lambda: Agent(…), …); it is called for each attempt"


def refuse(part: Any, where: str) -> None:
    """For an agent that the caller holds."""
    raise UsageError(f"{where} ({type(part).__name__}) cannot be copied for each attempt", FACTORY)


class NeverTwice:
    """For what a factory makes: each part has to be a new one. Parts are held weakly where they can be."""

    def __init__(self) -> None:
        self._known: dict[int, Callable[[], Any]] = {}

    def __call__(self, part: Any, where: str) -> None:
        if isinstance(part, str | int | float | None):
            return
        known = self._known.get(id(part))
        if known is not None and known() is part:
            raise UsageError(
                f"the factory gave {where} ({type(part).__name__}) a second time", "make it inside the factory, anew at each call"
            )
        key = id(part)
        try:
            self._known[key] = weakref.ref(part, lambda _: self._known.pop(key, None))
        except TypeError:
            self._known[key] = lambda: part


class Isolation:
    """The copies of one attempt. ``agents`` are those that were made, ``tools`` their function tools, ``servers`` the MCP servers they
    hold, each once; ``used`` are the agents that serve as tools, as they are."""

    def __init__(self, on_live: OnLive) -> None:
        self.agents: list[Agent[Any]] = []
        self.used: list[Agent[Any]] = []
        self.tools: list[FunctionTool] = []
        self.servers: list[Any] = []
        self._on_live = on_live
        self._memo: dict[int, Any] = {}
        self._functions: dict[int, Any] = {}  # looked into
        self._parts: dict[int, Any] = {}  # the live ones, each told of once: its own agents may share one

    def agent(self, agent: Agent[Any]) -> Agent[Any]:
        """Raises ``UsageError`` for what cannot be isolated."""
        if id(agent) in self._memo:
            return self._memo[id(agent)]
        fresh = self._shell(agent)
        self.agents.append(fresh)
        where = f"agent {agent.name!r}"
        for name, action in self._rules(agent, where):
            value = getattr(agent, name)
            match name:
                case "tools":
                    fresh.tools = [self._tool(tool, where) for tool in value]
                case "handoffs":
                    fresh.handoffs = [self._handoff(each, where) for each in value]
                case "model":
                    fresh.model = self._model(value, where)
                case "mcp_servers":
                    fresh.mcp_servers = self._servers(value, where)
                case "model_settings":
                    fresh.model_settings = self._record(value, f"the model settings of {where}")
                case "input_guardrails" | "output_guardrails":
                    setattr(fresh, name, [self._record(each, f"a guardrail of {where}") for each in value])
                case _ if not _is_its_copy(action, value):
                    setattr(fresh, name, self._field(action, value, f"{name} of {where}"))
        return fresh

    def copied(self, value: Any, where: str) -> Any:
        """A deep copy that refers to this attempt's copies; a part that cannot be copied is a live one."""
        if type(value) in _ATOMIC:
            return value
        try:
            return copy.deepcopy(value, self._memo)
        except Exception:  # __deepcopy__ may be anybody's
            self._live(value, where)
            return value

    def _live(self, part: Any, where: str) -> None:
        if id(part) not in self._parts:
            self._parts[id(part)] = part
            self._on_live(part, where)

    def _rules(self, value: Any, where: str) -> Sequence[tuple[str, Action]]:
        """By field, for every field that is declared and every attribute that is set. Those that are shared are left out: a shallow copy
        has them. What has no rule is live, and stays as it is; but a field that is new in the SDK and not in use (it has its plain default)
        cannot be written through."""
        shape = _shape(type(value), tuple(vars(value)))  # type: ignore[arg-type]  # a class is hashable
        if shape is None:
            raise UsageError(f"{where} is a {_kind(type(value))}, which nobody knows how to isolate", FACTORY)
        for name, default in shape.unknown:
            held = getattr(value, name)
            if not isinstance(held, str | int | float | None) or held != default:
                self._live(held, f"the field {name!r} of {where}")
        return shape.rules

    def _field(self, action: Action, value: Any, where: str) -> Any:
        if action is Action.COPY:
            return self.copied(value, where)
        if action is Action.LIVE and value:
            self._live(value, where)
        return value

    def _shell(self, value: Any) -> Any:
        """A shallow copy, which stands for the original wherever that is met again."""
        fresh = copy.copy(value)
        self._memo[id(value)] = fresh
        self._memo.setdefault(id(self._memo), []).append(value)  # as deepcopy does: ids are only good while their objects live
        return fresh

    def _record(self, value: Any, where: str) -> Any:
        """A dataclass of the SDK, field by field."""
        fresh = self._shell(value)
        for name, action in self._rules(value, where):
            if not _is_its_copy(action, held := getattr(value, name)):
                object.__setattr__(fresh, name, self._field(action, held, f"{name} of {where}"))
        return fresh

    def _tool(self, tool: Any, where: str) -> Any:
        if id(tool) in self._memo:
            return self._memo[id(tool)]
        where = f"tool {getattr(tool, 'name', type(tool).__name__)!r} of {where}"
        action = TOOLS.get(_kind(type(tool)), Action.LIVE)
        if action is not Action.REBUILD:
            return self._field(action, tool, where)
        fresh = self._shell(tool)  # the SDK binds the copy's invoker to the copy
        for name, rule in self._rules(tool, where):
            if name == "on_invoke_tool":
                self._invoker(tool, where)
            elif not _is_its_copy(rule, held := getattr(tool, name)):
                setattr(fresh, name, self._field(rule, held, f"{name} of {where}"))
        if tool._agent_instance is not None:
            self._used_as_tool(tool._agent_instance)
        self.tools.append(fresh)
        return fresh

    def _used_as_tool(self, agent: Any) -> None:
        """Its tool keeps the agent itself, so that it stays as the factory made it: whatever it holds that has a memory must be new too."""
        if id(agent) in self._parts:
            return
        where = f"agent {agent.name!r}, a tool,"
        self._live(agent, where)
        self.used.append(agent)
        self._servers(agent.mcp_servers, where)
        guards = [each.guardrail_function for each in (*agent.input_guardrails, *agent.output_guardrails)]
        for part in (agent.instructions, agent.prompt, agent.hooks, agent.tool_use_behavior, *guards):
            self._remembering(part, f"a part of {where}")
        if agent.model is not None and _kind(type(agent.model)) not in STATELESS_MODELS:
            self._live(agent.model, f"the model of {where}")
        for tool in agent.tools:
            if TOOLS.get(_kind(type(tool)), Action.LIVE) is Action.LIVE:
                self._live(tool, f"tool {tool.name!r} of {where}")
            if _kind(type(tool)) == "agents.tool.FunctionTool":
                self._invoker(tool, f"tool {tool.name!r} of {where}")
            if getattr(tool, "_agent_instance", None) is not None:
                self._used_as_tool(tool._agent_instance)  # type: ignore[union-attr]
        for handoff in agent.handoffs:
            if hasattr(handoff, "instructions"):
                self._used_as_tool(handoff)
                continue
            self._caught(handoff.on_invoke_handoff, f"handoff {handoff.tool_name!r} of {where}")
            if (target := handoff._agent_ref and handoff._agent_ref()) is not None:
                self._used_as_tool(target)

    def _remembering(self, part: Any, where: str) -> None:
        """A method by its object, an object by itself; plain functions and values are shared."""
        owner = getattr(part, "__self__", None) if inspect.isroutine(part) else part
        if owner is None or isinstance(owner, str | dict | type) or inspect.ismodule(owner):
            return
        self._live(owner, where)

    def _invoker(self, tool: FunctionTool, where: str) -> None:
        """Functions are shared; a function that carries an object (a toolkit's method) is live, as that object cannot be exchanged."""
        called = getattr(tool, "__wrapped__", tool.on_invoke_tool)
        owner = getattr(called, "__self__", None)
        if owner is not None and owner is not tool and not isinstance(owner, type) and not inspect.ismodule(owner):
            self._live(owner, f"the object whose method is {where}")
        elif not inspect.isroutine(called) and not _kind(type(called)).startswith("agents."):
            self._live(called, f"the callable of {where}")
        for function in (called, getattr(tool.on_invoke_tool, "_invoke_tool_impl", None)):
            self._caught(function, where)

    def _caught(self, function: Any, where: str) -> None:
        """What the SDK's own closures hold that has a memory: the object of a method, a session."""
        if id(function) in self._functions:
            return
        self._functions[id(function)] = function
        for held in _held_by(function):
            owner = getattr(held, "__self__", None)
            if inspect.ismethod(held) and not isinstance(owner, type):
                self._live(owner, f"the object whose method is given to {where}")
            elif hasattr(held, "add_items") and hasattr(held, "get_items"):
                self._live(held, f"the session of {where}")
            self._caught(held, where)

    def _handoff(self, handoff: Any, where: str) -> Any:
        if hasattr(handoff, "instructions"):
            return self.agent(handoff)
        where = f"handoff {handoff.tool_name!r} of {where}"
        fresh: Handoff[Any, Any] = self._record(handoff, where)
        target = handoff._agent_ref() if handoff._agent_ref else None
        if target is not None:
            fresh._agent_ref = weakref.ref(self.agent(target))

        async def to_the_copy(context: Any, arguments: str) -> Any:
            return self.agent(await handoff.on_invoke_handoff(context, arguments))

        self._caught(handoff.on_invoke_handoff, where)
        fresh.on_invoke_handoff = to_the_copy
        return fresh

    def _model(self, model: Any, where: str) -> Any:
        if model is None or isinstance(model, str):
            return model
        if _kind(type(model)) in STATELESS_MODELS:
            return copy.copy(model)
        for value in vars(model).values():
            if any(_kind(base) in CLIENTS for base in type(value).__mro__):
                self._memo[id(value)] = value
        return self.copied(model, f"the model of {where}")

    def _servers(self, servers: list[Any], where: str) -> list[Any]:
        for server in servers:
            self._live(server, f"MCP server {getattr(server, 'name', '?')!r} of {where}")
            if not any(server is known for known in self.servers):
                self.servers.append(server)
            self._memo[id(server)] = server
        return list(servers)


def _is_its_copy(action: Action, value: Any) -> bool:
    return action is Action.COPY and type(value) in _ATOMIC


class _Shape(NamedTuple):
    rules: tuple[tuple[str, Action], ...]  # of what is not shared
    unknown: tuple[tuple[str, Any], ...]  # fields that have no rule, with their defaults


@functools.lru_cache(maxsize=1024)
def _shape(cls: type, attributes: tuple[str, ...]) -> _Shape | None:
    """Of the objects of a class that have these attributes set: the same for every attempt. None for a class that has no table."""
    table = next((FIELDS[kind] for kind in map(_kind, cls.__mro__) if kind in FIELDS), None)
    if table is None:
        return None
    defaults: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(cls)}
    names = dict.fromkeys([*defaults, *attributes])
    return _Shape(
        tuple((name, table[name]) for name in names if name in table and table[name] is not Action.SHARE),
        tuple((name, defaults.get(name, dataclasses.MISSING)) for name in names if name not in table),
    )


def _held_by(function: Any) -> list[Any]:
    if isinstance(function, functools.partial):
        return [function.func, *function.args, *function.keywords.values()]
    if not inspect.isfunction(function) or not function.__module__.startswith("agents."):
        return []
    held = []
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # empty
            held.append(cell.cell_contents)
    return held


def _kind(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
