"""Anthropic's ``count_tokens``: the prompt that ``messages`` would be asked, counted by its engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic import AsyncAnthropic
from asgi import serving
from proxy_room import Room, entry, in_room
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from tinymodel import make_tiny_model

SAID: list[Any] = [{"role": "user", "content": "6 * 7?"}]
TOOLS: list[Any] = [{"name": "calculate", "description": "d", "input_schema": {"type": "object", "properties": {}}}]


def client(this: Room) -> AsyncAnthropic:
    return AsyncAnthropic(base_url=this.proxy.base_url.removesuffix("/v1"), api_key=this.lease.key, max_retries=0)


def test_a_prompt_is_as_long_as_it_will_be_and_counting_it_is_no_call(tmp_path: Path) -> None:
    from leyden.models.embedded.engine import TransformersEngine
    from leyden.models.embedded.server import create_app

    engine = TransformersEngine(make_tiny_model(tmp_path / "tiny"), device="cpu")

    async def test(this: Room) -> None:
        async with serving(create_app(engine, "models/version_0")) as url:
            this.engine.api_base = f"{url}/v1"
            this.proxy.update_model_list([entry(this.engine)])
            this.lease = await this.claim(llm=this.proxy.as_resource())
            async with client(this) as agent:
                for more in ({}, {"system": "Be brief.", "tools": TOOLS}):
                    counted = await agent.messages.count_tokens(model="policy", messages=SAID, **more)
                    said = await agent.messages.create(model="policy", max_tokens=1, messages=SAID, **more)
                    assert counted.input_tokens == said.usage.input_tokens > 5
            assert [len(row.prompt_token_ids or ()) for row in await this.rows()][-1] == counted.input_tokens
            assert len(await this.rows()) == 2

    try:
        in_room(test)
    finally:
        engine.close()


def test_each_failure_is_the_anthropic_sdks_own_error() -> None:
    async def test(this: Room) -> None:
        async def tokenize(request: Request) -> Response:
            asked = await request.json()
            assert asked == {"model": "models/version_0", "messages": SAID}
            return JSONResponse({"count": 3})

        async with client(this) as agent:
            with pytest.raises(anthropic.NotFoundError):  # an engine that has no such route
                await agent.messages.count_tokens(model="policy", messages=SAID)
            with pytest.raises(anthropic.BadRequestError, match="messages is empty"):
                await agent.messages.count_tokens(model="policy", messages=[])
            with pytest.raises(anthropic.AuthenticationError):
                await agent.with_options(api_key="nobody").messages.count_tokens(model="policy", messages=SAID)
            async with serving(Starlette(routes=[Route("/tokenize", tokenize, methods=["POST"])])) as url:
                this.engine.api_base = f"{url}/v1"
                gone = entry(this.engine, id="gone")
                gone["litellm_params"]["api_base"] = "http://127.0.0.1:9/v1"
                this.proxy.update_model_list([gone, entry(this.engine, id="here")])
                this.lease = await this.claim(llm=this.proxy.as_resource())
                async with client(this) as other:
                    assert (await other.messages.count_tokens(model="policy", messages=SAID)).input_tokens == 3
            this.proxy.update_model_list([{"model_name": "gpt", "litellm_params": {"model": "openai/gpt-x", "api_key": "k"}}])
            this.lease = await this.claim(llm=this.proxy.as_resource())
            async with client(this) as other:
                with pytest.raises(anthropic.BadRequestError, match="tokenizes"):
                    await other.messages.count_tokens(model="gpt", messages=SAID)
        assert await this.rows() == []

    in_room(test)
