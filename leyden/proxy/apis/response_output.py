"""What an engine answered, in the form of OpenAI's Responses: whole, or as the events of a stream.

Event names and their order: https://platform.openai.com/docs/api-reference/responses-streaming.
"""

from __future__ import annotations

import time
from typing import Any

from leyden.proxy import sse
from leyden.proxy.apis.answer_parts import reasoning_of
from leyden.proxy.asked import Asked
from leyden.proxy.refusal import Refusal

_CUT = {"length": "max_output_tokens", "content_filter": "content_filter"}  # why an answer is not whole, by finish reason
_ECHOED = ("instructions", "max_output_tokens", "reasoning", "temperature", "top_p", "tool_choice", "text", "user", "metadata")
_DEFAULTS: dict[str, Any] = {"tool_choice": "auto", "text": {"format": {"type": "text"}}, "metadata": {}}


def response_of(asked: Asked, answer: dict[str, Any]) -> dict[str, Any]:
    """A whole ``response`` object of a whole chat completion."""
    choice = answer["choices"][0]
    items = _Items(answer.get("id") or "")
    items.add(choice.get("message") or {}, _logprobs(asked, choice))
    items.settle()
    response = _head(asked, answer)
    status = "incomplete" if choice.get("finish_reason") in _CUT else "completed"
    _finish(response, choice.get("finish_reason"), items.finished(status), answer.get("usage"))
    if asked.token_ids:
        response |= {"prompt_token_ids": answer.get("prompt_token_ids"), "token_ids": choice.get("token_ids")}
    return response


class ResponseStream:
    """Items are closed, each with its ``done`` events, when the answer is whole and recorded."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._response: dict[str, Any] = {}
        self._items = _Items("")
        self._number = 0
        self._finish_reason: str | None = None
        self._usage: dict[str, Any] | None = None

    def chunk(self, chunk: dict[str, Any]) -> bytes:
        events: list[dict[str, Any]] = []
        if not self._response:
            self._response = _head(self._asked, chunk)
            self._items = _Items(chunk.get("id") or "")
            events = [{"type": f"response.{state}", "response": self._response} for state in ("created", "in_progress")]
        self._usage = chunk.get("usage") or self._usage
        if self._asked.token_ids and chunk.get("prompt_token_ids"):
            self._response |= {"prompt_token_ids": chunk["prompt_token_ids"], "token_ids": []}
        for choice in chunk.get("choices") or ():
            if self._asked.token_ids:
                self._response.setdefault("token_ids", []).extend(choice.get("token_ids") or ())
            events += self._items.add(choice.get("delta") or {}, _logprobs(self._asked, choice))
            self._finish_reason = choice.get("finish_reason") or self._finish_reason
        return self._encode(events)

    def end(self) -> bytes:
        status = "incomplete" if self._finish_reason in _CUT else "completed"
        events = [*self._items.settle(), *self._items.closing(status)]
        _finish(self._response, self._finish_reason, self._items.finished(status), self._usage)
        return self._encode([*events, {"type": f"response.{status}", "response": self._response}])

    def refuse(self, refusal: Refusal) -> bytes:
        error = {"code": refusal.code, "message": refusal.text}
        failed = {**self._response, "status": "failed", "error": error, "output": self._items.finished("incomplete")}
        said = {"type": "error", "param": refusal.param, **error, "error": refusal.as_openai()["error"]}  # its SDK raises for the last
        return self._encode([{"type": "response.failed", "response": failed}, said])

    def _encode(self, events: list[dict[str, Any]]) -> bytes:
        parts = []
        for event in events:
            parts.append(sse.encode_named({**event, "sequence_number": self._number}))
            self._number += 1
        return b"".join(parts)


class _Items:
    """The output in the making: reasoning, one message, calls, in the order in which they began. A whole message is one large delta."""

    def __init__(self, response_id: str) -> None:
        self._response_id = _own_part(response_id)
        self._items: list[dict[str, Any]] = []
        self._logprobs: list[dict[str, Any]] = []
        self._calls: dict[int, int] = {}  # position in the output by the call's index

    def add(self, delta: dict[str, Any], logprobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The events that tell it."""
        events: list[dict[str, Any]] = []
        self._logprobs += logprobs
        if text := reasoning_of(delta):
            events += self._write("reasoning", "reasoning_text", text)
        if text := delta.get("refusal"):
            events += self._write("message", "refusal", text)
        if text := delta.get("content"):
            events += self._write("message", "output_text", text, logprobs)
        for number, part in enumerate(delta.get("tool_calls") or ()):
            events += self._call(part, part.get("index", number))
        return events

    def settle(self) -> list[dict[str, Any]]:
        """No more will come: an answer without text and calls is a message without text. Its log-probabilities are the whole answer's."""
        spoken = any(item["type"] != "reasoning" for item in self._items)
        events = [] if spoken else self._write("message", "output_text", "")
        for part in (part for item in self._items for part in item.get("content") or () if part["type"] == "output_text"):
            part["logprobs"] = self._logprobs
        return events

    def closing(self, status: str) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        for position, item in enumerate(self.finished(status)):
            at = {"item_id": item["id"], "output_index": position}
            if item["type"] == "function_call":
                events.append({"type": "response.function_call_arguments.done", **at, "arguments": item["arguments"], "name": item["name"]})
            for index, part in enumerate(item.get("content") or ()):
                kind = part["type"]
                done = {"type": f"response.{kind}.done", **at, "content_index": index}
                done |= {"refusal": part["refusal"]} if kind == "refusal" else {"text": part["text"]}
                done |= {"logprobs": part["logprobs"]} if kind == "output_text" else {}
                events += [done, {"type": "response.content_part.done", **at, "content_index": index, "part": part}]
            events.append({"type": "response.output_item.done", "output_index": position, "item": item})
        return events

    def finished(self, status: str) -> list[dict[str, Any]]:
        """All items; ``status`` is the last one's."""
        last = len(self._items) - 1
        return [{**item, "status": status if position == last else "completed"} for position, item in enumerate(self._items)]

    def _write(self, item_type: str, part_type: str, text: str, logprobs: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        position = next((place for place, item in enumerate(self._items) if item["type"] == item_type), None)
        if position is None:
            own: dict[str, Any] = {"role": "assistant"} if item_type == "message" else {"summary": []}
            position = self._begin({"type": item_type, "content": [], **own}, "msg" if item_type == "message" else "rs", events)
        item = self._items[position]
        at = {"item_id": item["id"], "output_index": position}
        index = next((place for place, part in enumerate(item["content"]) if part["type"] == part_type), None)
        name = "refusal" if part_type == "refusal" else "text"
        if index is None:
            index = len(item["content"])
            part: dict[str, Any] = {"type": part_type, name: ""}
            part |= {"annotations": [], "logprobs": []} if part_type == "output_text" else {}
            item["content"].append(part)
            events.append({"type": "response.content_part.added", **at, "content_index": index, "part": _copy(part)})
        item["content"][index][name] += text
        event = {"type": f"response.{part_type}.delta", **at, "content_index": index, "delta": text}
        if part_type == "output_text":
            event["logprobs"] = logprobs or []
        return [*events, event] if text else events

    def _call(self, part: dict[str, Any], index: int) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        function = part.get("function") or {}
        if index not in self._calls:
            item = {"type": "function_call", "call_id": part.get("id") or "", "name": function.get("name") or "", "arguments": ""}
            self._calls[index] = self._begin(item, "fc", events)
        position = self._calls[index]
        item = self._items[position]
        if text := function.get("arguments") or "":
            item["arguments"] += text
            at = {"item_id": item["id"], "output_index": position}
            events.append({"type": "response.function_call_arguments.delta", **at, "delta": text})
        return events

    def _begin(self, item: dict[str, Any], prefix: str, events: list[dict[str, Any]]) -> int:
        position = len(self._items)
        item["id"] = f"{prefix}_{self._response_id}_{position}"
        self._items.append(item)
        events.append({"type": "response.output_item.added", "output_index": position, "item": {**_copy(item), "status": "in_progress"}})
        return position


def _head(asked: Asked, answer: dict[str, Any]) -> dict[str, Any]:
    request = asked.request or {}
    echoed = {name: request.get(name) if request.get(name) is not None else _DEFAULTS.get(name) for name in _ECHOED}
    return {
        "id": f"resp_{_own_part(answer.get('id') or '')}",
        "object": "response",
        "created_at": answer.get("created") or int(time.time()),
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "model": asked.model,
        "output": [],
        **echoed,
        "tools": request.get("tools") or [],
        "parallel_tool_calls": request.get("parallel_tool_calls") is not False,
        "previous_response_id": None,
        "store": False,
        "truncation": "disabled",
        "usage": None,
    }


def _finish(response: dict[str, Any], reason: str | None, output: list[dict[str, Any]], usage: dict[str, Any] | None) -> None:
    response["status"] = "incomplete" if reason in _CUT else "completed"
    response["incomplete_details"] = {"reason": _CUT[reason]} if reason in _CUT else None
    response["output"], response["usage"] = output, _usage(usage)


def _usage(usage: dict[str, Any] | None) -> dict[str, Any] | None:
    if usage is None:
        return None
    read, written = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    thought = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": read + written,
    }


def _logprobs(asked: Asked, choice: dict[str, Any]) -> list[dict[str, Any]]:
    return ((choice.get("logprobs") or {}).get("content") or []) if asked.logprobs else []


def _own_part(response_id: str) -> str:
    """The engine's id without what says that it was a chat completion's."""
    return response_id.removeprefix("chatcmpl-")


def _copy(item: dict[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, list) else value for name, value in item.items()}
