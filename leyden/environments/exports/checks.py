"""What is wrong with messages, for the formats' validators. Written against the formats' own documents, not against what makes rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_KEYS = {"system": {"content"}, "user": {"content"}, "assistant": {"content", "tool_calls"}, "tool": {"content", "tool_call_id"}}


def check_messages(messages: Any) -> str | None:
    """A conversation, with a user's message in it and the assistant's at its end."""
    if not isinstance(messages, list) or not messages:
        return "messages are a list that is not empty"
    open_calls: set[str] = set()
    for message in messages:
        problem = _check_message(message, open_calls)
        if problem:
            return problem
    if open_calls:
        return "a call has no result"
    if messages[-1]["role"] != "assistant" or messages[-1].get("tool_calls"):
        return "a conversation ends in the assistant's text"
    return None if any(message["role"] == "user" for message in messages) else "a conversation has a user's message"


def _check_message(message: Any, open_calls: set[str]) -> str | None:
    if not isinstance(message, dict) or message.get("role") not in _KEYS or set(message) - {"role"} - _KEYS[message["role"]]:
        return "a message has a role (system, user, assistant, tool) and what belongs to it"
    if not isinstance(message.get("content"), str):
        return "a message's content is text"
    if message["role"] == "tool":
        if message.get("tool_call_id") not in open_calls:
            return "a result answers no open call"
        open_calls.discard(message["tool_call_id"])
        return None
    if open_calls:
        return "a call has no result"
    for call in message.get("tool_calls", ()):
        function = call.get("function", {}) if isinstance(call, dict) else {}
        if set(call) != {"id", "type", "function"} or call["type"] != "function" or set(function) != {"name", "arguments"}:
            return "a call has an id, a type and a function with name and arguments"
        if call["id"] in open_calls or not isinstance(_parsed(function["arguments"]), dict):
            return "a call has an id of its own, and arguments that are a JSON object"
        open_calls.add(call["id"])
    if not message.get("tool_calls") and not message["content"].strip():
        return "a message says nothing"
    return None


def check_tools(row: Mapping[str, Any], *conversations: Any) -> str | None:
    """Every tool that is called is on offer, and is declared as chat completions do."""
    tools = row.get("tools", [])
    if not isinstance(tools, list) or ("tools" in row and not tools):
        return "tools are a list that is not empty, or are left out"
    for tool in tools:
        if not isinstance(tool, dict) or tool.get("type") != "function" or not isinstance(tool.get("function", {}).get("name"), str):
            return "a tool has the type function and a name"
    names = {tool["function"]["name"] for tool in tools}
    for messages in conversations:
        for message in messages:
            if any(call["function"]["name"] not in names for call in message.get("tool_calls", ())):
                return "a tool is called that is not on offer"
    return None


def _parsed(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return None
