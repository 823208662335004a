"""What the proxy's tests stand in: a scripted engine, a real store that can be made to wait or fail, one claimed attempt."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from asgi import serving
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from leyden.proxy import LLMProxy
from leyden.server.sqlstore import SQLStore
from leyden.types import LLM, AttemptBinding, Generation, Lease, LeaseRef, NewRollout, Span

PROMPT_IDS = [1, 2, 3, 4]
PARAMETERS = {"type": "object", "properties": {"expression": {"type": "string"}}}
CALCULATOR = {"type": "function", "function": {"name": "calculate", "parameters": PARAMETERS}}


@dataclass
class Sample:
    """One choice: a piece of text or of tool-call arguments for each token."""

    pieces: list[str] = field(default_factory=lambda: ["4", "2", ""])
    ids: list[int] = field(default_factory=lambda: [40, 20, 99])
    tool: str | None = None
    logprob: float | None = 0.0  # another: of every token, NaN and null among them

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def finish_reason(self) -> str:
        return "tool_calls" if self.tool else "stop"

    def message(self) -> dict[str, Any]:
        if self.tool is None:
            return {"role": "assistant", "content": self.text, "refusal": None, "tool_calls": []}
        return {"role": "assistant", "content": None, "tool_calls": [self._call(self.text)]}

    def delta(self, position: int) -> dict[str, Any]:
        if self.tool is None:
            return {"content": self.pieces[position]} if self.pieces[position] else {}
        if position == 0:
            return {"tool_calls": [{"index": 0, **self._call(self.pieces[0])}]}
        return {"tool_calls": [{"index": 0, "function": {"arguments": self.pieces[position]}}]}

    def logprobs(self, start: int = 0, end: int | None = None) -> dict[str, Any]:
        values = [-id / 100 if self.logprob is Sample.logprob else self.logprob for id in self.ids[start:end]]
        return {"content": [{"token": "t", "logprob": value, "bytes": None, "top_logprobs": []} for value in values]}

    def _call(self, arguments: str) -> dict[str, Any]:
        return {"id": "call_1", "type": "function", "function": {"name": self.tool, "arguments": arguments}}


class Engine:
    """Speaks vLLM's dialect of chat completions. ``fault`` says how the next calls go wrong; ``samples`` what they answer."""

    def __init__(self) -> None:
        self.samples = [Sample()]
        self.fault: str | None = None  # "status", "redirect", "busy", "cut", "dies", "garbage", "error_event", "malformed", "hang", "slow"
        self.completion_tokens: int | None = None  # None: the truth
        self.withholds: str | None = None  # "return_token_ids" or "logprobs": asked for, but not given
        self.bodies: list[dict[str, Any]] = []
        self.authorizations: list[str] = []
        self.entered = asyncio.Event()
        self.left = asyncio.Event()  # the proxy closed its connection early
        self.resume = asyncio.Event()  # a hanging call goes on
        self.api_base = ""

    async def chat(self, request: Request) -> Response:
        body = json.loads(await request.body())
        self.bodies.append(body)
        self.authorizations.append(request.headers["authorization"])
        self.entered.set()
        if self.fault == "status":
            return JSONResponse({"error": {"message": "too long", "type": "BadRequestError", "code": 400}}, 400, {"retry-after": "7"})
        if self.fault == "busy":
            return JSONResponse({"error": {"message": "slow down", "type": "RateLimitError", "code": 429}}, 429, {"retry-after": "3"})
        if self.fault == "slow" and await self._hang(request):
            return Response()
        if self.fault == "redirect":
            return Response(status_code=307, headers={"location": "http://elsewhere.example/"})
        if self.fault == "garbage":
            return Response("<html>")
        if body.get("stream"):
            return StreamingResponse(self._chunks(body), media_type="text/event-stream")
        if self.fault == "hang" and await self._hang(request):
            return Response()
        if self.fault == "dies":
            return StreamingResponse(self._half(body), media_type="application/json", headers={"content-length": "10000"})
        return Response(json.dumps(self._whole(body)), media_type="application/json")

    async def _half(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        yield json.dumps(self._whole(body)).encode()[:100]
        raise ConnectionResetError("as an engine that is killed leaves its connections")

    async def _hang(self, request: Request) -> bool:
        """True if the proxy went away, False if the test let the call go on."""
        gone, resumed = asyncio.ensure_future(request.receive()), asyncio.ensure_future(self.resume.wait())
        await asyncio.wait({gone, resumed}, return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            self.left.set()
        gone.cancel()
        resumed.cancel()
        return self.left.is_set()

    def _gives(self, what: str, body: dict[str, Any]) -> bool:
        return bool(body.get(what)) and what != self.withholds

    def _usage(self) -> dict[str, int]:
        total = sum(len(s.ids) for s in self.samples) if self.completion_tokens is None else self.completion_tokens
        return {"prompt_tokens": len(PROMPT_IDS), "completion_tokens": total, "total_tokens": len(PROMPT_IDS) + total}

    def _whole(self, body: dict[str, Any]) -> dict[str, Any]:
        ids, logprobs = self._gives("return_token_ids", body), self._gives("logprobs", body)
        choices = [
            {
                "index": index,
                "message": sample.message(),
                "logprobs": sample.logprobs() if logprobs else None,
                "finish_reason": sample.finish_reason,
                "token_ids": sample.ids if ids else None,
            }
            for index, sample in enumerate(self.samples)
        ]
        if self.fault == "malformed":
            choices[0]["logprobs"] = {"content": [{"no": "logprob"}]}
        envelope = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": body["model"]}
        return {**envelope, "choices": choices, "usage": self._usage(), "prompt_token_ids": PROMPT_IDS if ids else None}

    async def _chunks(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        ids, logprobs = self._gives("return_token_ids", body), self._gives("logprobs", body)
        envelope = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
        try:
            for index in range(len(self.samples)):
                delta = {"role": "assistant", "content": ""}
                choice: dict[str, Any] = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
                yield _event({**envelope, "choices": [choice], **({"prompt_token_ids": PROMPT_IDS} if ids else {})})
            for position in range(max(len(s.ids) for s in self.samples)):
                if position == 1 and self.fault == "hang":
                    await self.resume.wait()
                if position == 1 and self.fault == "cut":
                    return
                if position == 1 and self.fault == "dies":
                    raise ConnectionResetError("as an engine that is killed leaves its connections")
                if position == 1 and self.fault == "error_event":
                    yield _event({"error": {"message": "out of memory", "code": 500}})
                    return
                for index, sample in enumerate(self.samples):
                    if position >= len(sample.ids):
                        continue
                    last = position == len(sample.ids) - 1
                    yield _event({**envelope, "choices": [{
                        "index": index,
                        "delta": sample.delta(position),
                        "logprobs": sample.logprobs(position, position + 1) if logprobs else None,
                        "finish_reason": sample.finish_reason if last else None,
                        **({"token_ids": sample.ids[position : position + 1]} if ids else {}),
                    }]})  # fmt: skip
            if (body.get("stream_options") or {}).get("include_usage"):
                yield _event({**envelope, "choices": [], "usage": self._usage()})
            yield b"data: [DONE]\n\n"
        except asyncio.CancelledError:
            self.left.set()
            raise


def _event(value: Any) -> bytes:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n".encode()


@asynccontextmanager
async def running_engine() -> AsyncIterator[Engine]:
    engine = Engine()

    async def chat(request: Request) -> Response:
        return await engine.chat(request)  # looked up anew: a test may have put something else in its place

    routes = [Route(f"/v1{path}", chat, methods=["POST"]) for path in ("/chat/completions", "/completions")]
    async with serving(Starlette(routes=routes)) as url:
        engine.api_base = f"{url}/v1"
        try:
            yield engine
        finally:
            engine.resume.set()


class Gate:
    """A real store of which a test can hold back or break the writes the proxy makes, and count its questions."""

    def __init__(self, store: SQLStore) -> None:
        self._store = store
        self.resolved = 0
        self.writing = asyncio.Event()  # add_generations was called
        self.written = asyncio.Event()  # and has returned
        self.open = asyncio.Event()
        self.open.set()
        self.error: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def resolve_key(self, key: str) -> AttemptBinding:
        self.resolved += 1
        return await self._store.resolve_key(key)

    async def add_generations(self, ref: LeaseRef, generations: Sequence[Generation], spans: Sequence[Span] = ()) -> None:
        self.writing.set()
        await self.open.wait()
        if self.error:
            raise self.error
        await self._store.add_generations(ref, generations, spans)
        self.written.set()


@dataclass
class Room:
    engine: Engine
    store: Gate
    proxy: LLMProxy
    client: httpx.AsyncClient
    lease: Lease = field(init=False)

    async def ask(self, lease: Lease | None = None, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
        body = {"model": "policy", "messages": [{"role": "user", "content": "6 * 7?"}], **body}
        key = (lease or self.lease).key
        url = f"{self.proxy.base_url}/chat/completions"
        return await self.client.post(url, json=body, headers={"authorization": f"Bearer {key}", **(headers or {})})

    async def rows(self, lease: Lease | None = None) -> list[Generation]:
        ref = (lease or self.lease).ref
        return await self.store.list_generations([ref.rollout_id], ref.attempt)

    async def claim(self, **llms: LLM) -> Lease:
        """A new attempt pinned to these resources."""
        resources = await self.store.add_resources(dict(llms))
        await self.store.enqueue([NewRollout(input="task", resources_id=resources.id)])
        [lease] = await self.store.claim("worker", 1)
        return lease


def entry(
    engine: Engine, checkpoint: str = "version_0", name: str = "policy", params: dict[str, Any] | None = None, **info: Any
) -> dict[str, Any]:
    litellm = {"model": f"hosted_vllm/models/{checkpoint}", "api_base": engine.api_base, "api_key": "engine-secret"} | (params or {})
    return {"model_name": name, "litellm_params": litellm, "model_info": {"checkpoint": checkpoint, **info}}


@asynccontextmanager
async def room(**sampling: Any) -> AsyncIterator[Room]:
    """A proxy in front of one engine that serves ``policy``, and an attempt pinned to it."""
    async with await SQLStore.open() as store, running_engine() as engine, httpx.AsyncClient(timeout=200, verify=False) as client:
        gate = Gate(store)
        proxy = LLMProxy(gate)
        proxy.update_model_list([entry(engine)])
        await proxy.start()
        this = Room(engine, gate, proxy, client)
        try:
            this.lease = await this.claim(llm=proxy.as_resource(sampling_parameters=sampling))
            yield this
        finally:
            gate.open.set()
            await proxy.stop()


def events(text: str) -> list[Any]:
    """The JSON of a stream's events, ``[DONE]`` as a string."""
    data = [part.removeprefix("data: ") for part in text.split("\n\n") if part]
    return [part if part == "[DONE]" else json.loads(part) for part in data]


def in_room(test: Callable[[Room], Awaitable[None]], **sampling: Any) -> None:
    async def main() -> None:
        async with room(**sampling) as this:
            await asyncio.wait_for(test(this), 240)

    asyncio.run(main())
