"""OpenAI's Responses (https://platform.openai.com/docs/api-reference/responses), without what a server keeps between two requests."""

from __future__ import annotations

from typing import Any

import orjson

from leyden.proxy.apis.fields import SAMPLING, flag, invalid, model_of, object_of, objects, only, parse_object, text_of, unsupported
from leyden.proxy.apis.response_input import messages_of
from leyden.proxy.apis.response_output import ResponseStream, response_of
from leyden.proxy.asked import Asked
from leyden.proxy.refusal import Refusal

# What changes no answer here. ``store``: nothing is ever kept to be fetched, and the response says so.
_HARMLESS = {
    "metadata", "user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "service_tier", "store",
    "stream_options",
}  # fmt: skip
_READ = {
    "model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "text", "reasoning", "max_output_tokens", "stream",
    "include", "top_logprobs", "truncation", "background",
}  # fmt: skip
_PASSED = SAMPLING | {"stop"}  # engines take it, though OpenAI's own form has no such field
_LOGPROBS = "message.output_text.logprobs"
# Parts of answers that no engine behind the proxy makes, so that there is nothing to leave out; reasoning comes as plain text.
_NEVER_THERE = {
    "reasoning.encrypted_content", "web_search_call.action.sources", "web_search_call.results", "code_interpreter_call.outputs",
    "computer_call_output.output.image_url", "file_search_call.results", "message.input_image.image_url",
}  # fmt: skip


class Responses:
    path = "/responses"

    def parse(self, raw: bytes) -> Asked:
        """Raises ``Refusal`` (400) naming the first field or item that has no place in a chat completion."""
        request = parse_object(raw)
        model = model_of(request)
        for name in ("previous_response_id", "conversation"):
            if request.get(name) is not None:
                hint = "send the whole conversation as input, with store=False"
                raise unsupported(name, "the proxy keeps no conversations", hint)
        only(request, _READ | _HARMLESS | _PASSED)
        if flag(request, "background"):
            raise unsupported("background", "an answer is there when its request ends")
        if request.get("truncation") not in (None, "disabled"):
            raise unsupported("truncation", "a prompt is the agent's own, to the last token")
        include = request.get("include") or []
        if not isinstance(include, list) or not all(isinstance(name, str) for name in include):
            raise invalid("include", "is not a list of texts")
        if unknown := [name for name in include if name not in {_LOGPROBS, *_NEVER_THERE}]:
            raise unsupported(f"include {unknown[0]}")
        logprobs = _LOGPROBS in include or bool(request.get("top_logprobs"))
        body: dict[str, Any] = {name: request[name] for name in _PASSED if request.get(name) is not None}
        body |= {"model": model, "messages": messages_of(request)}
        choice = _tool_choice(request.get("tool_choice"))
        if tools := [_tool(tool, f"tools[{number}]") for number, tool in enumerate(objects(request.get("tools"), "tools"))]:
            body["tools"] = tools
            if request.get("parallel_tool_calls") is not None:
                body["parallel_tool_calls"] = flag(request, "parallel_tool_calls")
            if choice is not None:
                body["tool_choice"] = choice
        elif choice not in (None, "auto", "none"):
            raise invalid("tool_choice", "asks for a call, and there are no tools")
        if request.get("max_output_tokens") is not None:
            body["max_completion_tokens"] = request["max_output_tokens"]
        if request.get("top_logprobs"):
            body["top_logprobs"] = request["top_logprobs"]
        body |= _text(request.get("text")) | _reasoning(request.get("reasoning"))
        if stream := flag(request, "stream"):
            body["stream"] = True
        return Asked(
            body=body,
            model=model,
            n=1,
            stream=stream,
            token_ids=flag(request, "return_token_ids"),
            logprobs=logprobs,
            usage=True,
            request=request,
        )

    def whole(self, asked: Asked, response: dict[str, Any]) -> bytes:
        return orjson.dumps(response_of(asked, response))

    def stream(self, asked: Asked) -> ResponseStream:
        return ResponseStream(asked)

    def refuse(self, refusal: Refusal) -> bytes:
        return refusal.body if refusal.body is not None else orjson.dumps(refusal.as_openai())


def _tool(tool: dict[str, Any], where: str) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise unsupported(f"{where}.type", f"{tool.get('type')!r} runs at OpenAI; tools here are functions of the agent")
    only(tool, {"type", "name", "description", "parameters", "strict"}, where)
    text_of(tool.get("name"), f"{where}.name")
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type" and value is not None}}


def _tool_choice(choice: Any) -> Any:
    if choice in (None, "auto", "none", "required"):
        return choice
    if isinstance(choice, dict) and choice.get("type") == "function":
        return {"type": "function", "function": {"name": text_of(choice.get("name"), "tool_choice.name")}}
    raise unsupported("tool_choice", "it is none of auto, none, required and a function by name")


def _text(text: Any) -> dict[str, Any]:
    """``text.format`` is what a chat completion calls ``response_format``."""
    text = object_of(text, "text")
    only(text, {"format", "verbosity"}, "text")
    verbosity = {"verbosity": text["verbosity"]} if text.get("verbosity") else {}
    form = object_of(text.get("format"), "text.format") or {"type": "text"}
    if form.get("type") == "text":
        return verbosity
    if form.get("type") == "json_object":
        return {**verbosity, "response_format": {"type": "json_object"}}
    if form.get("type") == "json_schema":
        only(form, {"type", "name", "schema", "strict", "description"}, "text.format")
        schema = {name: value for name, value in form.items() if name != "type" and value is not None}
        return {**verbosity, "response_format": {"type": "json_schema", "json_schema": schema}}
    raise unsupported("text.format.type", "it is none of text, json_object and json_schema")


def _reasoning(reasoning: Any) -> dict[str, Any]:
    reasoning = object_of(reasoning, "reasoning")
    only(reasoning, {"effort", "summary"}, "reasoning")
    if reasoning.get("summary") not in (None, "auto"):
        raise unsupported("reasoning.summary", "reasoning comes as it was sampled, in the item's content")
    return {"reasoning_effort": reasoning["effort"]} if reasoning.get("effort") else {}
