"""What an agent says in the form of Anthropic's messages, as messages of a chat completion."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

import orjson

from leyden.proxy.apis.fields import flat, invalid, object_of, objects, only, text_of, unsupported

INVALID = "INVALID_JSON"  # the field that holds arguments which are no JSON object, as Anthropic's own documentation proposes
_REMEMBERED = 32 * 2**20  # bytes of arguments, about
_ENTRY = 300  # bytes of a call besides its arguments

_HINTS = {"type", "cache_control", "citations"}  # change no answer: a cache is the engine's own


class Written:
    """Arguments as a model wrote them, by call. ``input`` is an object, which keeps no white space: told again to the engine from that
    alone, the next prompt would not begin with the ids that were sampled."""

    def __init__(self) -> None:
        self._texts: OrderedDict[tuple[str, int], str] = OrderedDict()  # least recently told first
        self._size = 0

    def read(self, call_id: str, arguments: str) -> str:
        """The ``input`` of a call, in JSON: as it was written, since a number that went through Python's or ours may be another; of
        arguments that are no object, an object with the text by the name ``INVALID_JSON``."""
        try:
            value = orjson.loads(arguments or "{}")
        except orjson.JSONDecodeError:
            value = None
        if not isinstance(value, dict):
            return orjson.dumps({INVALID: arguments}).decode()
        self._remember(_key(call_id, value), arguments)
        return arguments or "{}"

    def tell(self, call_id: str, given: dict[str, Any]) -> str:
        """The arguments of a call that comes back: as they were written, if the agent left them alone."""
        key = _key(call_id, given)
        text = self._texts.get(key)
        if text is not None and orjson.loads(text or "{}") == given:
            self._texts.move_to_end(key)
            return text
        if set(given) == {INVALID} and isinstance(given[INVALID], str):
            return given[INVALID]
        return json.dumps(given, ensure_ascii=False)  # a space behind comma and colon, as models write it

    def _remember(self, key: tuple[str, int], text: str) -> None:
        if (before := self._texts.pop(key, None)) is not None:
            self._size -= len(before) + _ENTRY
        self._texts[key] = text
        self._size += len(text) + _ENTRY
        while self._size > _REMEMBERED:
            self._size -= len(self._texts.popitem(last=False)[1]) + _ENTRY


def _key(call_id: str, value: dict[str, Any]) -> tuple[str, int]:
    """Some engines number the calls of each conversation (``functions.add:0``): the value tells those of two attempts apart. One that
    comes from JavaScript has 1 for 1.0; their hashes are the same."""
    return call_id, hash(_frozen(value))


def _frozen(value: Any) -> Hashable:
    if isinstance(value, dict):
        return frozenset((name, _frozen(item)) for name, item in value.items())
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def messages_of(body: dict[str, Any], written: Written) -> list[dict[str, Any]]:
    """``system`` and ``messages`` as chat messages. Raises ``Refusal`` (400) naming the block."""
    messages: list[dict[str, Any]] = []
    if body.get("system") is not None:
        messages.append({"role": "system", "content": _content(body["system"], "system")})
    given = objects(body.get("messages"), "messages")
    if not given:
        raise invalid("messages", "is empty")
    for number, message in enumerate(given):
        where = f"messages[{number}]"
        only(message, {"role", "content"}, where)
        role, content = message.get("role"), message.get("content")
        if role == "assistant":
            messages.append(_assistant(content, f"{where}.content", written))
        elif role == "user":
            messages += _user(content, f"{where}.content")
        elif role == "system":
            messages.append({"role": "system", "content": _content(content, f"{where}.content")})
        else:
            raise invalid(f"{where}.role", "is neither user nor assistant")
    return messages


def _assistant(content: Any, where: str, written: Written) -> dict[str, Any]:
    if isinstance(content, str):
        return {"role": "assistant", "content": content}
    texts: list[dict[str, Any]] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for number, block in enumerate(objects(content, where)):
        here, kind = f"{where}[{number}]", block.get("type")
        if kind == "thinking":
            only(block, {"thinking", "signature", *_HINTS}, here)
            thoughts.append(text_of(block.get("thinking"), f"{here}.thinking"))
        elif kind == "tool_use":
            only(block, {"id", "name", "input", "caller", *_HINTS}, here)
            call_id, name = text_of(block.get("id"), f"{here}.id"), text_of(block.get("name"), f"{here}.name")
            if not isinstance(block.get("input"), dict):
                raise invalid(f"{here}.input", "is not an object")
            function = {"name": name, "arguments": written.tell(call_id, block["input"])}
            calls.append({"id": call_id, "type": "function", "function": function})
        else:
            texts.append(_part(block, here))
    message: dict[str, Any] = {"role": "assistant", "content": flat(texts) if texts or not calls else None}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _user(content: Any, where: str) -> list[dict[str, Any]]:
    """Results of tools are messages of their own, in the order in which the blocks come."""
    if isinstance(content, str):
        return [{"role": "user", "content": content}]
    messages: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    for number, block in enumerate(objects(content, where)):
        here = f"{where}[{number}]"
        if block.get("type") != "tool_result":
            parts.append(_part(block, here))
            continue
        if parts:
            messages.append({"role": "user", "content": flat(parts)})
            parts = []
        only(block, {"tool_use_id", "content", "is_error", *_HINTS}, here)
        text = _content(block.get("content") or "", f"{here}.content")
        result = {"role": "tool", "tool_call_id": text_of(block.get("tool_use_id"), f"{here}.tool_use_id"), "content": text}
        messages.append({**result, "is_error": True} if block.get("is_error") else result)
    return [*messages, {"role": "user", "content": flat(parts)}] if parts or not messages else messages


def _content(content: Any, where: str) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    return flat([_part(block, f"{where}[{number}]") for number, block in enumerate(objects(content, where))])


def _part(block: dict[str, Any], where: str) -> dict[str, Any]:
    kind = block.get("type")
    if kind == "text":
        only(block, {"text", *_HINTS}, where)
        return {"type": "text", "text": text_of(block.get("text"), f"{where}.text")}
    if kind == "image":
        only(block, {"source", *_HINTS}, where)
        source = object_of(block.get("source"), f"{where}.source")
        if source.get("type") == "base64":
            media, data = (text_of(source.get(name), f"{where}.source.{name}") for name in ("media_type", "data"))
            return {"type": "image_url", "image_url": {"url": f"data:{media};base64,{data}"}}
        if source.get("type") == "url":
            return {"type": "image_url", "image_url": {"url": text_of(source.get("url"), f"{where}.source.url")}}
        raise unsupported(f"{where}.source.type", "it is neither base64 nor url")
    raise unsupported(f"{where}.type", f"{kind} is no part of a chat message")
