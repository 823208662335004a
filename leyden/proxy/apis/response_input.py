"""What an agent says in the form of OpenAI's Responses, as messages of a chat completion: one message a turn, however many items it had."""

from __future__ import annotations

from typing import Any

from leyden.proxy.apis.fields import flat, invalid, objects, only, text_of, unsupported

ITEM_IDS = ("rs", "msg", "fc")  # of reasoning, messages and calls: prefix, the response's own part, number

_IGNORED = {"id", "status", "type", "phase"}  # say nothing that a model reads


def messages_of(body: dict[str, Any]) -> list[dict[str, Any]]:
    """``instructions`` and ``input`` as chat messages. Raises ``Refusal`` (400) naming the item."""
    turns = _Turns()
    if body.get("instructions") is not None:
        turns.add({"role": "system", "content": text_of(body["instructions"], "instructions")})
    given = body.get("input")
    if isinstance(given, str):
        turns.add({"role": "user", "content": given})
    elif not isinstance(given, list) or not given:
        raise invalid("input", "is neither a text nor a list of items")
    else:
        for number, item in enumerate(objects(given, "input")):
            turns.read(item, f"input[{number}]")
    turns.end()
    return turns.messages


class _Turns:
    """Items of one response, reasoning, text and calls, are one assistant message again; ids that the proxy gave tell responses apart."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._reasoning: dict[str, Any] | None = None  # waits for the message or the call that it led to
        self._open: dict[str, Any] | None = None  # the assistant message to which further items may belong
        self._of: str | None = None  # and its response, where that is known

    def read(self, item: dict[str, Any], where: str) -> None:
        kind = item.get("type") or ("message" if "role" in item else None)
        if kind == "message":
            self._message(item, where)
        elif kind == "function_call":
            only(item, {"call_id", "name", "arguments", *_IGNORED}, where)
            call = {name: text_of(item.get(name), f"{where}.{name}") for name in ("call_id", "name", "arguments")}
            function = {"name": call["name"], "arguments": call["arguments"]}
            turn = self._assistant(item)
            turn.setdefault("tool_calls", []).append({"id": call["call_id"], "type": "function", "function": function})
        elif kind == "function_call_output":
            only(item, {"call_id", "output", *_IGNORED}, where)
            content = _content(item.get("output"), f"{where}.output")
            self.add({"role": "tool", "tool_call_id": text_of(item.get("call_id"), f"{where}.call_id"), "content": content})
        elif kind == "reasoning":
            self._reason(item, where)
        else:
            raise unsupported(f"{where}.type" if kind else where, f"{kind or 'an item without a type'} is nothing that an engine reads")

    def add(self, message: dict[str, Any]) -> None:
        self.end()
        self.messages.append(message)

    def end(self) -> None:
        """No further item belongs to the assistant's turn."""
        if self._reasoning is not None:
            self._assistant(self._reasoning)
        self._open = None

    def _message(self, item: dict[str, Any], where: str) -> None:
        only(item, {"role", "content", *_IGNORED}, where)
        role = item.get("role")
        if role not in ("user", "assistant", "system", "developer"):
            raise invalid(f"{where}.role", "is none of user, assistant, system, developer")
        content = _content(item.get("content"), f"{where}.content")
        if role != "assistant":
            self.add({"role": "system" if role == "developer" else role, "content": content})  # chat templates know no developer
            return
        same = self._of is not None and self._of == _response_of(item.get("id"))
        if self._open is not None and (self._open["content"] is not None or ("tool_calls" in self._open and not same)):
            self.end()  # a second message is a turn of its own
        self._assistant(item)["content"] = content

    def _reason(self, item: dict[str, Any], where: str) -> None:
        only(item, {"summary", "content", "encrypted_content", *_IGNORED}, where)
        parts = objects(item.get("content"), f"{where}.content")
        if not parts and (item.get("summary") or item.get("encrypted_content")):
            raise unsupported(where, "it holds no reasoning text, only a summary or another provider's secret")
        text = "".join(text_of(part.get("text"), f"{where}.content") for part in parts)
        self.end()
        if text:
            self._reasoning = {"id": item.get("id"), "text": text}

    def _assistant(self, item: dict[str, Any]) -> dict[str, Any]:
        """The message that the item belongs to."""
        response = _response_of(item.get("id"))
        waiting, self._reasoning = self._reasoning, None
        if self._open is None or (response and self._of and response != self._of):
            self._open = {"role": "assistant", "content": None}
            self.messages.append(self._open)
            self._of = None
        if waiting is not None:
            self._open["reasoning_content"] = waiting["text"]
        self._of = self._of or response
        return self._open


def _response_of(item_id: Any) -> str | None:
    prefix, _, rest = item_id.partition("_") if isinstance(item_id, str) else ("", "", "")
    return rest.rpartition("_")[0] or None if prefix in ITEM_IDS else None


def _content(content: Any, where: str) -> str | list[dict[str, Any]] | None:
    if isinstance(content, str):
        return content
    return flat([_part(part, f"{where}[{number}]") for number, part in enumerate(objects(content, where))])


def _part(part: dict[str, Any], where: str) -> dict[str, Any]:
    kind = part.get("type")
    if kind in ("input_text", "output_text", "text"):
        only(part, {"type", "text", "annotations", "logprobs"}, where)
        return {"type": "text", "text": text_of(part.get("text"), f"{where}.text")}
    if kind == "refusal":
        return {"type": "refusal", "refusal": text_of(part.get("refusal"), f"{where}.refusal")}
    if kind == "input_image":
        only(part, {"type", "image_url", "detail"}, where)
        detail = {"detail": part["detail"]} if part.get("detail") else {}
        return {"type": "image_url", "image_url": {"url": text_of(part.get("image_url"), f"{where}.image_url"), **detail}}
    if kind == "input_audio":
        return {"type": "input_audio", "input_audio": part.get("input_audio")}
    if kind == "input_file":
        only(part, {"type", "file_data", "filename"}, where)
        return {"type": "file", "file": {name: part[name] for name in ("file_data", "filename") if part.get(name)}}
    raise unsupported(f"{where}.type", f"{kind} is no part of a chat message")
