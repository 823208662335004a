"""Token ids in, token ids out, in the wire shapes of vLLM's scale-out endpoints: render, generate, derender; tokenize and detokenize.

What is generated from need not be what was rendered: whoever keeps the ids of a conversation can go on with exactly those.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any, Literal

import orjson
from fastapi import FastAPI, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from leyden.models.embedded.chat import CLOSE, parse_tool_calls
from leyden.models.embedded.choice import ChatChoice, TextChoice
from leyden.models.embedded.completion import prompt_of
from leyden.models.embedded.engine import Samples, Token, TransformersEngine
from leyden.models.embedded.protocol import ChatRequest
from leyden.models.embedded.reasoning import begun
from leyden.models.embedded.sampling import Sampled, Sampling

TokenId = Annotated[int, Field(ge=0, lt=2**31)]


class SamplingParams(BaseModel):
    """As render gives them. Unknown ones are refused: they would be ignored."""

    model_config = ConfigDict(extra="forbid")

    n: int = Field(1, ge=1, le=64)
    temperature: float = Field(1.0, ge=0, le=10)
    top_p: float = Field(1.0, gt=0, le=1)
    max_tokens: int | None = Field(None, ge=1)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = Field(None, ge=0, le=20)
    grammar: str | None = None  # in Lark
    one_call: bool = False  # stop once there is a tool call


class GenerateRequest(BaseModel):
    request_id: str = Field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    model: str | None = None
    token_ids: list[TokenId] = Field(min_length=1)
    sampling_params: SamplingParams = SamplingParams()
    output_mode: Literal["tokens", "text"] = "tokens"
    stream: bool = False


class GeneratedChoice(BaseModel):
    index: int
    token_ids: list[TokenId] = Field(default_factory=list)
    finish_reason: str | None = "stop"
    stop_reason: str | int | None = None


class GeneratedResponse(BaseModel):
    request_id: str = ""
    choices: list[GeneratedChoice]


class DerenderRequest(BaseModel):
    model: str | None = None
    generate_response: GeneratedResponse
    prompt_token_ids: list[TokenId] | None = None
    prompt_tokens: int | None = None
    chat_request: ChatRequest


class TokenizeRequest(BaseModel):
    """A text, or what a chat completion would be asked."""

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool = True
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def check_that_there_is_one(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        return self


class DetokenizeRequest(BaseModel):
    model: str | None = None
    tokens: list[TokenId]


class Generation:
    """A request in progress. ``grammar``: a compiled one. Raises ``ValueError`` for ids that the model does not know, or that leave no room
    for an answer."""

    def __init__(self, engine: TransformersEngine, request: GenerateRequest, grammar: str | None) -> None:
        params = request.sampling_params
        if bad := [token for token in request.token_ids if not 0 <= token < engine.vocab_size]:
            raise ValueError(f"token_ids: {bad[0]} is not below the vocabulary's {engine.vocab_size}")
        sampling = Sampling(params.temperature, params.top_p, params.max_tokens, params.seed, params.stop, params.logprobs or 0)
        self._engine, self._request, self.streams = engine, request, request.stream
        self.samples: Samples = engine.sample(request.token_ids, sampling, params.n, grammar)
        self._choices = [TextChoice(index, engine, params.stop) for index in range(params.n)]

    async def answer(self) -> dict[str, Any]:
        async for _ in self._grow():
            pass
        choices = [self._shown(choice, choice.text, choice.sampled) for choice in self._choices]
        return {**self._head, "choices": choices, "usage": self._usage()}

    async def stream(self) -> AsyncIterator[dict[str, Any]]:
        told = [0] * len(self._choices)
        async for choice, sampled in self._grow():
            piece, told[choice.index] = choice.text[told[choice.index] :], len(choice.text)
            yield {**self._head, "choices": [self._shown(choice, piece, [sampled])]}
        yield {**self._head, "choices": [], "usage": self._usage()}

    async def _grow(self) -> AsyncIterator[tuple[TextChoice, Sampled]]:
        """Each choice after each of its tokens."""
        async for tokens in self.samples:
            for token in tokens:
                choice = self._choices[token.choice]
                if choice.finish_reason is None:  # else its text ended it, and this was drawn before the scheduler heard of that
                    if choice.add(token) or self._has_its_call(choice):
                        choice.finish_reason = choice.finish_reason or "stop"
                        self.samples.end(token.choice)
                    yield choice, token.sampled

    def _has_its_call(self, choice: TextChoice) -> bool:
        """As chat completions end where one tool call is all that is wanted."""
        return self._request.sampling_params.one_call and CLOSE in choice.text and bool(parse_tool_calls(choice.text)[1])

    @property
    def _head(self) -> dict[str, Any]:
        return {"request_id": self._request.request_id, "output_mode": self._request.output_mode}

    def _shown(self, choice: TextChoice, text: str, sampled: list[Sampled]) -> dict[str, Any]:
        as_text = self._request.output_mode == "text"
        shown = {
            "index": choice.index,
            "token_ids": [item.token for item in sampled],
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            "logprobs": None,
        }
        if self._request.sampling_params.logprobs is not None:
            shown["logprobs"] = {"content": [self._logprob(item, as_text) for item in sampled]}
        return {**shown, "text": text} if as_text else shown

    def _logprob(self, sampled: Sampled, as_text: bool) -> dict[str, Any]:
        top = [self._entry(token, logprob, as_text) for token, logprob in sampled.top]
        return {**self._entry(sampled.token, sampled.logprob, as_text), "top_logprobs": top}

    def _entry(self, token: int, logprob: float, as_text: bool) -> dict[str, Any]:
        if not as_text:
            return {"token_id": token, "logprob": logprob}
        text = self._engine.tokenizer.decode([token])
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    def _usage(self) -> dict[str, int]:
        prompt, completion = len(self._request.token_ids), sum(len(choice.sampled) for choice in self._choices)
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def rendered(engine: TransformersEngine, request: ChatRequest) -> dict[str, Any]:
    """What generate takes. Raises ``ValueError`` for messages that the template cannot render."""
    ids, sampling = prompt_of(engine, request), request.sampling()
    room = engine.max_model_len - len(ids)
    if request.grammar:
        engine.compile(request.grammar)  # here, in a thread: the first one takes a second, and one that cannot be followed is said early
    params = SamplingParams(
        n=request.n,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        max_tokens=max(1, min(sampling.max_tokens or room, room)),
        seed=sampling.seed,
        stop=sampling.stop,
        logprobs=sampling.top_logprobs if request.logprobs else None,
        grammar=request.grammar,
        one_call=request.with_tools and request.parallel_tool_calls is False,
    )
    return {
        "request_id": f"chatcmpl-{uuid.uuid4().hex}",
        "model": request.model,
        "token_ids": ids,
        "sampling_params": params.model_dump(),
        "features": None,
        "reasoning_parser_kwargs": {"chat_template_kwargs": request.chat_template_kwargs or {}} if engine.thinks else None,
    }


def derendered(engine: TransformersEngine, request: DerenderRequest) -> dict[str, Any]:
    """A chat completion of what was generated, by what makes one of any answer."""
    choices = []
    inside = engine.thinks and begun(engine.tokenizer.decode((request.prompt_token_ids or [])[-8:]))
    for generated in request.generate_response.choices:
        choice = ChatChoice(generated.index, engine, request.chat_request, inside)
        for place, token in enumerate(generated.token_ids, 1):
            last = place == len(generated.token_ids)
            choice.add(Token(generated.index, Sampled(token, 0.0), (generated.finish_reason or "stop") if last else None))
        message = choice.message()
        entry = {
            "index": generated.index,
            "message": message,
            "finish_reason": generated.finish_reason,
            "stop_reason": generated.stop_reason,
        }
        choices.append({**entry, "logprobs": None})
    return {"id": request.generate_response.request_id, "object": "chat.completion", "model": request.model, "choices": choices}


def add_token_routes(
    app: FastAPI,
    engine: TransformersEngine,
    model_name: str,
    read: Callable[[Request], Awaitable[bytes]],
    refuse: Callable[..., Response],
    respond: Callable[[Request, Any, bool], Awaitable[Response]],
) -> None:
    """As the server's other routes do it: ``read`` a request's body, ``refuse(status, message, code)``, and ``respond`` with what has an
    ``answer``, or as a stream."""

    def answers(path: str, model: type[BaseModel], answer: Callable[[Any], Awaitable[Any]]) -> None:
        async def endpoint(request: Request) -> Response:
            try:
                body = model.model_validate(orjson.loads(await read(request)))
                asked = getattr(body, "model", None)
                if asked not in (None, model_name):
                    return refuse(404, f"no model {asked!r} here; this engine serves {model_name!r}", "model_not_found")
                result = await answer(body)
            except ValidationError as error:
                first = error.errors()[0]
                return refuse(400, f"{'.'.join(map(str, first['loc'])) or 'body'}: {first['msg']}")
            except ValueError as error:  # no JSON, or messages that cannot be rendered
                return refuse(400, str(error))
            except OverflowError:
                return refuse(413, "the body is too large")
            if isinstance(result, Generation):
                return await respond(request, result, result.streams)
            return Response(orjson.dumps(result), media_type="application/json")

        app.add_api_route(path, endpoint, methods=["POST"])

    tokenizer = engine.tokenizer

    async def generate(body: GenerateRequest) -> Generation:
        grammar = body.sampling_params.grammar
        return Generation(engine, body, await asyncio.to_thread(engine.compile, grammar) if grammar else None)

    async def tokenize(body: TokenizeRequest) -> dict[str, Any]:
        if body.messages is None:
            ids = await asyncio.to_thread(tokenizer.encode, body.prompt, add_special_tokens=body.add_special_tokens)
        else:
            said = {"messages": body.messages, "tools": body.tools, "chat_template_kwargs": body.chat_template_kwargs}
            ids = await asyncio.to_thread(prompt_of, engine, ChatRequest(model=model_name, **said))
        return {"tokens": ids, "count": len(ids), "max_model_len": engine.max_model_len}

    async def detokenize(body: DetokenizeRequest) -> dict[str, Any]:
        return {"prompt": await asyncio.to_thread(tokenizer.decode, body.tokens)}

    answers("/v1/chat/completions/render", ChatRequest, lambda body: asyncio.to_thread(rendered, engine, body))
    answers("/v1/chat/completions/derender", DerenderRequest, lambda body: asyncio.to_thread(derendered, engine, body))
    answers("/inference/v1/generate", GenerateRequest, generate)
    answers("/tokenize", TokenizeRequest, tokenize)
    answers("/detokenize", DetokenizeRequest, detokenize)
