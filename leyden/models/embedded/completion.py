"""One chat completion: from a request to OpenAI-shaped answers, whole or as stream chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from leyden.models.embedded.chat import OPEN, Detokenizer, StopStrings, held_back, parse_tool_calls, render
from leyden.models.embedded.engine import Token, TransformersEngine
from leyden.models.embedded.protocol import ChatRequest
from leyden.models.embedded.sampling import Sampled


class Choice:
    """One sample as it grows: its tokens, its text, and what of the text a stream has already shown."""

    def __init__(self, index: int, engine: TransformersEngine, request: ChatRequest) -> None:
        self.index = index
        self.text = ""
        self.sampled: list[Sampled] = []
        self.finish_reason: str | None = None
        self.with_tools = bool(request.tools) and request.tool_choice != "none"
        self._engine, self._request = engine, request
        self._detokenizer = Detokenizer(engine.tokenizer)
        self._stops = StopStrings(request.stops)
        self._shown = 0

    def add(self, token: Token) -> bool:
        """Take a token; returns True when a stop string ended the choice."""
        self.sampled.append(token.sampled)
        piece = self._detokenizer.add(token.sampled.token)
        if token.reason is not None:
            piece += self._detokenizer.rest()
        text, stopped = self._stops.add(piece)
        self.text += text
        if stopped:
            self.finish_reason = "stop"
        elif token.reason is not None:
            self.text += self._stops.held
            self.finish_reason = token.reason
        return stopped

    def message(self) -> dict[str, Any]:
        content, calls = parse_tool_calls(self.text) if self.with_tools else (self.text, [])
        message: dict[str, Any] = {"role": "assistant", "content": content if content or not calls else None}
        if calls:
            message["tool_calls"] = [call.as_openai() for call in calls]
            if self.finish_reason == "stop":
                self.finish_reason = "tool_calls"
        return message

    def new_text(self) -> str:
        """Text that a stream may show now: never part of what may become a tool call, which is parsed only when it is whole."""
        if self.finish_reason is not None:
            return ""
        end = self.text.find(OPEN) if self.with_tools else -1
        if end < 0:
            end = len(self.text) - (held_back(self.text, OPEN) if self.with_tools else 0)
        piece = self.text[self._shown : end]
        self._shown = max(self._shown, end)
        return piece

    def last_delta(self) -> dict[str, Any]:
        """What the finished message still has beyond the text already shown."""
        message = self.message()
        delta: dict[str, Any] = {}
        rest = (message["content"] or "")[self._shown :]
        if rest:
            delta["content"] = rest
        if "tool_calls" in message:
            delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(message["tool_calls"])]
        return delta

    def logprobs(self, sampled: list[Sampled]) -> dict[str, Any] | None:
        if not self._request.logprobs:
            return None
        return {"content": [self._logprob(item) for item in sampled], "refusal": None}

    def _logprob(self, sampled: Sampled) -> dict[str, Any]:
        top = [self._entry(token, logprob) for token, logprob in sampled.top]
        return {**self._entry(sampled.token, sampled.logprob), "top_logprobs": top}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        text = self._engine.tokenizer.decode([token])
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


class Completion:
    """A request in progress. Raises ``ValueError`` for a prompt that cannot be rendered or does not fit."""

    def __init__(self, engine: TransformersEngine, request: ChatRequest) -> None:
        tools = request.tools if request.tool_choice != "none" else None
        self.request = request
        self.prompt_ids = render(engine.tokenizer, request.messages, tools)
        self.samples = engine.sample(self.prompt_ids, request.sampling(), request.n)
        self.choices = [Choice(i, engine, request) for i in range(request.n)]
        self.head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": request.model}

    async def answer(self) -> dict[str, Any]:
        async for tokens in self.samples:
            for token in tokens:
                if self.choices[token.choice].finish_reason is None:
                    self._take(token)
        choices = []
        for choice in self.choices:
            message = choice.message()
            entry = {"index": choice.index, "message": message, "finish_reason": choice.finish_reason}
            entry["logprobs"] = choice.logprobs(choice.sampled)
            if self.request.return_token_ids:
                entry["token_ids"] = [item.token for item in choice.sampled]
            choices.append(entry)
        answer = {**self.head, "object": "chat.completion", "choices": choices, "usage": self._usage()}
        if self.request.return_token_ids:
            answer["prompt_token_ids"] = self.prompt_ids
        return answer

    async def stream(self) -> AsyncIterator[dict[str, Any]]:
        """Chunks as OpenAI and vLLM send them: roles and prompt ids first, then pieces with their token ids, usage last."""
        for choice in self.choices:
            chunk = self._chunk(choice, {"role": "assistant", "content": ""}, [])
            if self.request.return_token_ids:
                chunk["prompt_token_ids"] = self.prompt_ids
            yield chunk
        async for tokens in self.samples:
            for token in tokens:
                choice = self.choices[token.choice]
                if choice.finish_reason is not None:
                    continue  # a stop string ended it, and this token was drawn before the scheduler heard of that
                self._take(token)
                if choice.finish_reason is None:
                    piece = choice.new_text()
                    yield self._chunk(choice, {"content": piece} if piece else {}, [token.sampled])
                else:
                    delta = choice.last_delta()
                    chunk = self._chunk(choice, delta, [token.sampled])
                    chunk["choices"][0]["finish_reason"] = choice.finish_reason
                    yield chunk
        if self.request.stream_options and self.request.stream_options.include_usage:
            yield {**self.head, "object": "chat.completion.chunk", "choices": [], "usage": self._usage()}

    def _take(self, token: Token) -> None:
        if self.choices[token.choice].add(token):
            self.samples.end(token.choice)

    def _chunk(self, choice: Choice, delta: dict[str, Any], sampled: list[Sampled]) -> dict[str, Any]:
        entry: dict[str, Any] = {"index": choice.index, "delta": delta, "finish_reason": None, "logprobs": choice.logprobs(sampled)}
        if self.request.return_token_ids:
            entry["token_ids"] = [item.token for item in sampled]
        return {**self.head, "object": "chat.completion.chunk", "choices": [entry]}

    def _usage(self) -> dict[str, int]:
        completion = sum(len(choice.sampled) for choice in self.choices)
        return {"prompt_tokens": len(self.prompt_ids), "completion_tokens": completion, "total_tokens": len(self.prompt_ids) + completion}
