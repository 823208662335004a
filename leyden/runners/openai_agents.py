"""The OpenAI Agents SDK's traces: its agents, model calls, tools, handoffs and guardrails, with no code in the agent.

Inside a runner nothing of them goes to OpenAI, as the SDK would have it by default; processors that the agent adds itself stay.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple
from weakref import WeakSet

from leyden.runners.failures import describe
from leyden.runners.late import when_imported
from leyden.runners.tracer import Place, about, begun, ended, gathering_recorder, jsonable, outer_place

SDK = "agents.tracing"
SCOPE = "openai-agents"
KIND = "span_data.type"  # under the SDK's own names stands whatever has none among the gen_ai conventions

_OPERATIONS = {
    "agent": "invoke_agent", "generation": "chat", "response": "chat", "function": "execute_tool", "mcp_tools": "list_tools",
    "transcription": "transcription", "speech": "speech",
}  # fmt: skip
_NAMES = {
    "agent": {"name": "gen_ai.agent.name"},
    "generation": {"model": "gen_ai.request.model", "input": "gen_ai.input.messages", "output": "gen_ai.output.messages"},
    "function": {"name": "gen_ai.tool.name", "input": "gen_ai.tool.call.arguments", "output": "gen_ai.tool.call.result"},
    "response": {"response_id": "gen_ai.response.id"},
    "transcription": {"model": "gen_ai.request.model"},
    "speech": {"model": "gen_ai.request.model"},
}
_USAGE = {
    ("input_tokens",): "gen_ai.usage.input_tokens",
    ("output_tokens",): "gen_ai.usage.output_tokens",
    ("input_tokens_details", "cached_tokens"): "gen_ai.usage.cache_read.input_tokens",
    ("output_tokens_details", "reasoning_tokens"): "gen_ai.usage.reasoning.output_tokens",
}
_SETTINGS = {name: f"gen_ai.request.{name}" for name in ("temperature", "top_p", "max_tokens", "frequency_penalty", "presence_penalty")}
_SUBJECTS = ("gen_ai.agent.name", "gen_ai.tool.name", "gen_ai.response.model", "gen_ai.request.model", "span_data.server", "span_data.name")

_joined: WeakSet[Any] = WeakSet()  # providers that tell us


@cache
def watch() -> None:
    """Join the SDK when it is imported, before anybody can add to it. It is not imported here."""
    when_imported(SDK, _take_over)


def join() -> None:
    """Join the provider that there is now, if the SDK is there: an agent may have put another in place."""
    watch()
    module = sys.modules.get(SDK)
    if module is None or not hasattr(module, "get_trace_provider"):  # a module of the agent's own may have that name
        return
    provider = module.get_trace_provider()
    if provider not in _joined:
        provider.register_processor(ToRecorder())
        _joined.add(provider)


def _take_over(module: ModuleType) -> None:
    """Put our provider where none is at work yet: the SDK would make one that exports to OpenAI."""
    setup = sys.modules.get(f"{SDK}.setup")
    if setup is None or not hasattr(module, "set_trace_provider") or getattr(setup, "GLOBAL_TRACE_PROVIDER", None) is not None:
        return
    provider = _provider_type()()
    module.set_trace_provider(provider)
    _joined.add(provider)


@cache
def _provider_type() -> Any:
    from agents.tracing.provider import DefaultTraceProvider

    class Provider(DefaultTraceProvider):
        """The SDK's own, with one processor that stays whatever the agent adds or sets."""

        def __init__(self) -> None:
            super().__init__()
            self._ours: Any = ToRecorder()
            self.set_processors([])

        def set_processors(self, processors: list[Any]) -> None:
            super().set_processors([self._ours, *processors])

    return Provider


class _Open(NamedTuple):
    """A trace or a span of the SDK that has begun."""

    own: Place
    outer: Place | None  # the innermost span that other tracers had open then
    parent_id: str
    begun_ns: int


def is_joined() -> bool:
    """False: there is nothing of the SDK's to be inside of."""
    return bool(_joined)


def place_in(outer: Place | None) -> Place | None:
    """The SDK's span that is open here, or else its trace, if that began in ``outer``: then it is inside of that, and not around it."""
    module = sys.modules.get(SDK)
    if not _joined or module is None:
        return None
    known: _Open | None = about(module.get_current_span() or module.get_current_trace())
    return known.own if known is not None and known.outer == outer else None


class ToRecorder:
    """A ``TracingProcessor`` (agents.tracing.processor_interface), without the import."""

    def on_trace_start(self, trace: Any) -> None:
        _begin(trace, trace.trace_id, None)

    def on_trace_end(self, trace: Any) -> None:
        owner, known = ended(trace)
        if owner is None:
            return
        said = {
            "gen_ai.operation.name": "invoke_workflow", "gen_ai.workflow.name": trace.name, "gen_ai.conversation.id": trace.group_id,
            "openai.agents.metadata": trace.metadata,
        }  # fmt: skip
        attributes = jsonable({name: value for name, value in said.items() if value is not None})
        owner.take({
            "trace_id": known.own.trace_id, "span_id": known.own.span_id, "parent_id": known.parent_id, "scope": SCOPE,
            "name": f"invoke_workflow {trace.name}", "start_ns": known.begun_ns, "end_ns": time.time_ns(), "attributes": attributes,
        })  # fmt: skip

    def on_span_start(self, span: Any) -> None:
        _begin(span, span.span_id, span.parent_id or span.trace_id)

    def on_span_end(self, span: Any) -> None:
        owner, known = ended(span)
        if owner is None:
            return
        try:
            record = to_record(span, known)
        except Exception as error:  # what it holds may be of the agent's making; the SDK would only log that it is lost
            owner.left_out.add(f"a span of the OpenAI Agents SDK: {describe(error)}")
        else:
            owner.take(record)

    def shutdown(self) -> None:
        """There is nothing to end: a runner's outbox sends."""

    def force_flush(self) -> None:
        """Spans are on their way already."""


def _begin(part: Any, sdk_id: str, sdk_parent: str | None) -> None:
    """``part``, a trace or a span, is the running attempt's, if there is one. Its id alone would not say whose: an agent may choose it, and
    two attempts at one task choose the same."""
    owner = gathering_recorder()
    if owner is None:
        return
    outer = outer_place()
    inner = place_in(outer)
    if inner is not None:
        parent_id = _digits(sdk_parent) if sdk_parent is not None else inner.span_id
    else:
        parent_id = outer.span_id if outer is not None and outer.trace_id == owner.trace_id else owner.root_id
    begun(part, owner, _Open(Place(owner.trace_id, _digits(sdk_id)), outer, parent_id, time.time_ns()))


def to_record(span: Any, known: _Open) -> dict[str, Any]:
    """The SDK's span as a ``Span``'s fields, in the attempt's trace."""
    kind, attributes = span.span_data.type, attributes_of(span.span_data)
    error = span.error or {}
    if error.get("data"):
        attributes["error.data"] = error["data"]
    return {
        "trace_id": known.own.trace_id, "span_id": known.own.span_id, "parent_id": known.parent_id, "scope": SCOPE,
        "name": _title(_OPERATIONS.get(kind, kind), attributes), "start_ns": _ns(span.started_at), "end_ns": _ns(span.ended_at),
        "status": "error" if error else "unset", "status_message": error.get("message"), "attributes": jsonable(attributes),
    }  # fmt: skip


def attributes_of(data: Any) -> dict[str, Any]:
    """gen_ai names for what has one, and ``span_data.…`` for the rest: nothing that the SDK would have exported is missing."""
    kind = data.type
    exported = {name: value for name, value in data.export().items() if value is not None and name != "type"}
    attributes: dict[str, Any] = {KIND: kind}
    if kind in _OPERATIONS:
        attributes["gen_ai.operation.name"] = _OPERATIONS[kind]
    if isinstance(usage := exported.pop("usage", None), Mapping):
        for path, name in _USAGE.items():
            if (count := _at(usage, path)) is not None:
                attributes[name] = count
    if isinstance(settings := exported.get("model_config"), Mapping):
        attributes |= {name: settings[key] for key, name in _SETTINGS.items() if settings.get(key) is not None}
    names = _NAMES.get(kind, {})
    attributes |= {names.get(name, f"span_data.{name}"): value for name, value in exported.items()}
    if kind == "response":
        attributes |= _of_response(data)
    return attributes


def _of_response(data: Any) -> dict[str, Any]:
    """What the SDK leaves out of its own export, because OpenAI's servers know it already."""
    found = {"gen_ai.input.messages": data.input}
    if (response := data.response) is not None:
        found |= {
            "gen_ai.response.model": response.model,
            "gen_ai.system_instructions": response.instructions,
            "gen_ai.output.messages": [item.model_dump(exclude_none=True) for item in response.output],
            "gen_ai.tool.definitions": [tool.model_dump(exclude_none=True) for tool in response.tools],
        }
    return {name: value for name, value in found.items() if value}


def _title(operation: str, attributes: Mapping[str, Any]) -> str:
    if operation == "handoff":
        return f"handoff {attributes.get('span_data.from_agent')} to {attributes.get('span_data.to_agent')}"
    for name in _SUBJECTS:
        if isinstance(subject := attributes.get(name), str) and subject != operation:
            return subject if operation == "custom" else f"{operation} {subject}"
    return operation


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _ns(moment: str | None) -> int:
    return int(datetime.fromisoformat(moment).timestamp() * 1e6) * 1000 if moment else 0


def _digits(sdk_id: str) -> str:
    """An id of ours for one of the SDK's, or of the agent's making: always the same."""
    return hashlib.sha256(sdk_id.encode()).hexdigest()[:16]
