"""Real clients and frameworks that hold conversations with a model behind the proxy."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Literal

from desk import TINY_STOPS, Desk, desk
from pydantic import BaseModel, Field

MAX_TOKENS = 120
ONE = {"parallel_tool_calls": False}  # else a tiny model calls again and again
QUESTION = "What is 12 + 34?"

Number = Annotated[int, Field(ge=0, le=99)]


class Sum(BaseModel):
    """The answer to a sum."""

    value: Number


class Chosen(BaseModel):
    """The answer to a sum. PydanticAI takes the bounds out of schemas that are to be followed strictly, but leaves these values."""

    value: Literal[40, 46, 52]


def add(a: Literal[12, 34], b: Literal[12, 34]) -> int:
    """Adds."""
    return a + b


PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a": {"type": "integer", "minimum": 0, "maximum": 99},
        "b": {"type": "integer", "minimum": 0, "maximum": 99},
        "op": {"enum": ["+", "-"]},
    },
    "required": ["a", "b", "op"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "calculate", "description": "Calculates.", "parameters": PARAMETERS, "strict": True}}


def calculate(a: Number, b: Number, op: Literal["+", "-"]) -> int:
    """Calculates."""
    return a + b if op == "+" else a - b


Case = Callable[[Desk], Awaitable[int]]
CASES: dict[str, Case] = {}
"""By name: each has a conversation and returns how many choices it was given."""


def case(test: Case) -> Case:
    CASES[test.__name__] = test
    return test


def run(engine: str, model: str, name: str, stops: Sequence[str] = TINY_STOPS) -> None:
    """One case at a desk of its own."""

    async def main() -> None:
        async with desk(engine, model, stops) as at:
            count = await asyncio.wait_for(CASES[name](at), 240)
            rows = await at.check()
            assert len(rows) == count, f"{len(rows)} rows for {count} choices"

    asyncio.run(main())


def limits(at: Desk) -> dict[str, Any]:
    return {"max_tokens": MAX_TOKENS, "stop": list(at.stops)}


def tool_turn(message: Any) -> list[Any]:
    """What follows a message with calls: itself, and the results."""
    return [message, *({"role": "tool", "tool_call_id": call.id, "content": "46"} for call in message.tool_calls)]


@case
async def openai_sync(at: Desk) -> int:
    from openai import OpenAI

    def talk() -> int:
        with OpenAI(base_url=at.proxy.base_url, api_key=at.lease.key, max_retries=0) as client:
            messages: list[Any] = [{"role": "user", "content": QUESTION}]
            first = client.chat.completions.create(
                model=at.model, messages=messages, tools=[TOOL], tool_choice="required", max_tokens=1500
            ).choices[0]
            assert first.finish_reason == "tool_calls" and PARAMETERS["properties"].keys() == _arguments(first.message).keys()
            messages += tool_turn(first.message)
            stream = client.chat.completions.create(model=at.model, messages=messages, stream=True, **limits(at))
            assert [c.choices[0].finish_reason for c in stream if c.choices][-1] in ("stop", "length")
            both = client.chat.completions.create(model=at.model, messages=messages, n=2, **limits(at))
            text = client.completions.create(model=at.model, prompt=QUESTION, **limits(at))
            assert text.choices[0].text is not None
            ids = client.completions.create(model=at.model, prompt=[1, 2, 3, 4], stream=True, n=2, logprobs=1, **limits(at))
            assert {c.choices[0].index for c in ids if c.choices} == {0, 1}
            return 2 + len(both.choices) + 1 + 2

    return await asyncio.to_thread(talk)


@case
async def openai_async(at: Desk) -> int:
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=at.proxy.base_url, api_key=at.lease.key, max_retries=0) as client:
        messages: list[Any] = [{"role": "user", "content": QUESTION}]
        asked = {"model": at.model, "messages": messages, "tools": [TOOL], "tool_choice": "required", "max_tokens": MAX_TOKENS, **ONE}
        stream = await client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].usage.completion_tokens
        pieces = [call for chunk in chunks if chunk.choices for call in chunk.choices[0].delta.tool_calls or ()]
        assert {piece.index for piece in pieces} and json.loads("".join(p.function.arguments or "" for p in pieces if p.index == 0))
        async with client.chat.completions.stream(**asked) as helper:
            final = (await helper.get_final_completion()).choices[0].message
        assert final.tool_calls[0].function.parsed_arguments
        parsed = await client.chat.completions.parse(model=at.model, messages=messages, response_format=Sum, max_tokens=MAX_TOKENS)
        assert 0 <= parsed.choices[0].message.parsed.value <= 99
        return 3


@case
async def openai_responses(at: Desk) -> int:
    from openai import AsyncOpenAI

    tool = {"type": "function", "name": "calculate", "description": "Calculates.", "parameters": PARAMETERS, "strict": True}
    async with AsyncOpenAI(base_url=at.proxy.base_url, api_key=at.lease.key, max_retries=0) as client:
        asked = {"model": at.model, "max_output_tokens": MAX_TOKENS, "extra_body": {"stop": list(at.stops)}}
        called = await client.responses.create(
            model=at.model,
            input=QUESTION,
            tools=[tool],
            tool_choice="required",
            max_output_tokens=MAX_TOKENS,
            instructions="Be brief.",
            **ONE,
        )
        assert called.status == "completed" and called.usage.output_tokens
        calls = [item for item in called.output if item.type == "function_call"]
        results = [{"type": "function_call_output", "call_id": call.call_id, "output": "46"} for call in calls]
        turn = [{"role": "user", "content": QUESTION}, *called.output, *results]
        answer = await client.responses.create(input=turn, tools=[tool], instructions="Be brief.", **asked)
        assert answer.output[0].type == "message"
        kinds = [event.type async for event in await client.responses.create(input=turn, tools=[tool], stream=True, **asked)]
        assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed"
        async with client.responses.stream(
            model=at.model, input=QUESTION, tools=[tool], tool_choice="required", max_output_tokens=MAX_TOKENS, **ONE
        ) as helper:
            final = await helper.get_final_response()
        assert final.output[0].type == "function_call" and json.loads(final.output[0].arguments)
        parsed = await client.responses.parse(model=at.model, input=QUESTION, text_format=Sum, max_output_tokens=MAX_TOKENS)
        assert 0 <= parsed.output_parsed.value <= 99
        return 5


@case
async def agents_sdk_chat(at: Desk) -> int:
    from agents import OpenAIChatCompletionsModel

    return await _agents_sdk(at, OpenAIChatCompletionsModel)


@case
async def agents_sdk_responses(at: Desk) -> int:
    from agents import OpenAIResponsesModel

    return await _agents_sdk(at, OpenAIResponsesModel)


async def _agents_sdk(at: Desk, model: Any) -> int:
    from agents import Agent, ModelSettings, RunConfig, Runner, function_tool
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=at.proxy.base_url, api_key=at.lease.key, max_retries=0) as client:
        settings = ModelSettings(
            tool_choice="required", parallel_tool_calls=False, max_tokens=MAX_TOKENS, extra_body={"stop": list(at.stops)}
        )
        agent = Agent(
            name="math", tools=[function_tool(calculate)], model=model(model=at.model, openai_client=client), model_settings=settings
        )
        quiet = RunConfig(tracing_disabled=True)
        whole = await Runner.run(agent, QUESTION, run_config=quiet)
        second = [*whole.to_input_list(), {"role": "user", "content": "And 5 - 3?"}]
        streamed = Runner.run_streamed(agent, second, run_config=quiet)
        events = [event async for event in streamed.stream_events()]
        assert any(event.type == "run_item_stream_event" and event.name == "tool_called" for event in events)
        assert [len(result.raw_responses) for result in (whole, streamed)] == [2, 2]
        return 4


@case
async def anthropic_sdk(at: Desk) -> int:
    from anthropic import Anthropic, AsyncAnthropic

    tool = {"name": "calculate", "description": "Calculates.", "input_schema": PARAMETERS, "strict": True}
    root = at.proxy.base_url.removesuffix("/v1")
    asked: dict[str, Any] = {"model": at.model, "max_tokens": MAX_TOKENS, "system": "Be brief."}
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]
    async with AsyncAnthropic(base_url=root, api_key=at.lease.key, max_retries=0) as client:
        called = await client.messages.create(
            **asked, messages=messages, tools=[tool], tool_choice={"type": "any", "disable_parallel_tool_use": True}
        )
        assert called.stop_reason == "tool_use" and called.content[-1].input.keys() == PARAMETERS["properties"].keys()
        results = [{"type": "tool_result", "tool_use_id": b.id, "content": "46"} for b in called.content if b.type == "tool_use"]
        messages += [{"role": "assistant", "content": called.content}, {"role": "user", "content": results}]
        async with client.messages.stream(**asked, messages=messages, tools=[tool], stop_sequences=list(at.stops)) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            final = await stream.get_final_message()
        assert final.stop_reason in ("end_turn", "stop_sequence", "max_tokens") and text == "".join(b.text for b in final.content)
        async with client.messages.stream(
            **asked,
            messages=messages[:1],
            tools=[tool],
            tool_choice={"type": "tool", "name": "calculate", "disable_parallel_tool_use": True},
        ) as stream:
            streamed = await stream.get_final_message()
        assert streamed.stop_reason == "tool_use" and isinstance(streamed.content[-1].input, dict)

    def sync() -> Any:
        with Anthropic(base_url=at.url, api_key="the key is in the URL", max_retries=0) as client:
            return client.messages.create(model=at.model, max_tokens=4, messages=[{"role": "user", "content": QUESTION}])

    assert (await asyncio.to_thread(sync)).usage.output_tokens <= 4
    return 4


@case
async def langchain(at: Desk) -> int:
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    count = 0
    for responses in (False, True):
        model = ChatOpenAI(
            base_url=at.proxy.base_url,
            api_key=at.lease.key,
            model=at.model,
            max_retries=0,
            max_tokens=MAX_TOKENS,
            use_responses_api=responses,
        )
        bound = model.bind_tools([tool(calculate)], tool_choice="required", strict=True, **ONE)
        question = HumanMessage(QUESTION)
        called = await bound.ainvoke([question])
        turn = [question, called, *(ToolMessage("46", tool_call_id=call["id"]) for call in called.tool_calls)]
        assert called.tool_calls[0]["name"] == "calculate"
        pieces = [piece async for piece in model.astream(turn, stop=None if responses else list(at.stops), max_tokens=8)]
        assert pieces
        streamed = None
        async for piece in bound.astream([question]):
            streamed = piece if streamed is None else streamed + piece
        assert streamed is not None and streamed.tool_calls[0]["args"].keys() == PARAMETERS["properties"].keys()
        structured = await model.with_structured_output(Sum, method="json_schema").ainvoke(QUESTION)
        assert 0 <= structured.value <= 99
        count += 4
    return count


@case
async def pydantic_ai(at: Desk) -> int:
    from openai import AsyncOpenAI
    from pydantic_ai import Agent, NativeOutput, Tool, ToolOutput
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    async with AsyncOpenAI(base_url=at.proxy.base_url, api_key=at.lease.key, max_retries=0) as client:
        provider = OpenAIProvider(openai_client=client)
        root = at.proxy.base_url.removesuffix("/v1")
        strict: Any = {"supports_json_schema_output": True}  # else it does not say that a tool's schema must be followed
        claude = AnthropicModel(at.model, provider=AnthropicProvider(base_url=root, api_key=at.lease.key), profile=strict)
        calls = 0

        async def at_first(context: Any, definition: Any) -> Any:
            return definition if context.run_step == 1 else None

        for model in (OpenAIChatModel(at.model, provider=provider), OpenAIResponsesModel(at.model, provider=provider), claude):
            # Its output is a call of a tool too; before that it may call another one.
            one, tool = {"max_tokens": MAX_TOKENS, **ONE}, Tool(add, strict=True, prepare=at_first)
            agent = Agent(model, output_type=ToolOutput(Chosen, strict=True), tools=[tool], model_settings=one)
            result = await agent.run(QUESTION)
            assert result.output.value in (40, 46, 52)
            calls += sum(message.kind == "response" for message in result.all_messages())
            if model is not claude:
                native = Agent(model, output_type=NativeOutput(Chosen), model_settings={"max_tokens": MAX_TOKENS})
                async with native.run_stream(QUESTION, message_history=None) as stream:
                    assert (await stream.get_output()).value in (40, 46, 52)
                calls += 1
        return calls


@case
async def curl(at: Desk) -> int:
    if shutil.which("curl") is None:
        raise AssertionError("there is no curl")
    chat = {"model": at.model, "messages": [{"role": "user", "content": QUESTION}], **limits(at)}
    whole = json.loads(await _curl(f"{at.proxy.base_url}/chat/completions", chat, f"authorization: Bearer {at.lease.key}"))
    assert whole["usage"]["completion_tokens"]
    streamed = await _curl(
        f"{at.url}/v1/chat/completions", {**chat, "stream": True, "tools": [TOOL], "tool_choice": "required", "stop": None, **ONE}
    )
    assert streamed.rstrip().endswith("[DONE]") and "tool_calls" in streamed
    claude = {"model": at.model, "messages": chat["messages"], "max_tokens": 4, "stream": True}
    assert "message_stop" in await _curl(f"{at.proxy.base_url}/messages", claude, f"x-api-key: {at.lease.key}")
    answer = await _curl(f"{at.url}/v1/responses", {"model": at.model, "input": QUESTION, "max_output_tokens": 4})
    assert json.loads(answer)["object"] == "response"
    return 4


async def _curl(url: str, body: dict[str, Any], header: str | None = None) -> str:
    arguments = ["-sS", "--no-buffer", "--noproxy", "*", "-H", "content-type: application/json", *(["-H", header] if header else [])]
    process = await asyncio.create_subprocess_exec(
        "curl", *arguments, "-d", "@-", url, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate(json.dumps(body).encode())
    assert process.returncode == 0
    return out.decode()


def _arguments(message: Any) -> dict[str, Any]:
    return json.loads(message.tool_calls[0].function.arguments)
