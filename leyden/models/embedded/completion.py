"""A request in progress: from a prompt to OpenAI-shaped answers, whole or as stream chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator
from typing import Any, Generic, TypeVar

from leyden.models.embedded.chat import render
from leyden.models.embedded.choice import ChatChoice, TextChoice
from leyden.models.embedded.engine import Token, TransformersEngine
from leyden.models.embedded.protocol import ChatRequest, SamplingRequest, TextRequest
from leyden.models.embedded.sampling import Sampled, Sampling

C = TypeVar("C", bound=TextChoice)


class Completion(Generic[C]):
    """``samples`` of one prompt [P], and the choices that grow from them. Raises ``ValueError`` for a prompt that does not fit."""

    prefix: str  # of the answer's id

    def __init__(
        self, engine: TransformersEngine, request: SamplingRequest, prompt_ids: list[int], sampling: Sampling, grammar: str | None = None
    ) -> None:
        self.engine, self.with_ids = engine, request.return_token_ids
        self.prompt_ids = prompt_ids
        self.samples = engine.sample(prompt_ids, sampling, request.n, grammar)
        self.choices: list[C] = []
        self.head = {"id": f"{self.prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": request.model}
        self._usage_in_stream = bool(request.stream_options and request.stream_options.include_usage)

    async def answer(self) -> dict[str, Any]:
        """The whole answer."""
        raise NotImplementedError

    def stream(self) -> AsyncIterator[dict[str, Any]]:
        """Its chunks, as OpenAI and vLLM send them."""
        raise NotImplementedError

    async def _finish(self) -> None:
        async for tokens in self.samples:
            for token in tokens:
                if self.choices[token.choice].finish_reason is None:
                    self._take(token)

    async def _grow(self) -> AsyncIterator[tuple[C, Sampled]]:
        """Each choice after each of its tokens."""
        async for tokens in self.samples:
            for token in tokens:
                choice = self.choices[token.choice]
                if choice.finish_reason is None:  # else a stop string ended it, and this was drawn before the scheduler heard of that
                    self._take(token)
                    yield choice, token.sampled

    def _take(self, token: Token) -> None:
        if self.choices[token.choice].add(token):
            self.samples.end(token.choice)

    def _ids(self, sampled: list[Sampled]) -> dict[str, Any]:
        return {"token_ids": [item.token for item in sampled]} if self.with_ids else {}

    def _usage(self) -> dict[str, int]:
        completion = sum(len(choice.sampled) for choice in self.choices)
        return {"prompt_tokens": len(self.prompt_ids), "completion_tokens": completion, "total_tokens": len(self.prompt_ids) + completion}


def prompt_of(engine: TransformersEngine, request: ChatRequest) -> list[int]:
    """The prompt's token ids [P]; tools are told whatever ``tool_choice`` says, as vLLM does it, so that the turns of a conversation begin
    alike. Raises ``ValueError`` for messages that the template cannot render."""
    return render(engine.tokenizer, request.messages, request.tools, request.chat_template_kwargs)


class ChatCompletion(Completion[ChatChoice]):
    """``grammar``: the request's, compiled. Raises ``ValueError`` for messages that cannot be rendered too."""

    prefix = "chatcmpl"

    def __init__(self, engine: TransformersEngine, request: ChatRequest, grammar: str | None = None) -> None:
        prompt_ids = prompt_of(engine, request)
        inside = engine.begins_thinking(prompt_ids)
        if inside and grammar is not None:
            raise ValueError("the chat template makes this model think first: no form can be put on its answer; serve it with vLLM")
        super().__init__(engine, request, prompt_ids, request.sampling(), grammar)
        self.choices = [ChatChoice(i, engine, request, inside) for i in range(request.n)]
        self._with_logprobs = request.logprobs

    async def answer(self) -> dict[str, Any]:
        await self._finish()
        choices = []
        for choice in self.choices:
            message = choice.message()
            entry = {"index": choice.index, "message": message, "finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}
            choices.append({**entry, "logprobs": self._logprobs(choice.sampled), **self._ids(choice.sampled)})
        answer = {**self.head, "object": "chat.completion", "choices": choices, "usage": self._usage()}
        return {**answer, "prompt_token_ids": self.prompt_ids} if self.with_ids else answer

    async def stream(self) -> AsyncIterator[dict[str, Any]]:
        """Roles and prompt ids first, then pieces with their token ids, usage last."""
        for choice in self.choices:
            chunk = self._chunk(choice, {"role": "assistant", "content": ""}, [])
            yield {**chunk, "prompt_token_ids": self.prompt_ids} if self.with_ids else chunk
        async for choice, sampled in self._grow():
            if choice.finish_reason is None:
                yield self._chunk(choice, choice.delta(), [sampled])
            else:
                delta = choice.last_delta()  # which may find that it is a call
                yield self._chunk(choice, delta, [sampled], {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason})
        if self._usage_in_stream:
            yield {**self.head, "object": "chat.completion.chunk", "choices": [], "usage": self._usage()}

    def _chunk(
        self, choice: ChatChoice, delta: dict[str, Any], sampled: list[Sampled], end: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        entry = {"index": choice.index, "delta": delta, "finish_reason": None, "logprobs": self._logprobs(sampled), **(end or {})}
        return {**self.head, "object": "chat.completion.chunk", "choices": [{**entry, **self._ids(sampled)}]}

    def _logprobs(self, sampled: list[Sampled]) -> dict[str, Any] | None:
        return {"content": [self._logprob(item) for item in sampled], "refusal": None} if self._with_logprobs else None

    def _logprob(self, sampled: Sampled) -> dict[str, Any]:
        top = [self._entry(token, logprob) for token, logprob in sampled.top]
        return {**self._entry(sampled.token, sampled.logprob), "top_logprobs": top}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        text = self.engine.tokenizer.decode([token])
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


class TextCompletion(Completion[TextChoice]):
    """A prompt and how it goes on. Raises ``ValueError`` for ids that are not in the vocabulary too."""

    prefix = "cmpl"

    def __init__(self, engine: TransformersEngine, request: TextRequest) -> None:
        prompt_ids = request.prompt if isinstance(request.prompt, list) else list(engine.tokenizer(request.prompt).input_ids)
        if any(not 0 <= token < engine.vocab_size for token in prompt_ids):
            raise ValueError(f"prompt: a token id is not below the vocabulary's {engine.vocab_size}")
        super().__init__(engine, request, prompt_ids, request.sampling())
        self.choices = [TextChoice(i, engine, request.stops) for i in range(request.n)]
        self._with_logprobs = request.logprobs is not None

    async def answer(self) -> dict[str, Any]:
        await self._finish()
        choices = [self._entry(choice, choice.text, choice.sampled, 0, first=True) for choice in self.choices]
        return {**self.head, "object": "text_completion", "choices": choices, "usage": self._usage()}

    async def stream(self) -> AsyncIterator[dict[str, Any]]:
        """Pieces with their token ids, the prompt's in each choice's first, usage last."""
        shown = [0] * len(self.choices)
        async for choice, sampled in self._grow():
            start = shown[choice.index]
            shown[choice.index] = len(choice.text)
            entry = self._entry(choice, choice.text[start:], [sampled], start, first=len(choice.sampled) == 1)
            yield {**self.head, "object": "text_completion", "choices": [entry]}
        if self._usage_in_stream:
            yield {**self.head, "object": "text_completion", "choices": [], "usage": self._usage()}

    def _entry(self, choice: TextChoice, text: str, sampled: list[Sampled], offset: int, first: bool) -> dict[str, Any]:
        entry = {"index": choice.index, "text": text, "finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}
        entry["logprobs"] = self._logprobs(sampled, offset)
        prompt = {"prompt_token_ids": self.prompt_ids} if self.with_ids and first else {}
        return {**entry, **self._ids(sampled), **prompt}

    def _logprobs(self, sampled: list[Sampled], offset: int) -> dict[str, Any] | None:
        if not self._with_logprobs:
            return None
        tokens, offsets = [], []
        for item in sampled:
            tokens.append(self.engine.tokenizer.decode([item.token]))
            offsets.append(offset)
            offset += len(tokens[-1])
        tops = [{self.engine.tokenizer.decode([token]): logprob for token, logprob in item.top} for item in sampled]
        return {"tokens": tokens, "token_logprobs": [item.logprob for item in sampled], "top_logprobs": tops, "text_offset": offsets}
