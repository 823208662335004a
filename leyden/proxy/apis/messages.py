"""Anthropic's messages (https://docs.anthropic.com/en/api/messages)."""

from __future__ import annotations

from typing import Any

import orjson

from leyden.proxy.apis.fields import SAMPLING, flag, invalid, model_of, object_of, objects, only, parse_object, text_of, unsupported
from leyden.proxy.apis.message_input import Written, messages_of
from leyden.proxy.apis.message_output import MessageStream, error_of, message_of
from leyden.proxy.asked import Asked
from leyden.proxy.refusal import Refusal

_HARMLESS = {"metadata", "service_tier", "cache_control"}
_READ = {
    "model", "messages", "system", "max_tokens", "tools", "tool_choice", "stop_sequences", "stream", "thinking", "output_config",
    "output_format",
}  # fmt: skip
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class Messages:
    path = "/messages"
    counts = "/messages/count_tokens"

    def __init__(self) -> None:
        self._written = Written()

    def parse(self, raw: bytes) -> Asked:
        """Raises ``Refusal`` (400) naming the first field or block that has no place in a chat completion."""
        request = parse_object(raw)
        model = model_of(request)
        only(request, _READ | _HARMLESS | SAMPLING)
        limit = request.get("max_tokens")
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise invalid("max_tokens", "is not a whole number from 1")
        body: dict[str, Any] = {name: request[name] for name in SAMPLING if request.get(name) is not None}
        body |= {"model": model, "messages": messages_of(request, self._written), "max_tokens": limit}
        if request.get("stop_sequences"):
            body["stop"] = request["stop_sequences"]
        choice = _tool_choice(request.get("tool_choice"))
        if tools := [_tool(tool, f"tools[{number}]") for number, tool in enumerate(objects(request.get("tools"), "tools"))]:
            body |= {"tools": tools, **choice}
        elif choice.get("tool_choice") not in (None, "auto", "none"):
            raise invalid("tool_choice", "asks for a call, and there are no tools")
        if body["messages"][-1]["role"] == "assistant":  # its answer goes on where that one ends
            body |= {"add_generation_prompt": False, "continue_final_message": True}
        body |= _output(request) | _thinking(request.get("thinking"), body)
        if stream := flag(request, "stream"):
            body["stream"] = True
        return Asked(
            body=body,
            model=model,
            n=1,
            stream=stream,
            token_ids=flag(request, "return_token_ids"),
            logprobs=False,
            usage=True,
            request=request,
        )

    def parse_count(self, raw: bytes) -> Asked:
        """The request whose prompt is to be counted, which names no limit. Raises ``Refusal`` (400)."""
        return self.parse(orjson.dumps({**parse_object(raw), "max_tokens": 1}))

    def whole(self, asked: Asked, response: dict[str, Any]) -> bytes:
        return orjson.dumps(message_of(asked, response, self._written))

    def stream(self, asked: Asked) -> MessageStream:
        return MessageStream(asked, self._written)

    def refuse(self, refusal: Refusal) -> bytes:
        return orjson.dumps(error_of(refusal))


def _tool(tool: dict[str, Any], where: str) -> dict[str, Any]:
    if tool.get("type") not in (None, "custom"):
        raise unsupported(f"{where}.type", f"{tool['type']!r} is Anthropic's own; tools here are the agent's")
    only(tool, {"type", "name", "description", "input_schema", "strict", "cache_control", "input_examples"}, where)
    if tool.get("input_examples"):
        raise unsupported(f"{where}.input_examples", "a chat template has no place for them", "put them into the description")
    function = {"name": text_of(tool.get("name"), f"{where}.name")}
    function |= {name: tool[name] for name in ("description", "strict") if tool.get(name) is not None}
    return {"type": "function", "function": {**function, "parameters": tool.get("input_schema") or {"type": "object", "properties": {}}}}


def _tool_choice(choice: Any) -> dict[str, Any]:
    if choice is None:
        return {}
    kind = object_of(choice, "tool_choice").get("type")
    one = {"parallel_tool_calls": False} if choice.get("disable_parallel_tool_use") else {}
    if kind == "tool":
        return {"tool_choice": {"type": "function", "function": {"name": text_of(choice.get("name"), "tool_choice.name")}}, **one}
    if isinstance(kind, str) and kind in _CHOICES:
        return {"tool_choice": _CHOICES[kind], **one}
    raise unsupported("tool_choice", "its type is none of auto, any, tool and none")


def _output(request: dict[str, Any]) -> dict[str, Any]:
    """``output_config`` (``format``, ``effort``); ``output_format`` is its older name for the first."""
    config = object_of(request.get("output_config"), "output_config")
    only(config, {"format", "effort"}, "output_config")
    said = {"reasoning_effort": config["effort"]} if config.get("effort") else {}
    form = config.get("format") or request.get("output_format")
    if form is None:
        return said
    if not isinstance(form, dict) or form.get("type") != "json_schema":
        raise unsupported("output_config.format", "its type is not json_schema")
    schema = {"name": form.get("name") or "output", "schema": form.get("schema"), "strict": True}
    return {**said, "response_format": {"type": "json_schema", "json_schema": schema}}


def _thinking(thinking: Any, body: dict[str, Any]) -> dict[str, Any]:
    """Whether to think is a matter of the chat template (``enable_thinking``), how long one of the engine's."""
    if thinking is None:
        return {}
    kind = thinking.get("type") if isinstance(thinking, dict) else None
    if kind not in ("enabled", "adaptive", "disabled"):
        raise unsupported("thinking", "its type is none of enabled, adaptive and disabled")
    only(thinking, {"type", "budget_tokens", "display"}, "thinking")
    if thinking.get("display") not in (None, "full", "summarized"):
        raise unsupported("thinking.display", "thoughts come as they were sampled")
    template = {"enable_thinking": kind != "disabled", **object_of(body.get("chat_template_kwargs"), "chat_template_kwargs")}
    budget = {"thinking_token_budget": thinking["budget_tokens"]} if thinking.get("budget_tokens") else {}
    return {"chat_template_kwargs": template, **budget}
