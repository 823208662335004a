"""What was asked and answered in a traced call, as OpenAI's chat API has it, whichever convention the trace is written in.

Conventions, by their names in 2026: OpenTelemetry's ``gen_ai`` (messages of parts; OpenLLMetry writes them too by now), the flat
``gen_ai.prompt.N``/``gen_ai.completion.N`` of older OpenLLMetry (Traceloop) and of AgentOps, OpenInference, and the OpenAI Agents SDK's
own export.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leyden.algorithm.traces.attributes import as_dict, dicts, first, nested, parsed

Message = dict[str, Any]

_ITEMS = ("message", "function_call", "function_call_output", "reasoning")  # of the Responses API
_TEXT = ("text", "input_text", "output_text", None)
_FINISH = {"tool_call": "tool_calls", "end_turn": "stop", "stop_sequence": "stop", "tool_use": "tool_calls", "max_tokens": "length"}


@dataclass(frozen=True)
class Exchange:
    """``answers``: one a choice. None where the trace does not hold it; ``finish``: of each answer that says so itself."""

    asked: list[Message] | None
    answers: list[Message] | None
    tools: list[Any] | None
    finish: list[str | None]


def read_exchange(attributes: Mapping[str, Any]) -> Exchange:
    """Never raises, whatever the attributes hold. A message without a role has none: nobody can tell who said it."""
    exported = as_dict(nested(attributes, "span_data"))
    asked = (
        _messages(attributes.get("gen_ai.input.messages"))
        or _messages(nested(attributes, "gen_ai.prompt"))
        or _messages(nested(attributes, "llm.input_messages"))
        or _messages(exported.get("input"))
        or dicts(_request(attributes).get("messages"))
    )
    answered = (
        _messages(attributes.get("gen_ai.output.messages"))
        or _messages(nested(attributes, "gen_ai.completion"))
        or _messages(nested(attributes, "llm.output_messages"))
        or _messages(exported.get("output"))
    )
    system = _system(attributes.get("gen_ai.system_instructions"))
    return Exchange(
        asked=[*system, *_chats(asked)] if asked else None,
        answers=[{"role": "assistant", **answer} for answer in _chats(answered)] if answered else None,
        tools=_tools(attributes),
        finish=[finish(message.get("finish_reason")) for message in answered or ()],
    )


def finish(reason: Any) -> str | None:
    """A finish reason by OpenAI's name for it."""
    return _FINISH.get(reason, reason) if isinstance(reason, str) and reason else None


def _messages(value: Any) -> list[dict[str, Any]]:
    value = parsed(value)
    if isinstance(value, str):  # a text that was all of the input; or JSON that a limit cut off
        return [{"role": "user", "content": value}] if value and not value.startswith("[{") else []
    found = dicts(value)
    if any(message.get("type") in _ITEMS for message in found):
        return _of_items(found)
    return [as_dict(message.get("message")) or message for message in found]


def _of_items(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Items of the Responses API: what the model said in one turn comes as several."""
    messages: list[dict[str, Any]] = []
    for item in items:
        kind = item.get("type", "message")
        if kind == "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")})
        elif kind == "function_call":
            if not messages or messages[-1].get("role") != "assistant":
                messages.append({"role": "assistant", "content": None})
            call = {"id": item.get("call_id"), "name": item.get("name"), "arguments": item.get("arguments")}
            messages[-1] = {**messages[-1], "tool_calls": [*messages[-1].get("tool_calls", ()), call]}
        elif kind == "message":
            messages.append({"role": item.get("role"), "content": item.get("content")})
    return messages


def _request(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """OpenInference keeps the whole request as JSON."""
    request = as_dict(parsed(attributes.get("input.value")))
    return request if dicts(request.get("messages")) else {}


def _system(value: Any) -> list[Message]:
    content = _plain_content(value)
    return [{"role": "system", "content": content}] if content else []


def _chats(messages: list[dict[str, Any]]) -> list[Message]:
    return [chat for message in messages for chat in _chat(message)]


def _chat(message: dict[str, Any]) -> list[Message]:
    """One message; of several tools' results, one each."""
    parts = message.get("parts")
    if not isinstance(parts, list):
        return [_plain(message)]
    results = [
        {"role": "tool", "tool_call_id": part.get("id"), "content": _text(part.get("response", part.get("result")))}
        for part in _parts(parts)
        if part.get("type") == "tool_call_response"
    ]
    if results:
        return results
    chat: Message = {"role": message["role"]} if message.get("role") else {}
    chat["content"] = _content(_parts(parts))
    if calls := [_tool_call(part) for part in _parts(parts) if part.get("type") == "tool_call"]:
        chat["tool_calls"] = calls
    thoughts = [_text(part.get("content")) for part in _parts(parts) if part.get("type") == "reasoning"]
    return [chat | {"reasoning_content": "\n".join(thoughts)} if thoughts else chat]


def _plain(message: dict[str, Any]) -> Message:
    """OpenAI's own form, with the names that flat conventions give to its parts."""
    chat = {name: value for name, value in message.items() if name not in ("contents", "finish_reason") and value is not None}
    chat["content"] = _plain_content(first(message, "content", "contents"))
    calls = dicts(parsed(chat.pop("tool_calls", None)))
    return chat | {"tool_calls": [_tool_call(call) for call in calls]} if calls else chat


def _plain_content(value: Any) -> Any:
    """Text stays as it is, JSON in it too, unless it is a list of parts that had to be sent as text."""
    parts = parsed(value)
    if (
        isinstance(parts, list)
        and parts
        and all(isinstance(part, dict) and ("type" in part or "message_content" in part) for part in parts)
    ):
        return _content(_parts(parts))
    return value if value is None or isinstance(value, str) else _text(value)


def _tool_call(call: dict[str, Any]) -> dict[str, Any]:
    call = as_dict(call.get("tool_call")) or call
    function = as_dict(call.get("function")) or call
    arguments = function.get("arguments")
    return {
        "id": call.get("id"),
        "type": "function",
        "function": {"name": function.get("name"), "arguments": "{}" if arguments is None else _text(arguments)},
    }


def _parts(value: Any) -> list[dict[str, Any]]:
    items = value if isinstance(value, list) else []
    inner = (item.get("message_content", item) if isinstance(item, dict) else {"type": "text", "text": item} for item in items)
    return [item for item in inner if isinstance(item, dict)]


def _content(parts: list[dict[str, Any]]) -> Any:
    """A text where it is one; a list of parts where it is more, or more than text; None where it is nothing."""
    kept = [part for part in parts if part.get("type") not in ("tool_call", "tool_call_response", "reasoning")]
    texts = [part.get("text", part.get("content")) for part in kept if part.get("type") in _TEXT]
    if len(texts) == len(kept) <= 1:
        return texts[0] if texts else None
    return [{"type": "text", "text": part.get("text", part.get("content"))} if part.get("type") in _TEXT else part for part in kept]


def _tools(attributes: Mapping[str, Any]) -> list[Any] | None:
    defined = parsed(attributes.get("gen_ai.tool.definitions"))
    if not isinstance(defined, list):
        schemas = dicts(nested(attributes, "llm.tools"))
        defined = [parsed(as_dict(tool.get("tool")).get("json_schema")) for tool in schemas]
    if not defined:
        flat = ("llm.request.functions", "gen_ai.request.functions", "gen_ai.request.tools")
        defined = next((found for name in flat if isinstance(found := nested(attributes, name), list)), None)
    return [_tool(tool) for tool in dicts(defined) or dicts(_request(attributes).get("tools"))] or None


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    if isinstance(tool.get("function"), dict):
        return tool
    function = {name: parsed(tool[name]) for name in ("name", "description", "parameters", "strict") if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
