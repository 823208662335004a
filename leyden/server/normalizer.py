"""What spans say about calls of models and tools, read out of the names their instrumentations use.

Sources, by their names in 2026: OpenTelemetry's gen_ai conventions with the names they had before, OpenInference, OpenLLMetry (Traceloop),
and the OpenAI Agents SDK's own export. The attributes are stored beside it: a better normaliser can read them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from leyden.server.codec import redact_text

NORMALIZER = 1  # the version, kept with each row: raise it with every change of what is read
MAX_TEXT = 256  # characters: these columns are for filters, whatever stands in the attributes

T = TypeVar("T")

_OPERATIONS = {  # other kinds keep their own names
    # openinference.span.kind
    "llm": "chat",
    "embedding": "embeddings",
    "tool": "execute_tool",
    "agent": "invoke_agent",
    "retriever": "retrieval",
    # traceloop.span.kind, and llm.request.type
    "workflow": "invoke_workflow",
    "completion": "text_completion",
    # span_data.type
    "generation": "chat",
    "response": "chat",
    "function": "execute_tool",
}
_KINDS = ("openinference.span.kind", "traceloop.span.kind", "llm.request.type", "span_data.type")
_NAMES = {  # of several that are there the first counts
    "model": (
        "gen_ai.response.model", "gen_ai.request.model", "llm.response.model_name", "llm.model_name", "llm.request.model_name",
        "embedding.model_name", "reranker.model_name", "span_data.model",
    ),
    "provider": ("gen_ai.provider.name", "gen_ai.system", "llm.provider", "llm.system"),
    "finish_reason": (
        "gen_ai.response.finish_reasons", "gen_ai.response.finish_reason", "llm.finish_reason", "gen_ai.completion.0.finish_reason",
        "llm.response.finish_reason", "gen_ai.response.stop_reason", "llm.response.stop_reason",
    ),
    "tool_name": ("gen_ai.tool.name", "tool.name", "tool_call.function.name"),
    "agent_name": ("gen_ai.agent.name", "agent.name"),
    "conversation_id": (
        "gen_ai.conversation.id", "session.id", "traceloop.association.properties.session_id",
        "traceloop.association.properties.conversation_id", "traceloop.association.properties.thread_id",
    ),
    "error_type": ("error.type", "exception.type"),
}  # fmt: skip
_COUNTS = {
    "input_tokens": ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt", "span_data.usage.input_tokens"),
    "output_tokens": (
        "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion", "span_data.usage.output_tokens",
    ),
    "cached_tokens": (
        "gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_read_input_tokens", "llm.token_count.prompt_details.cache_read",
        "span_data.usage.input_tokens_details.cached_tokens",
    ),
    "reasoning_tokens": (
        "gen_ai.usage.reasoning.output_tokens", "gen_ai.usage.reasoning_tokens", "llm.usage.reasoning_tokens",
        "llm.token_count.completion_details.reasoning", "span_data.usage.output_tokens_details.reasoning_tokens",
    ),
}  # fmt: skip
# Where an operation's subject has no name of its own among the attributes.
_SUBJECTS = {"execute_tool": "tool_name", "invoke_agent": "agent_name"}
_SUBJECT_NAMES = ("traceloop.entity.name", "span_data.name", "graph.node.id")


def normalize(name: str, attributes: Mapping[str, Any]) -> dict[str, str | int | None]:
    """A span's typed columns, None for what it does not say. Never raises, whatever the attributes hold."""
    exported = attributes.get("span_data")
    if isinstance(exported, Mapping):
        attributes = {**_flat("span_data", exported), **attributes}
    operation = _first(attributes, ("gen_ai.operation.name",), _text)
    if operation is None:
        kind = (_first(attributes, _KINDS, _text) or "").lower()
        operation = _OPERATIONS.get(kind, kind) or None
    found: dict[str, str | int | None] = {**_NOTHING, "operation": operation}
    places: dict[str, int] = {}
    for attribute, value in attributes.items():
        if (source := _SOURCES.get(attribute)) is None:
            continue
        column, place, read = source
        if place < places.get(column, len(_SOURCES)) and (known := read(value)) is not None:
            found[column], places[column] = known, place
    subject = _SUBJECTS.get(operation or "")
    if subject is not None and found[subject] is None:
        found[subject] = _first(attributes, _SUBJECT_NAMES, _text) or _text(name.removeprefix(f"{operation} "))
    return found


def _first(attributes: Mapping[str, Any], names: tuple[str, ...], read: Callable[[Any], T | None]) -> T | None:
    for name in names:
        if name in attributes and (value := read(attributes[name])) is not None:
            return value
    return None


def _text(value: Any) -> str | None:
    if isinstance(value, list) and value:
        value = value[0]
    return redact_text(value)[:MAX_TEXT] if isinstance(value, str) and value else None


def _count(value: Any) -> int | None:
    """Some senders count in floats, or write numbers as text."""
    if isinstance(value, str) and len(value) < 20 and value.isascii() and value.isdigit():
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None


def _sources() -> Iterator[tuple[str, tuple[str, int, Callable[[Any], str | int | None]]]]:
    """Attributes by name: the column, the attribute's place among those that fill it, and how it is read."""
    for columns, read in ((_NAMES, _text), (_COUNTS, _count)):
        for column, names in columns.items():
            yield from ((name, (column, place, read)) for place, name in enumerate(names))


_SOURCES = dict(_sources())
_NOTHING = {"normalizer": NORMALIZER, "operation": None, **dict.fromkeys((*_NAMES, *_COUNTS))}


def _flat(prefix: str, value: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, item in value.items():
        flat |= _flat(f"{prefix}.{name}", item) if isinstance(item, Mapping) and prefix.count(".") < 3 else {f"{prefix}.{name}": item}
    return flat
