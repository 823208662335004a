"""Real clients against the proxy: OpenAI's SDK as agents use it, and litellm towards a provider that does not speak OpenAI."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from typing import Any

import openai
import pytest
from asgi import serving
from openai import AsyncOpenAI
from proxy_room import CALCULATOR, Room, Sample, in_room
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

TOOL_CALL = Sample(pieces=['{"expression": ', '"6*7"}', ""], ids=[7, 8, 99], tool="calculate")
MESSAGES = [{"role": "user", "content": "6 * 7?"}]


def client(this: Room, **options: Any) -> Any:
    return AsyncOpenAI(base_url=this.proxy.base_url, api_key=this.lease.key, **options)


def test_the_openai_sdk_holds_a_tool_conversation_both_ways() -> None:
    async def test(this: Room) -> None:
        async with client(this) as agent:
            this.engine.samples = [TOOL_CALL]
            whole = await agent.chat.completions.create(model="policy", messages=MESSAGES, tools=[CALCULATOR])
            call = whole.choices[0].message.tool_calls[0]
            assert (call.function.name, json.loads(call.function.arguments)) == ("calculate", {"expression": "6*7"})
            stream = await agent.chat.completions.create(model="policy", messages=MESSAGES, tools=[CALCULATOR], stream=True)
            calls = [call async for chunk in stream for call in chunk.choices[0].delta.tool_calls or ()]
            assert calls[0].function.name == "calculate" and "".join(c.function.arguments for c in calls) == call.function.arguments

            this.engine.samples = [Sample()]
            turn = [*MESSAGES, whole.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "42"}]
            final = await agent.chat.completions.create(model="policy", messages=turn)
            assert final.choices[0].message.content == "42" and final.usage and final.usage.completion_tokens == 3
            assert [model.id async for model in agent.models.list()] == ["policy"]
            assert (await agent.models.retrieve("policy")).id == "policy"
        first, streamed, last = await this.rows()
        assert first.response == streamed.response and first.finish_reason == "tool_calls"
        assert first.response and first.response["tool_calls"][0]["function"]["arguments"] == '{"expression": "6*7"}'
        assert last.request["messages"][-1]["role"] == "tool"

    in_room(test)


def test_the_openai_sdk_raises_its_own_errors() -> None:
    async def test(this: Room) -> None:
        async with client(this, max_retries=0) as agent:
            this.engine.fault = "status"
            with pytest.raises(openai.BadRequestError, match="too long"):
                await agent.chat.completions.create(model="policy", messages=MESSAGES)
            this.engine.fault = "cut"
            with pytest.raises(openai.APIError, match="ended its stream"):
                async for _ in await agent.chat.completions.create(model="policy", messages=MESSAGES, stream=True):
                    pass
        async with client(this).with_options(api_key="nobody") as stranger:
            with pytest.raises(openai.AuthenticationError):
                await stranger.models.list()

    in_room(test)


def test_the_openai_sdk_tries_again_after_a_failed_commit_and_gets_a_new_sample() -> None:
    async def test(this: Room) -> None:
        async with client(this, max_retries=1) as agent:
            this.store.error = OSError("disk full")
            asking = asyncio.create_task(agent.chat.completions.create(model="policy", messages=MESSAGES))
            await this.store.writing.wait()
            while not this.proxy.counters["not_recorded"]:
                await asyncio.sleep(0)
            this.store.error = None
            assert (await asking).choices[0].message.content == "42"
        assert len(this.engine.bodies) == 2 and len(await this.rows()) == 1

    in_room(test)


async def _anthropic(request: Request) -> Response:
    body = await request.json()
    assert request.headers["x-api-key"] == "provider-secret"
    if body["messages"][0]["content"] == [{"type": "text", "text": "fail"}]:
        return JSONResponse({"type": "error", "error": {"type": "invalid_request_error", "message": "no such thing"}}, 400)
    message: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant", "model": body["model"], "stop_sequence": None}
    usage = {"input_tokens": 5, "output_tokens": 2}
    if not body.get("stream"):
        return JSONResponse({**message, "content": [{"type": "text", "text": "42"}], "stop_reason": "end_turn", "usage": usage})
    parts: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**message, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 0}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "4"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "2"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ]
    text = "".join(f"event: {part['type']}\ndata: {json.dumps(part)}\n\n" for part in parts)
    return Response(text, media_type="text/event-stream")


@pytest.mark.skipif(importlib.util.find_spec("litellm") is None, reason="needs litellm")  # imported by the bridge itself, not here
def test_a_provider_that_does_not_speak_openai_is_reached_through_litellm() -> None:
    async def test(this: Room) -> None:
        async with serving(Starlette(routes=[Route("/v1/messages", _anthropic, methods=["POST"])])) as url:
            params = {"model": "anthropic/claude-sonnet-4-5", "api_base": url, "api_key": "provider-secret"}
            this.proxy.update_model_list([{"model_name": "claude", "litellm_params": params, "model_info": {"checkpoint": "claude"}}])
            lease = await this.claim(llm=this.proxy.as_resource(sampling_parameters={"max_tokens": 16}))
            whole = await this.ask(lease, model="claude")
            assert whole.json()["choices"][0]["message"]["content"] == "42"
            stream = await this.ask(lease, model="claude", stream=True)
            assert stream.text.rstrip().endswith("[DONE]")
            failed = await this.ask(lease, model="claude", messages=[{"role": "user", "content": "fail"}])
            assert failed.status_code == 400 and "no such thing" in failed.json()["error"]["message"]
            stolen = await this.ask(lease, model="claude", api_base="http://elsewhere.example")
            assert stolen.status_code == 400 and stolen.json()["error"]["param"] == "api_base"
        first, second, third, _ = await this.rows(lease)
        assert first.response == second.response == {"role": "assistant", "content": "42"}
        assert (first.finish_reason, second.finish_reason, third.status) == ("stop", "stop", "error")
        assert (first.completion_tokens, second.completion_tokens) == (2, 2)
        assert first.sampling == {"max_tokens": 16} and first.checkpoint == "claude" and first.response_token_ids is None

    in_room(test)
