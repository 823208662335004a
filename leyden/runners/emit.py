"""Things an agent says while it runs, each kept as a span of its attempt.

Outside an attempt nobody listens: nothing is kept then, and nothing fails. A reward is more than that: ``emit_reward`` (rewards.py) raises.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from leyden.errors import UsageError
from leyden.runners.failures import describe
from leyden.runners.tracer import current_recorder, jsonable
from leyden.types import Span

ANNOTATION, MESSAGE, OBJECT, EXCEPTION = "leyden.annotation", "leyden.message", "leyden.object", "leyden.exception"

logger = logging.getLogger("leyden.tracing")


def emit_annotation(annotation: Mapping[str, Any]) -> Span | None:
    """Names and values about this moment of the attempt; nested ones are flattened with dots. None outside an attempt."""
    return note(ANNOTATION, flat(jsonable(dict(annotation))))


def emit_message(message: str, attributes: Mapping[str, Any] | None = None) -> Span | None:
    """A text. None outside an attempt."""
    return note(MESSAGE, {f"{MESSAGE}.body": str(message), **(attributes or {})})


def emit_object(value: Any, attributes: Mapping[str, Any] | None = None) -> Span | None:
    """A value of JSON, as it is now. None outside an attempt. Raises ``UsageError`` for what JSON has no form for."""
    return note(OBJECT, {OBJECT: _checked(value), **(attributes or {})})


def emit_exception(exception: BaseException, attributes: Mapping[str, Any] | None = None) -> Span | None:
    """An exception that the agent has handled. None outside an attempt."""
    return note(EXCEPTION, {**exception_attributes(exception), **(attributes or {})}, error=describe(exception))


def note(name: str, attributes: Mapping[str, Any], error: str | None = None) -> Span | None:
    """A span of no length in the running attempt; outside one, a line for whoever debugs."""
    recorder = current_recorder()
    if recorder is None:
        logger.debug("%s outside a rollout is kept nowhere", name)
        return None
    return recorder.note(name, jsonable(dict(attributes)), error)


def exception_attributes(exception: BaseException) -> dict[str, str]:
    """Under OpenTelemetry's names."""
    kind = type(exception)
    message = describe(exception).removeprefix(kind.__name__).removeprefix(": ")
    return {"exception.type": f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."), "exception.message": message}


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """``{"a": {"b": 1}}`` as ``{"a.b": 1}``."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) and value else {f"{prefix}{name}": value}
    return found


def _checked(value: Any) -> Any:
    """A copy of a value of JSON."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"emit_object takes a value of JSON: {error}", "give dicts, lists, texts, numbers, booleans and None") from error
