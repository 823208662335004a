"""litellm in real use: upstreams that speak Anthropic's and OpenAI's APIs on loopback, an agent that speaks OpenAI's to the proxy.

Where litellm is not installed these are skipped, with a warning that says so: `pip install 'leyden[litellm]'`.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import warnings
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from asgi import serving
from proxy_room import CALCULATOR, Room, in_room
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from leyden.algorithm.triplets import GenerationsToTriplets, Refusal
from leyden.ports import reserve_port
from leyden.types import Lease

if importlib.util.find_spec("litellm") is None:
    warnings.warn("litellm is not installed: its bridge is NOT tested (pip install 'leyden[litellm]')", stacklevel=1)
    pytest.skip("litellm is not installed: pip install 'leyden[litellm]'", allow_module_level=True)

pytestmark = pytest.mark.timeout(600)  # importing litellm takes 3 to 11 s on an idle machine

QUESTION: list[Any] = [{"role": "user", "content": "6 * 7?"}]


class Provider:
    """Both APIs in one: Anthropic's messages and OpenAI's chat completions."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.status = 200
        self.silent = False
        self.entries: list[dict[str, Any]] = []  # the model list that names it

    async def messages(self, request: Request) -> Response:
        body = await self._take(request)
        if self.silent:
            await asyncio.wait_for(request.receive(), 60)  # until whoever asked has gone
        if self.status != 200:
            return JSONResponse({"type": "error", "error": {"type": "overloaded_error", "message": "come back later"}}, self.status)
        if body.get("stream"):
            return StreamingResponse(self._anthropic_events(), media_type="text/event-stream")
        content: dict[str, Any] = {"type": "text", "text": "42"}
        if body.get("tools"):
            content = {"type": "tool_use", "id": "toolu_1", "name": "calculate", "input": {"expression": "6*7"}}
        stop = "tool_use" if body.get("tools") else "end_turn"
        return JSONResponse(_message([content], stop, 3))

    async def chat(self, request: Request) -> Response:
        body = await self._take(request)
        envelope = {"id": "c", "created": 1, "model": body["model"]}
        usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
        if body.get("stream"):
            return StreamingResponse(self._openai_events(envelope, usage), media_type="text/event-stream")
        choice = {"index": 0, "message": {"role": "assistant", "content": "42"}, "finish_reason": "stop"}
        return JSONResponse({**envelope, "object": "chat.completion", "choices": [choice], "usage": usage})

    async def _take(self, request: Request) -> dict[str, Any]:
        body: dict[str, Any] = await request.json()
        self.requests.append((request.url.path, body, dict(request.headers)))
        return body

    async def _anthropic_events(self) -> AsyncIterator[bytes]:
        yield _event({"type": "message_start", "message": _message([], None, 1)})
        yield _event({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
        for text in ("4", "2"):
            yield _event({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}})
        yield _event({"type": "content_block_stop", "index": 0})
        yield _event({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}})
        yield _event({"type": "message_stop"})

    async def _openai_events(self, envelope: dict[str, Any], usage: dict[str, int]) -> AsyncIterator[bytes]:
        envelope = {**envelope, "object": "chat.completion.chunk"}
        for text, reason in (("4", None), ("2", None), ("", "stop")):
            delta = {"role": "assistant", "content": text}
            yield _event({**envelope, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})
        yield _event({**envelope, "choices": [], "usage": usage})
        yield b"data: [DONE]\n\n"


def _message(content: list[Any], stop: str | None, output: int) -> dict[str, Any]:
    usage = {"input_tokens": 9, "output_tokens": output}
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": content,
        "stop_reason": stop,
        "usage": usage,
    }


def _event(value: dict[str, Any]) -> bytes:
    kind = f"event: {value['type']}\n" if "type" in value else ""
    return f"{kind}data: {json.dumps(value)}\n\n".encode()


@contextlib.asynccontextmanager
async def provider(this: Room, model: str, path: str) -> AsyncIterator[tuple[Provider, openai.AsyncOpenAI, Lease]]:
    """An upstream behind litellm, and an agent's client bound to an attempt that is pinned to it."""
    upstream = Provider()
    routes = [Route("/v1/messages", upstream.messages, methods=["POST"]), Route("/v1/chat/completions", upstream.chat, methods=["POST"])]
    async with serving(Starlette(routes=routes)) as url:
        params = {"model": model, "api_base": url + path, "api_key": "provider-secret"}
        upstream.entries = [{"model_name": "teacher", "litellm_params": params, "model_info": {"checkpoint": "their own"}}]
        this.proxy.update_model_list(upstream.entries)
        lease = await this.claim(llm=this.proxy.as_resource())
        async with openai.AsyncOpenAI(base_url=this.proxy.base_url, api_key=lease.key, max_retries=0, timeout=580) as client:
            yield upstream, client, lease


FORMS = [
    ("anthropic/claude-sonnet-4-5", "", "/v1/messages"),
    ("custom_openai/their-model", "/v1", "/v1/chat/completions"),  # through litellm
    ("openai/their-model", "/v1", "/v1/chat/completions"),  # passed through: its server ignores what it does not know
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("model", "base", "path"), FORMS)
def test_a_call_through_litellm_is_recorded_with_its_usage_and_span_and_claims_no_token_ids(
    model: str, base: str, path: str, stream: bool
) -> None:
    async def test(this: Room) -> None:
        async with provider(this, model, base) as (upstream, client, lease):
            text = await _ask(client, stream)
            assert text == "42"
            [(asked, body, headers)] = upstream.requests
            assert asked == path and body["model"] == model.partition("/")[2] and body["temperature"] == 0.5
            assert "provider-secret" in (headers.get("x-api-key") or headers["authorization"]) and lease.key not in str(headers)
            [row] = await this.rows(lease)
            assert (row.status, row.finish_reason, row.checkpoint) == ("ok", "stop", "their own")
            assert row.response == {"role": "assistant", "content": "42"} and row.request["messages"] == QUESTION
            assert (row.prompt_tokens, row.completion_tokens) == (9, 3)
            assert row.prompt_token_ids is row.response_token_ids is row.logprobs is None
            [span] = await this.store.list_spans(lease.ref.rollout_id)
            assert (span.name, span.status) == ("chat teacher", "ok")
            assert span.attributes["leyden.generation_ids"] == [row.id]
            assert (span.attributes["gen_ai.usage.input_tokens"], span.attributes["gen_ai.usage.output_tokens"]) == (9, 3)
            adapter = GenerationsToTriplets()
            assert adapter.adapt([row], []) == [] and adapter.refused == {Refusal.NO_IDS: 1}

    in_room(test)


async def _ask(client: openai.AsyncOpenAI, stream: bool) -> str | None:
    if not stream:
        answer = await client.chat.completions.create(model="teacher", messages=QUESTION, temperature=0.5)
        return answer.choices[0].message.content
    chunks = await client.chat.completions.create(model="teacher", messages=QUESTION, temperature=0.5, stream=True)
    return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks if chunk.choices])


def test_a_tool_call_comes_back_in_openais_form() -> None:
    async def test(this: Room) -> None:
        async with provider(this, "anthropic/claude-sonnet-4-5", "") as (_, client, lease):
            answer = await client.chat.completions.create(model="teacher", messages=QUESTION, tools=[CALCULATOR])  # type: ignore[list-item]
            [call] = answer.choices[0].message.tool_calls or []
            assert call.type == "function"
            assert (call.function.name, json.loads(call.function.arguments)) == ("calculate", {"expression": "6*7"})
            [row] = await this.rows(lease)
            assert row.finish_reason == "tool_calls" and row.response is not None and row.response["tool_calls"][0]["id"] == "toolu_1"

    in_room(test)


def test_a_providers_own_error_keeps_its_status_and_one_that_is_not_there_is_gone() -> None:
    async def test(this: Room) -> None:
        async with provider(this, "anthropic/claude-sonnet-4-5", "") as (upstream, client, lease):
            upstream.status = 529
            with pytest.raises(openai.InternalServerError, match="come back later") as failed:
                await _ask(client, stream=False)
            assert failed.value.code == "upstream_error"
        with contextlib.closing(reserve_port("127.0.0.1", 0)) as socket:
            nowhere = f"http://127.0.0.1:{socket.getsockname()[1]}"
        for model in ("anthropic/claude-sonnet-4-5", "custom_openai/their-model"):
            params = {"model": model, "api_base": nowhere, "api_key": "x"}
            this.proxy.update_model_list([{"model_name": "teacher", "litellm_params": params}])
            lease = await this.claim(llm=this.proxy.as_resource())
            async with openai.AsyncOpenAI(base_url=this.proxy.base_url, api_key=lease.key, max_retries=0, timeout=100) as client:
                with pytest.raises(openai.InternalServerError) as gone:
                    await _ask(client, stream=False)
            assert (gone.value.status_code, gone.value.code) == (503, "engine_gone")
            [row] = await this.rows(lease)
            assert row.status == "error"

    in_room(test)


def test_a_provider_that_does_not_answer_in_time_is_given_up_after_the_entrys_timeout() -> None:
    async def test(this: Room) -> None:
        async with provider(this, "anthropic/claude-sonnet-4-5", "") as (upstream, client, lease):
            await _ask(client, stream=False)  # litellm is loaded
            upstream.silent = True
            [entry] = [{**entry, "litellm_params": {**entry["litellm_params"], "timeout": 1}} for entry in upstream.entries]
            this.proxy.update_model_list([entry])
            with pytest.raises(openai.InternalServerError) as late:
                await _ask(client, stream=False)
            assert (late.value.status_code, late.value.code) == (504, "upstream_timeout")
            assert [row.status for row in await this.rows(lease)] == ["ok", "error"]

    in_room(test)


def test_litellm_is_loaded_without_touching_the_network_or_blocking_the_proxy() -> None:
    async def test(this: Room) -> None:
        async with provider(this, "anthropic/claude-sonnet-4-5", "") as (_, client, _lease):
            first = asyncio.create_task(_ask(client, stream=False))
            assert [model.id async for model in client.models.list()] == ["teacher"]
            assert await first == "42"

    in_room(test)
