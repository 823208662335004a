"""Exact mode in the forms that are not a chat completion: what an agent's SDK keeps of an answer goes on with the ids that were sampled."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from asgi import serving
from openai import AsyncOpenAI
from proxy_room import Room, entry, in_room
from tinymodel import make_tiny_model

from leyden.audit import Continuity

NUMBER = {"type": "integer", "minimum": 0, "maximum": 99}
PARAMETERS = {"type": "object", "properties": {"a": NUMBER}, "required": ["a"], "additionalProperties": False}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from leyden.models.embedded.engine import TransformersEngine

    engine = TransformersEngine(make_tiny_model(tmp_path_factory.mktemp("exact") / "tiny"), device="cpu")
    yield engine
    engine.close()


@asynccontextmanager
async def at_an_exact_engine(this: Room, tiny: Any) -> AsyncIterator[None]:
    from leyden.models.embedded.server import create_app

    async with serving(create_app(tiny, "models/version_0")) as url:
        this.engine.api_base = f"{url}/v1"
        this.proxy.update_model_list([entry(this.engine, name="exact", id="exact", exact=True)])
        this.lease = await this.claim(llm=this.proxy.as_resource("exact"))
        yield


async def check(this: Room, turns: int) -> None:
    rows = await this.rows()
    for before, row in pairwise(rows):
        kept = [*(before.prompt_token_ids or ()), *(before.response_token_ids or ())]
        assert (row.prompt_token_ids or [])[: len(kept)] == kept
        assert row.audit and (row.audit.continuity, row.audit.exact, row.audit.findings) == (Continuity.CLEAN, True, ())
    assert len(rows) == turns and "tool_calls" in {row.finish_reason for row in rows}


def test_calls_and_results_in_anthropics_form(tiny: Any) -> None:
    async def test(this: Room) -> None:
        said: list[Any] = [{"role": "user", "content": "What is 12 + 34?"}]
        root = this.proxy.base_url.removesuffix("/v1")
        async with at_an_exact_engine(this, tiny), AsyncAnthropic(base_url=root, api_key="none", max_retries=0) as client:
            agent = client.with_options(api_key=this.lease.key)
            for turn in range(4):
                asked: dict[str, Any] = {"model": "exact", "max_tokens": 40, "messages": said, "extra_body": {"seed": turn}}
                asked["tools"] = [{"name": "add", "input_schema": PARAMETERS}]
                asked["tool_choice"] = {"type": "any", "disable_parallel_tool_use": True} if turn != 2 else {"type": "none"}
                if turn % 2:
                    async with agent.messages.stream(**asked) as told:
                        message: Any = await told.get_final_message()
                else:
                    message = await agent.messages.create(**asked)
                results = [
                    {"type": "tool_result", "tool_use_id": block.id, "content": "46"}
                    for block in message.content
                    if block.type == "tool_use"
                ]
                said += [{"role": "assistant", "content": message.content}, {"role": "user", "content": results or "Go on."}]
            await check(this, 4)

    in_room(test)


def test_calls_and_results_in_the_form_of_responses(tiny: Any) -> None:
    async def test(this: Room) -> None:
        items: list[Any] = [{"role": "user", "content": "What is 12 + 34?"}]
        async with at_an_exact_engine(this, tiny), AsyncOpenAI(base_url=this.proxy.base_url, api_key="none", max_retries=0) as client:
            agent = client.with_options(api_key=this.lease.key)
            for turn in range(4):
                asked: dict[str, Any] = {"model": "exact", "max_output_tokens": 40, "input": items, "extra_body": {"seed": turn}}
                asked |= {"tools": [{"type": "function", "name": "add", "parameters": PARAMETERS}], "parallel_tool_calls": False}
                asked["tool_choice"] = "none" if turn == 2 else "required"
                if turn % 2:
                    last: Any = [event async for event in await agent.responses.create(**asked, stream=True)][-1]
                    response = last.response
                else:
                    response = await agent.responses.create(**asked)
                calls = [item.call_id for item in response.output if item.type == "function_call"]
                results = [{"type": "function_call_output", "call_id": call, "output": "46"} for call in calls]
                items += [*(item.to_dict() for item in response.output), *(results or [{"role": "user", "content": "Go on."}])]
            await check(this, 4)

    in_room(test)
