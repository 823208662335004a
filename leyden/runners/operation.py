"""``operation``: a part of an agent's work as a span, with what went in and what came out."""

from __future__ import annotations

import functools
import inspect
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from leyden.runners.emit import exception_attributes, logger
from leyden.runners.failures import describe
from leyden.runners.tracer import Place, Recorder, current_place, current_recorder, inside, jsonable

INPUT, OUTPUT, ITEMS = "leyden.input", "leyden.output", "leyden.items"
MAX_ITEMS = 100  # of what a generator yields, that are kept

F = TypeVar("F", bound=Callable[..., Any])


class Operation:
    """One such part: what begins inside it is its child. Outside an attempt it keeps nothing."""

    def __init__(self, name: str, attributes: Mapping[str, Any]) -> None:
        self.name = name
        self._given = attributes
        self._recorder: Recorder | None = None

    @property
    def kept(self) -> bool:
        """It has begun inside an attempt."""
        return self._recorder is not None

    def set_input(self, value: Any) -> None:
        """What it works on, as it is now."""
        self.set_attribute(INPUT, value)

    def set_output(self, value: Any) -> None:
        """What came out, as it is now."""
        self.set_attribute(OUTPUT, value)

    def set_attribute(self, name: str, value: Any) -> None:
        """Anything about it, as it is now."""
        if self.kept:
            self._attributes[name] = jsonable(value)

    def __enter__(self) -> Self:
        self.begin()
        self._inside = self.step()
        self._inside.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._inside.__exit__(kind, error, trace)
        self.end(error)

    def begin(self) -> None:
        self._recorder = current_recorder()
        if self._recorder is None:
            logger.debug("operation %s outside a rollout is kept nowhere", self.name)
            return
        self._parent = current_place() or Place(self._recorder.trace_id, self._recorder.root_id)
        self._span_id = secrets.token_hex(8)
        self._attributes = jsonable(dict(self._given))
        self._begun_ns = time.time_ns()

    def step(self) -> AbstractContextManager[None]:
        """Around its work, or a step of it: what the caller of a generator does between two steps does not belong to it."""
        return inside(Place(self._parent.trace_id, self._span_id)) if self.kept else nullcontext()

    def end(self, error: BaseException | None) -> None:
        if self._recorder is None:
            return
        if error is not None:
            self._attributes |= exception_attributes(error)
        self._recorder.take({
            "trace_id": self._parent.trace_id, "span_id": self._span_id, "parent_id": self._parent.span_id, "name": self.name,
            "start_ns": self._begun_ns, "end_ns": time.time_ns(), "status": "unset" if error is None else "error",
            "status_message": None if error is None else describe(error), "attributes": self._attributes, "scope": "leyden",
        })  # fmt: skip


class _Named(Operation):
    """``operation("name")``: a context, or a decorator once it is called."""

    def __call__(self, function: F) -> F:
        return _decorated(function, self.name, self._given)


@overload
def operation(name: F) -> F: ...
@overload
def operation(name: str, **attributes: Any) -> _Named: ...


def operation(name: Any, **attributes: Any) -> Any:
    """A part of an agent's work, kept as a span with what went in and what came out.

    As a decorator, ``@operation`` or ``@operation("search", index="wiki")``, of a function, an async one, or a generator of either
    kind: the input is its arguments by name, the output what it returns, or the first 100 things it yields. As a context:
    ``with operation("search") as op: op.set_input(...); op.set_output(...)``. An exception passes through, and is noted.

    Outside an attempt the function simply runs.
    """
    return _decorated(name, name.__qualname__, attributes) if callable(name) else _Named(name, attributes)


@dataclass(frozen=True)
class _Kind:
    """What every call of one decorated function has in common."""

    name: str
    attributes: Mapping[str, Any]
    signature: inspect.Signature

    def set_input(self, made: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not made.kept:
            return
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError:  # calling the function says it better
            return
        made.set_input({name: value for name, value in bound.arguments.items() if name not in ("self", "cls")})


def _decorated(function: Any, name: str, attributes: Mapping[str, Any]) -> Any:
    kind = _Kind(name, attributes, inspect.signature(function))
    if inspect.isasyncgenfunction(function):
        call = _of_async_generator(kind, function)
    elif inspect.isgeneratorfunction(function):
        call = _of_generator(kind, function)
    elif inspect.iscoroutinefunction(function):
        call = _of_coroutine(kind, function)
    else:
        call = _of_function(kind, function)
    return functools.wraps(function)(call)


def _of_function(kind: _Kind, function: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        with Operation(kind.name, kind.attributes) as made:
            kind.set_input(made, args, kwargs)
            result = function(*args, **kwargs)
            made.set_output(result)
        return result

    return call


def _of_coroutine(kind: _Kind, function: Any) -> Any:
    async def call(*args: Any, **kwargs: Any) -> Any:
        with Operation(kind.name, kind.attributes) as made:
            kind.set_input(made, args, kwargs)
            result = await function(*args, **kwargs)
            made.set_output(result)
        return result

    return call


def _of_generator(kind: _Kind, function: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        generator = function(*args, **kwargs)
        step = functools.partial(generator.send, None)
        with _Items(kind, args, kwargs) as items:
            while True:
                try:
                    with items.operation.step():
                        item = step()
                except StopIteration as done:
                    return done.value
                try:
                    step = functools.partial(generator.send, (yield items.kept(item)))
                except GeneratorExit:
                    with items.operation.step():
                        generator.close()
                    raise
                except BaseException as thrown:
                    step = functools.partial(generator.throw, thrown)

    return call


def _of_async_generator(kind: _Kind, function: Any) -> Any:
    async def call(*args: Any, **kwargs: Any) -> Any:
        generator = function(*args, **kwargs)
        step = functools.partial(generator.asend, None)
        with _Items(kind, args, kwargs) as items:
            while True:
                try:
                    with items.operation.step():
                        item = await step()
                except StopAsyncIteration:
                    return
                try:
                    step = functools.partial(generator.asend, (yield items.kept(item)))
                except GeneratorExit:
                    with items.operation.step():
                        await generator.aclose()
                    raise
                except BaseException as thrown:
                    step = functools.partial(generator.athrow, thrown)

    return call


class _Items:
    """What a generator yields, under its operation. One that is closed before its end has not failed."""

    def __init__(self, kind: _Kind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.operation = Operation(kind.name, kind.attributes)
        self.operation.begin()
        kind.set_input(self.operation, args, kwargs)
        self._first: list[Any] = []
        self._n = 0

    def kept(self, item: Any) -> Any:
        self._n += 1
        if self._n <= MAX_ITEMS and self.operation.kept:
            self._first.append(jsonable(item))
        return item

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.operation.set_attribute(ITEMS, self._n)
        self.operation.set_output(self._first)
        self.operation.end(None if isinstance(error, GeneratorExit) else error)
