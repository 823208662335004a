"""Exact mode: the next prompt is the very ids that were read and sampled before, and what the template adds after them.

The engine renders, generates and derenders in three steps (vLLM's scale-out endpoints, which the embedded engine speaks too), so that what
is generated from need not be what was rendered.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from leyden.proxy.asked import CHAT
from leyden.proxy.deployments import Deployment
from leyden.proxy.passthrough import PassThrough
from leyden.proxy.refusal import Refusal
from leyden.proxy.trail import Place, Turn, common

RENDER, DERENDER, GENERATE = f"{CHAT}/render", f"{CHAT}/derender", "/inference/v1/generate"
MARKS = ("0", "1")  # stand in for an answer: characters that neither a template nor a tokenizer joins to what comes after
_LONGEST_STOP = 8  # tokens of a stop text

Body = dict[str, Any]


class ExactUpstream:
    """The same two calls as ``PassThrough``, for one request at its place in its attempt. ``spliced``: its prompt was put together."""

    def __init__(self, passthrough: PassThrough, place: Place) -> None:
        self._passthrough = passthrough
        self._place = place
        self.spliced = False

    async def complete(self, deployment: Deployment, body: Body) -> Body:
        rendered = await self._prompt(deployment, body)
        generated = await self._passthrough.complete(_root(deployment), {**rendered, "stream": False}, GENERATE)
        choices = {choice["index"]: choice for choice in generated.get("choices") or ()}
        messages = await self._messages(deployment, body, rendered, choices)
        return {
            **_head(rendered, body, "chat.completion"),
            "prompt_token_ids": rendered["token_ids"],
            "choices": [
                {
                    "index": index,
                    "message": messages[index],
                    "logprobs": choice.get("logprobs"),
                    "finish_reason": _finish_reason(choice, messages[index], body),
                    "stop_reason": choice.get("stop_reason"),
                    "token_ids": choice.get("token_ids"),
                }
                for index, choice in sorted(choices.items())
            ],
            "usage": generated.get("usage"),
        }

    async def stream(self, deployment: Deployment, body: Body) -> AsyncGenerator[Body, None]:
        """Text as it comes, where the text is the answer; where it may be tool calls or thinking, all of it once it is whole: nothing but
        the engine's own parser can tell, and that one reads whole answers."""
        rendered = await self._prompt(deployment, body)
        head, parsed = _head(rendered, body, "chat.completion.chunk"), _is_parsed(rendered, body)
        whole: dict[int, Body] = {}
        usage: Body | None = None
        for index in range(body.get("n") or 1):
            first = {"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None, "logprobs": None}
            yield {**head, "choices": [first], "prompt_token_ids": rendered["token_ids"]}
        asked = {**rendered, "stream": True, "stream_options": {"include_usage": True}}
        async with aclosing(self._passthrough.stream(_root(deployment), asked, GENERATE)) as chunks:
            async for chunk in chunks:
                for part in chunk.get("choices") or ():
                    _gather(whole, part)
                    delta = {"content": part["text"]} if part.get("text") and not parsed else {}
                    shown = {"index": part["index"], "delta": delta, "logprobs": part.get("logprobs"), "token_ids": part.get("token_ids")}
                    ended = None if parsed else part.get("finish_reason")
                    yield {**head, "choices": [{**shown, "finish_reason": ended}]}
                if chunk.get("usage"):
                    usage = chunk["usage"]
        if parsed:
            for index, message in (await self._messages(deployment, body, rendered, whole)).items():
                ended = _finish_reason(whole[index], message, body)
                yield {**head, "choices": [{"index": index, "delta": _as_delta(message), "logprobs": None, "finish_reason": ended}]}
        yield {**head, "choices": [], "usage": usage}

    async def _prompt(self, deployment: Deployment, body: Body) -> Body:
        """What to generate from: as rendered, but for the ids of what was said before."""
        rendered = await self._render(deployment, body)
        rendered["output_mode"] = "text"  # log-probabilities with their texts, and texts that end before a stop text
        turn = self._place.goes_on
        if turn is None or rendered.get("features"):  # images: their places are those of the rendered prompt
            return rendered
        tail = await self._tail(deployment, body, turn, rendered["token_ids"])
        if tail is not None:
            ids = (turn.ids() + tail).tolist()
            if body.get("max_tokens") is None and body.get("max_completion_tokens") is None:  # then: up to the context's length
                room = rendered["sampling_params"]["max_tokens"] + len(rendered["token_ids"])
                rendered["sampling_params"]["max_tokens"] = max(1, room - len(ids))
            rendered["token_ids"] = ids
            self.spliced = True
        return rendered

    async def _tail(self, deployment: Deployment, body: Body, turn: Turn, full: Sequence[int]) -> array[int] | None:
        """What the template writes after the answer of ``turn``: what closes it, all later messages, the beginning of the next answer.

        It is how two renderings end that differ in nothing but that answer. Nothing is assumed of what comes before: there the template may
        strip, merge and trim as it likes. None where the template cannot render the messages with another answer in that place.
        """
        at = turn.answered.depth - 1
        answer = body["messages"][at]
        plain = [{"role": "assistant", "content": mark} for mark in MARKS]
        tail = await self._same_end(deployment, body, at, plain)
        if answer.get("tool_calls") and (tail is None or array("i", full[len(full) - len(tail) :]) != tail):
            # The template writes another end after tool calls, or tool results that look back at them: differ in the arguments only, and
            # cut at the token that the model itself stopped at.
            end = await self._same_end(deployment, body, at, [_with_arguments(answer, mark) for mark in MARKS])
            if end is None or not turn.sampled or turn.sampled[-1] not in end:
                return None
            return end[end.index(turn.sampled[-1]) + 1 :]
        if tail is None:
            return None
        return tail[_sampled_already(turn, tail) :]

    async def _same_end(self, deployment: Deployment, body: Body, at: int, answers: Sequence[Body]) -> array[int] | None:
        messages = [[*body["messages"][:at], answer, *body["messages"][at + 1 :]] for answer in answers]
        try:
            both = await asyncio.gather(*(self._render(deployment, {**body, "messages": said}) for said in messages))
        except Refusal as refusal:
            if refusal.status == 400:
                return None
            raise
        one, other = (array("i", reversed(rendered["token_ids"])) for rendered in both)
        end = one[: common(one, other)]
        end.reverse()
        return end

    async def _render(self, deployment: Deployment, body: Body) -> Body:
        try:
            return await self._passthrough.complete(deployment, {**body, "stream": False, "stream_options": None}, RENDER)
        except Refusal as refusal:
            if _is_no_endpoint(refusal):
                raise _no_endpoints(deployment) from refusal
            raise

    async def _messages(self, deployment: Deployment, body: Body, rendered: Body, choices: dict[int, Body]) -> dict[int, Body]:
        if not _is_parsed(rendered, body):
            return {index: {"role": "assistant", "content": choice.get("text") or ""} for index, choice in choices.items()}
        asked = {
            "model": body["model"],
            "generate_response": {
                "request_id": rendered["request_id"],
                "choices": [_bare(choice) for _, choice in sorted(choices.items()) if choice.get("token_ids")],
            },
            "prompt_token_ids": rendered["token_ids"],
            "prompt_tokens": len(rendered["token_ids"]),
            "chat_request": {**body, "stream": False, "stream_options": None},
        }
        derendered = await self._passthrough.complete(deployment, asked, DERENDER)
        messages = {index: {"role": "assistant", "content": ""} for index in choices}
        for choice in derendered.get("choices") or ():
            messages[choice["index"]] = _ended(choice["message"], choices[choice["index"]], body)
        return messages


def _root(deployment: Deployment) -> Deployment:
    return replace(deployment, api_base=(deployment.api_base or "").removesuffix("/v1"))


def _head(rendered: Body, body: Body, kind: str) -> Body:
    return {"id": rendered["request_id"], "object": kind, "created": int(time.time()), "model": body["model"]}


def _is_parsed(rendered: Body, body: Body) -> bool:
    """Whether an answer's text is more than content."""
    return bool(body.get("tools") and body.get("tool_choice") != "none") or bool(rendered.get("reasoning_parser_kwargs"))


def _gather(whole: dict[int, Body], part: Body) -> None:
    choice = whole.setdefault(part["index"], {"index": part["index"], "token_ids": [], "text": ""})
    choice["token_ids"] += part.get("token_ids") or []
    choice["text"] += part.get("text") or ""
    for name in ("finish_reason", "stop_reason"):
        choice[name] = part.get(name) if part.get(name) is not None else choice.get(name)


def _bare(choice: Body) -> Body:
    return {name: choice.get(name) for name in ("index", "token_ids", "finish_reason", "stop_reason")}


def _ended(message: Body, choice: Body, body: Body) -> Body:
    """Without the stop text, which is among the ids, and with one tool call where no more were wanted: as the engine answers by itself."""
    stop = choice.get("stop_reason")
    if isinstance(stop, str) and not body.get("include_stop_str_in_output"):
        for name in ("content", "reasoning", "reasoning_content"):
            if isinstance(message.get(name), str):
                message[name] = message[name].partition(stop)[0]
    if body.get("parallel_tool_calls") is False and message.get("tool_calls"):
        message["tool_calls"] = message["tool_calls"][:1]
    return message


def _finish_reason(choice: Body, message: Body, body: Body) -> str | None:
    reason: str | None = choice.get("finish_reason")
    named = isinstance(body.get("tool_choice"), dict)  # a call that was ordered ends as any text does
    return "tool_calls" if message.get("tool_calls") and reason == "stop" and not named else reason


def _as_delta(message: Body) -> Body:
    delta = {name: value for name, value in message.items() if name not in ("role", "tool_calls") and value}
    if calls := message.get("tool_calls"):
        delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls)]
    return delta


def _with_arguments(answer: Body, mark: str) -> Body:
    *others, last = answer["tool_calls"]
    function = {**last["function"], "arguments": f'{{"mark": "{mark}"}}'}
    return {**answer, "tool_calls": [*others, {**last, "function": function}]}


def _sampled_already(turn: Turn, tail: array[int]) -> int:
    """How many of the closing ids the model sampled itself: its stop token, as a rule. None after a length stop: what looks like one then
    is a part of what it was saying."""
    if turn.finish_reason == "length":
        return 0
    longest = min(_LONGEST_STOP, len(tail), len(turn.sampled))
    return next((n for n in range(longest, 0, -1) if turn.sampled[-n:] == tail[:n]), 0)


def _is_no_endpoint(refusal: Refusal) -> bool:
    """vLLM without the option says so; a server that knows no such path answers as servers do, and names no error of its own."""
    body = (refusal.body or b"").lower()
    return (refusal.status == 403 and b"scale-out" in body) or (refusal.status in (404, 405) and b'"error"' not in body)


def _no_endpoints(deployment: Deployment) -> Refusal:
    where = f"{deployment.model_name} at {deployment.api_base}"
    hint = "start vLLM with --enable-scale-out (engine option exact), or take model_info.exact out of the model list"
    return Refusal(400, "exact_unsupported", f"{where} does not render and generate apart, which exact mode needs", hint)
