"""A proxy in front of an engine, and a relay between them that tells whether every token was kept.

An engine's answers pass the relay on their way to the proxy: what the engine returned is read there, from the bytes, not from what the
proxy made of them.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from asgi import serving
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from leyden.proxy import LLMProxy
from leyden.server.sqlstore import SQLStore
from leyden.types import Generation, Lease, NewRollout

# Texts that end an answer and stand in no tool call and no JSON below. A tiny model knows no end, but says one of these soon; vLLM takes
# four at most.
TINY_STOPS = [*"dfhijkqvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", *"!#$%&'()*;=?@[]^`|~"]
VLLM_STOPS = [".", "!", "?", " the "]


@dataclass(frozen=True)
class Returned:
    """One choice as the engine returned it."""

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str | None


@dataclass
class Relay:
    """Hands requests on to an engine, and reads along what comes back."""

    engine: str  # its base URL
    returned: list[Returned] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/v1/{path:path}", self._hand_on, methods=["GET", "POST"])])

    async def _hand_on(self, request: Request) -> Response:
        body = await request.body()
        if body:
            self.bodies.append(json.loads(body))
        client = httpx.AsyncClient(timeout=600.0, trust_env=False)
        url = f"{self.engine}/{request.path_params['path']}"
        sent = client.build_request(request.method, url, content=body, headers={"content-type": "application/json"})
        answer = await client.send(sent, stream=True)

        async def parts() -> AsyncIterator[bytes]:
            raw = bytearray()
            async for part in answer.aiter_raw():
                raw += part
                yield part
            await client.aclose()
            if request.method == "POST" and answer.status_code == 200:
                self.returned += read(bytes(raw))

        return StreamingResponse(parts(), answer.status_code, media_type=answer.headers.get("content-type"))


def read(raw: bytes) -> list[Returned]:
    """The choices of an answer, whole or streamed, of chat completions or completions."""
    if raw.startswith(b"{"):
        messages = [json.loads(raw)]
    else:
        lines = [line.removeprefix("data: ") for line in raw.decode().split("\n") if line.startswith("data: ")]
        messages = [json.loads(line) for line in lines if line != "[DONE]"]
    prompts: dict[int, list[int]] = {}
    whole: dict[int, dict[str, Any]] = {}
    for message in messages:
        for choice in message.get("choices") or ():
            index = choice["index"]
            said = whole.setdefault(index, {"ids": [], "logprobs": [], "finish_reason": None})
            prompts[index] = message.get("prompt_token_ids") or choice.get("prompt_token_ids") or prompts.get(index, [])
            said["ids"] += choice.get("token_ids") or []
            logprobs = choice.get("logprobs") or {}
            said["logprobs"] += [token["logprob"] for token in logprobs.get("content") or ()] or logprobs.get("token_logprobs") or []
            said["finish_reason"] = choice.get("finish_reason") or said["finish_reason"]
    return [
        Returned(tuple(prompts[index]), tuple(said["ids"]), tuple(said["logprobs"]), said["finish_reason"])
        for index, said in sorted(whole.items())
    ]


@dataclass
class Desk:
    """A proxy in front of an engine, and an attempt whose agent is at work."""

    relay: Relay
    store: SQLStore
    proxy: LLMProxy
    lease: Lease
    stops: Sequence[str]
    model: str = "policy"

    @property
    def url(self) -> str:
        """For clients that add ``/v1`` to the attempt URL themselves, and send no key that counts."""
        return f"{self.proxy.base_url.removesuffix('/v1')}/a/{self.lease.key}"

    async def check(self) -> list[Generation]:
        """Every choice that the engine returned is a row, and every row is one, id for id. The rows, in the order of their calls."""
        rows = await self.store.list_generations([self.lease.ref.rollout_id], self.lease.ref.attempt)
        kept = [
            Returned(tuple(row.prompt_token_ids or ()), tuple(row.response_token_ids or ()), tuple(row.logprobs or ()), row.finish_reason)
            for row in rows
        ]
        order = lambda choice: (choice.prompt, choice.ids)  # noqa: E731
        returned = sorted(self.relay.returned, key=order)
        kept.sort(key=order)
        assert [(c.prompt, c.ids, c.finish_reason) for c in kept] == [(c.prompt, c.ids, c.finish_reason) for c in returned]
        for ours, theirs in zip(kept, returned, strict=True):
            assert ours.ids and len(ours.logprobs) == len(ours.ids)
            assert max(abs(a - b) for a, b in zip(ours.logprobs, theirs.logprobs, strict=True)) < 1e-5  # kept as float32
        assert all(row.status == "ok" and row.checkpoint == "version_0" for row in rows)
        return sorted(rows, key=lambda row: (row.started_at, row.choice))


@asynccontextmanager
async def desk(engine: str, model: str, stops: Sequence[str] = TINY_STOPS) -> AsyncIterator[Desk]:
    """``engine``: the base URL of one that serves ``model``."""
    relay = Relay(engine)
    async with await SQLStore.open() as store, serving(relay.app()) as url:
        proxy = LLMProxy(store)
        entry = {"model_name": "policy", "litellm_params": {"model": f"hosted_vllm/{model}", "api_base": f"{url}/v1"}}
        proxy.update_model_list([{**entry, "model_info": {"checkpoint": "version_0"}}])
        await proxy.start()
        try:
            resources = await store.add_resources({"llm": proxy.as_resource()})
            await store.enqueue([NewRollout(input="task", resources_id=resources.id)])
            [lease] = await store.claim("worker", 1, lease_seconds=600)
            yield Desk(relay, store, proxy, lease, stops)
        finally:
            await proxy.stop()
