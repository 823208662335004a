"""``@rollout`` turns a function, or a class with a method ``rollout``, into an agent."""

from __future__ import annotations

import asyncio
import inspect
import threading
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any

from leyden.errors import UsageError
from leyden.runners.guard import fork_ends_here
from leyden.types import LLM, JSONResource, PromptTemplate, Resource, Resources, Rollout

_SINGLE: dict[str, type[Any]] = {"llm": LLM, "prompt_template": PromptTemplate}
_NAMES = ("task", "llm", "prompt_template", "resources", "rollout")


@dataclass(frozen=True)
class _Argument:
    """How one argument is filled: ``kind`` is "task", "rollout", "resources" or a resource's type."""

    name: str
    kind: str | type[Any]
    required: bool


class Agent:
    """A function that runs one task. Calling it calls the function, so it can be tested without any store."""

    def __init__(self, function: Callable[..., Any]) -> None:
        update_wrapper(self, function)
        self.function = function
        self.name: str = getattr(function, "__qualname__", type(function).__name__)
        self.is_async = inspect.iscoroutinefunction(function)
        self._arguments = _arguments(function, self.name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    @property
    def needs_llm(self) -> bool:
        """It asks for an LLM and has no default in its place."""
        return any(argument.kind is LLM and argument.required for argument in self._arguments)

    def bind(self, rollout: Rollout, resources: Mapping[str, Resource]) -> dict[str, Any]:
        """The keyword arguments of one call. Raises ``UsageError`` if a resource that the agent asks for is not there."""
        bound: dict[str, Any] = {}
        for argument in self._arguments:
            if isinstance(argument.kind, str):
                bound[argument.name] = {"task": rollout.input, "rollout": rollout, "resources": dict(resources)}[argument.kind]
                continue
            found = _find(argument, resources)
            if found is not None or argument.required:
                bound[argument.name] = found
        return bound

    async def run(self, rollout: Rollout, resources: Mapping[str, Resource]) -> Any:
        """One call; a sync function runs in a thread of its own. Raises whatever the agent raises."""
        kwargs = self.bind(rollout, resources)
        if self.is_async:
            with fork_ends_here():
                return await self.function(**kwargs)
        return await _in_thread(lambda: self.function(**kwargs), f"leyden-{rollout.id}")


def rollout(target: Any) -> Agent:
    """Decorate an agent: an async function, a sync function (runs in a thread) or a class with a method ``rollout``.

    Arguments are filled by name (``task``, ``llm``, ``prompt_template``, ``resources``: a dict by name, ``rollout``), or by an
    annotation with ``LLM``, ``PromptTemplate``, ``JSONResource``, ``Resources`` or ``Rollout``. An argument with a default stays
    optional. The agent returns a number, a dict of numbers, or None when it called ``emit_reward``.

    Raises ``UsageError`` for a signature that cannot be filled.
    """
    if isinstance(target, Agent):
        return target
    if inspect.isclass(target):
        method = getattr(target, "rollout", None)
        if not callable(method):
            raise UsageError(f"class {target.__name__} has no method `rollout`", "add `async def rollout(self, task, llm)`")
        try:
            instance: Any = target()
        except TypeError as error:
            raise UsageError(f"class {target.__name__} cannot be made without arguments: {error}", "give its arguments defaults") from None
        return Agent(instance.rollout)
    if not callable(target):
        raise UsageError(f"@rollout takes a function or a class, not {type(target).__name__}", "write a function under it")
    return Agent(target)


def _arguments(function: Callable[..., Any], name: str) -> list[_Argument]:
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise UsageError(f"agent {name} is a generator", "return the reward instead of yielding it")
    try:
        hints = typing.get_type_hints(function)
    except Exception:  # an annotation that only a type checker can resolve: names decide alone
        hints = {}
    arguments: list[_Argument] = []
    for parameter in inspect.signature(function).parameters.values():
        required = parameter.default is parameter.empty
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise UsageError(f"agent {name}: argument {parameter} cannot be filled by name", f"use the names {', '.join(_NAMES)}")
        kind = _kind(parameter.name, hints.get(parameter.name))
        if kind is not None:
            arguments.append(_Argument(parameter.name, kind, required))
        elif required:
            raise UsageError(f"agent {name}: don't know what to give argument `{parameter.name}`", f"use the names {', '.join(_NAMES)}")
    if not any(argument.kind in ("task", "rollout") for argument in arguments):
        raise UsageError(f"agent {name} takes no task", f"write `def {name.rsplit('.')[-1]}(task, llm)`")
    return arguments


def _kind(name: str, hint: Any) -> str | type[Any] | None:
    for option in (hint, *typing.get_args(hint)):  # `LLM | None` counts as LLM
        if option in (LLM, PromptTemplate, JSONResource):
            return option
        if option in (Rollout, Resources):
            return "rollout" if option is Rollout else "resources"
    if name in _SINGLE:
        return _SINGLE[name]
    return name if name in _NAMES else None


def _find(argument: _Argument, resources: Mapping[str, Resource]) -> Resource | None:
    """The resource of this name if it has the type, else the only one of the type."""
    matching = {name: resource for name, resource in resources.items() if isinstance(resource, typing.cast("type[Any]", argument.kind))}
    if argument.name in matching:
        return matching[argument.name]
    if len(matching) == 1:
        return next(iter(matching.values()))
    if not argument.required:
        return None
    if not matching:
        kind = typing.cast("type[Any]", argument.kind).__name__
        raise UsageError(f"the agent asks for `{argument.name}`, but the resources hold no {kind}", "add one: store.add_resources({…})")
    raise UsageError(f"`{argument.name}` could be any of {', '.join(sorted(matching))}", "name the argument like one, or take `resources`")


async def _in_thread(call: Callable[[], Any], name: str) -> Any:
    """Run in a daemon thread with this task's context variables.

    Not the loop's executor: that one has few threads, and its threads keep the process from ending. A thread cannot be stopped: when
    this task is cancelled it goes on waiting until the call returns, and then counts as cancelled.
    """
    loop = asyncio.get_running_loop()
    finished: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    context = copy_context()

    def work() -> None:
        result, error = None, None
        try:
            with fork_ends_here():
                result = context.run(call)
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # the loop has closed: nobody waits for this any more
            loop.call_soon_threadsafe(finished.set_result, (result, error))

    threading.Thread(target=work, name=name, daemon=True).start()
    try:
        result, error = await asyncio.shield(finished)
    except asyncio.CancelledError:
        await asyncio.wait([finished])
        raise
    if error is not None:
        raise error
    return result
