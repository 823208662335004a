"""What an engine answered, in the form of Anthropic's messages: whole, or as the events of a stream.

Event names and their order: https://docs.anthropic.com/en/docs/build-with-claude/streaming.
"""

from __future__ import annotations

from typing import Any

import orjson

from leyden.proxy import sse
from leyden.proxy.apis.answer_parts import reasoning_of
from leyden.proxy.apis.message_input import Written
from leyden.proxy.asked import Asked
from leyden.proxy.refusal import Refusal

_ERRORS = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error", 409: "conflict_error",
    413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error", 504: "timeout_error", 529: "overloaded_error",
}  # fmt: skip
_STOPS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_DELTAS = {"text": "text_delta", "thinking": "thinking_delta"}
_SIGNATURE = "leyden"  # a thought without one was broken off: clients tell it as text in the next request, or leave it out


def message_of(asked: Asked, answer: dict[str, Any], written: Written) -> dict[str, Any]:
    """A whole ``message`` of a whole chat completion."""
    choice = answer["choices"][0]
    message = choice.get("message") or {}
    content: list[dict[str, Any]] = []
    if text := reasoning_of(message):
        content.append({"type": "thinking", "thinking": text, "signature": _SIGNATURE})
    if text := message.get("content") or message.get("refusal"):
        content.append({"type": "text", "text": text})
    calls = message.get("tool_calls") or []
    for call in calls:
        block, arguments = _tool_use(call, written)
        content.append({**block, "input": orjson.Fragment(arguments)})
    whole = {**_head(asked, answer), "content": content, "usage": _usage(answer.get("usage"))}
    if asked.token_ids:
        whole |= {"prompt_token_ids": answer.get("prompt_token_ids"), "token_ids": choice.get("token_ids")}
    return whole | _stop(choice, bool(calls))


class MessageStream:
    """Blocks one after the other. A call is told when the answer is whole and recorded: half of its JSON is of no use to an agent, and
    clients fail on what turns out to be none."""

    def __init__(self, asked: Asked, written: Written) -> None:
        self._asked, self._written = asked, written
        self._started = False
        self._open: str | None = None  # type of the block that is being written
        self._blocks = 0
        self._calls: dict[int, dict[str, Any]] = {}
        self._last: dict[str, Any] = {}  # the choice with the finish reason
        self._usage: dict[str, Any] = {}
        self._token_ids: list[int] = []

    def chunk(self, chunk: dict[str, Any]) -> bytes:
        events: list[dict[str, Any]] = []
        if not self._started:
            self._started = True
            read = len(chunk.get("prompt_token_ids") or ())  # the count that an engine gives comes last
            message = {**_head(self._asked, chunk), "content": [], "usage": _usage({"prompt_tokens": read})}
            if self._asked.token_ids:
                message["prompt_token_ids"] = chunk.get("prompt_token_ids")
            events = [{"type": "message_start", "message": message}, {"type": "ping"}]
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            if text := reasoning_of(delta):
                events += self._write("thinking", text)
            if text := delta.get("content") or delta.get("refusal"):
                events += self._write("text", text)
            for number, part in enumerate(delta.get("tool_calls") or ()):
                self._add_call(part, part.get("index", number))
            self._token_ids += choice.get("token_ids") or ()
            if choice.get("finish_reason"):
                self._last = choice
        return _encode(events)

    def end(self) -> bytes:
        events = self._close()
        for _, call in sorted(self._calls.items()):
            block, arguments = _tool_use(call, self._written)
            at = {"index": self._blocks}
            events.append({"type": "content_block_start", **at, "content_block": {**block, "input": {}}})
            events.append({"type": "content_block_delta", **at, "delta": {"type": "input_json_delta", "partial_json": arguments}})
            events.append({"type": "content_block_stop", **at})
            self._blocks += 1
        stop = _stop(self._last, bool(self._calls))
        last: dict[str, Any] = {"type": "message_delta", "delta": stop, "usage": _usage(self._usage)}
        if self._asked.token_ids:
            last["token_ids"] = self._token_ids
        return _encode([*events, last, {"type": "message_stop"}])

    def refuse(self, refusal: Refusal) -> bytes:
        return _encode([error_of(refusal)])

    def _write(self, kind: str, text: str) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        if self._open != kind:
            events += self._close()
            self._open = kind
            block = {"type": "text", "text": ""} if kind == "text" else {"type": "thinking", "thinking": "", "signature": ""}
            events.append({"type": "content_block_start", "index": self._blocks, "content_block": block})
        delta = {"type": _DELTAS[kind], kind: text}
        return [*events, {"type": "content_block_delta", "index": self._blocks, "delta": delta}]

    def _close(self) -> list[dict[str, Any]]:
        if self._open is None:
            return []
        at = {"index": self._blocks}
        signed = {"type": "content_block_delta", **at, "delta": {"type": "signature_delta", "signature": _SIGNATURE}}
        events = [signed] if self._open == "thinking" else []
        self._open = None
        self._blocks += 1
        return [*events, {"type": "content_block_stop", **at}]

    def _add_call(self, part: dict[str, Any], index: int) -> None:
        call = self._calls.setdefault(index, {"id": "", "function": {"name": "", "arguments": ""}})
        function = part.get("function") or {}
        call["id"] = part.get("id") or call["id"]
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""


def error_of(refusal: Refusal) -> dict[str, Any]:
    """Anthropic's error shape, of an answer and of an event alike."""
    return {"type": "error", "error": {"type": _ERRORS.get(refusal.status, "api_error"), "message": refusal.text, "code": refusal.code}}


def _head(asked: Asked, answer: dict[str, Any]) -> dict[str, Any]:
    own = (answer.get("id") or "").removeprefix("chatcmpl-")
    envelope = {"id": f"msg_{own}", "type": "message", "role": "assistant", "model": asked.model}
    return {**envelope, "stop_reason": None, "stop_sequence": None}


def _tool_use(call: dict[str, Any], written: Written) -> tuple[dict[str, Any], str]:
    """The block without its ``input``, and that in JSON."""
    function, call_id = call.get("function") or {}, call.get("id") or ""
    arguments = written.read(call_id, function.get("arguments") or "")
    return {"type": "tool_use", "id": call_id, "name": function.get("name")}, arguments


def _stop(choice: dict[str, Any], called: bool) -> dict[str, Any]:
    reason, stop = choice.get("finish_reason") or "", choice.get("stop_reason")  # vLLM's: the stop string that was met
    if called and reason == "stop":  # what engines say after a call that they were told to make
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if reason == "stop" and isinstance(stop, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": stop}
    return {"stop_reason": _STOPS.get(reason, reason), "stop_sequence": None}


def _usage(usage: dict[str, Any] | None) -> dict[str, int]:
    usage = usage or {}
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    read = {"input_tokens": (usage.get("prompt_tokens") or 0) - cached, "cache_read_input_tokens": cached, "cache_creation_input_tokens": 0}
    return {**read, "output_tokens": usage.get("completion_tokens") or 0}


def _encode(events: list[dict[str, Any]]) -> bytes:
    return b"".join(sse.encode_named(event) for event in events)
