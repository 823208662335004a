"""An attempt as JSON, field by field: for the saved file, for the store's record, and for whoever scores it again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, from_json, to_json, to_jsonable_python

from leyden.environments.attempt import AttemptResult, StopReason
from leyden.environments.output import RunOutput, RunStatus, ToolCall, ToolOutcome
from leyden.environments.score import Score
from leyden.errors import UsageError
from leyden.record import CACHE_STRINGS

RECORD = "leyden.attempt"  # the name of the span that holds the record of a stored attempt
RECORD_ATTRIBUTE = "leyden.record"
_UNWRITABLE = (PydanticSerializationError, ValueError, TypeError, RecursionError)


def encode_attempt(attempt: AttemptResult) -> bytes:
    """The attempt as one JSON object. NaN and infinities keep their names.

    Raises ``UsageError`` that names the field that is no JSON: an answer of a type of its own should be a pydantic model or a dataclass.
    """
    parts = {**vars(attempt), "run": _named_values(attempt.run), "score": _named_values(attempt.score)}
    return encode(parts, lambda: {"run": attempt.run, "score": attempt.score})


def _named_values(record: RunOutput | Score | None) -> Any:
    """What the encoder would find out by itself, three times as slowly (measured)."""
    return vars(record) if type(record) in (RunOutput, Score) else record


def encode(value: Any, parts: Any = None) -> bytes:
    """As ``encode_attempt``; ``parts`` gives what the error should look into, by name."""
    try:
        return _to_json(value)
    except _UNWRITABLE as error:
        name, reason = _culprit(value if parts is None else parts(), str(error))
        hint = "answer with text, JSON values, a pydantic model or a dataclass"
        raise UsageError(f"{name or 'it'} cannot be written as JSON: {reason}", hint) from error


def decode_attempt(data: bytes | str | Mapping[str, Any], output_type: Any = None) -> AttemptResult:
    """What ``encode_attempt`` wrote. With an ``output_type`` the answer is one again, where it is no text; without, it stays JSON.

    Raises ``UsageError`` for what is not an attempt.
    """
    try:
        record = dict(parse(data) if isinstance(data, bytes | str) else data)
        run, score = record.pop("run", None), record.pop("score", None)
        stop = StopReason(record.pop("stop_reason"))
        if isinstance(record["index"], bool) or not isinstance(record["index"], int):
            raise TypeError(f"its index is {record['index']!r:.40}")
        return AttemptResult(
            run=None if run is None else _run(run, output_type),
            score=None if score is None else Score(**_known(Score, score)),
            stop_reason=stop,
            **_known(AttemptResult, record),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"this is no attempt: {type(error).__name__}: {error}", "was the file written by leyden, and whole?") from error


def parse(data: bytes | str) -> Any:
    """What ``encode`` wrote. Raises ``ValueError``."""
    try:
        return from_json(data, cache_strings=CACHE_STRINGS)
    except ValueError:
        return json.loads(data)  # it takes lone surrogates


def _to_json(value: Any) -> bytes:
    """What a model says may hold half a character; that half is kept, as an escape, for whoever has to decide what it is worth."""
    try:
        return to_json(value, inf_nan_mode="constants")
    except PydanticSerializationError as error:
        if "surrogates not allowed" not in str(error):
            raise
        return json.dumps(to_jsonable_python(value, inf_nan_mode="constants"), separators=(",", ":")).encode()


def _run(record: Mapping[str, Any], output_type: Any) -> RunOutput:
    values = _known(RunOutput, record)
    values["tools"] = tuple(
        ToolCall(**{**_known(ToolCall, call), "outcome": ToolOutcome(call.get("outcome", "ok"))}) for call in values.get("tools", ())
    )
    for name in ("messages", "tool_schemas", "generation_ids"):
        values[name] = tuple(values.get(name, ()))
    values["status"] = RunStatus(values.get("status", "completed"))
    values["content"] = _content(values.get("content"), output_type)
    return RunOutput(**values)


def _content(content: Any, output_type: Any) -> Any:
    if output_type in (None, str) or content is None:
        return content
    try:
        return _adapter(output_type).validate_python(content)
    except ValidationError:  # an answer of before the type was changed: as it is
        return content


@cache
def _adapter(output_type: Any) -> TypeAdapter[Any]:
    return TypeAdapter(output_type)


def _known(kind: type[Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of later versions are left out."""
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in record.items() if name in names}


def _culprit(value: Any, reason: str) -> tuple[str, str]:
    """The deepest named part that cannot be written, and why."""
    parts: Mapping[str, Any] = value if isinstance(value, Mapping) else getattr(value, "__dict__", None) or {}
    if isinstance(value, list | tuple):
        parts = {str(place): item for place, item in enumerate(value)}
    for name, part in parts.items():
        try:
            _to_json(part)
        except _UNWRITABLE as error:
            deeper, why = _culprit(part, str(error)) if not isinstance(error, RecursionError) else ("", "it holds itself")
            return f"{name}.{deeper}" if deeper else str(name), why
    return "", reason
