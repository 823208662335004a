"""OpenAI's Responses: what it says is what a chat completion would have said, and what it cannot say is refused by name."""

from __future__ import annotations

import json
from typing import Any

import openai
import orjson
import pytest
from openai import AsyncOpenAI
from proxy_room import Room, in_room

from leyden.proxy.apis.response_input import messages_of
from leyden.proxy.apis.responses import Responses
from leyden.proxy.refusal import Refusal

API = Responses()
USAGE = {"prompt_tokens": 5, "completion_tokens": 9, "total_tokens": 14}


def call(number: int, arguments: str = '{"a":  1}') -> dict[str, Any]:
    return {"id": f"call_{number}", "type": "function", "function": {"name": "calculate", "arguments": arguments}}


MESSAGES = {
    "text": {"role": "assistant", "content": "42"},
    "nothing": {"role": "assistant", "content": ""},
    "a call": {"role": "assistant", "content": None, "tool_calls": [call(1)]},
    "text and two calls": {"role": "assistant", "content": "I see.\n", "tool_calls": [call(1), call(2, "{}")]},
    "a thought": {"role": "assistant", "reasoning_content": "\nhm\n", "content": "\n\n42"},
    "a thought and a call": {"role": "assistant", "reasoning_content": "hm", "content": None, "tool_calls": [call(1)]},
}


def parse(**body: Any) -> Any:
    return API.parse(orjson.dumps({"model": "policy", "input": "6 * 7?", **body}))


def answer(message: dict[str, Any], finish_reason: str = "stop", id: str = "chatcmpl-abc") -> dict[str, Any]:
    choice = {"index": 0, "message": dict(message), "finish_reason": finish_reason}
    return {"id": id, "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": USAGE}


def chunks(message: dict[str, Any], finish_reason: str = "stop", id: str = "chatcmpl-abc") -> list[dict[str, Any]]:
    """The same answer, a character at a time."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    for name in ("reasoning_content", "content"):
        deltas += [{name: character} for character in message.get(name) or ""]
    for index, whole in enumerate(message.get("tool_calls") or ()):
        deltas.append({"tool_calls": [{"index": index, **whole, "function": {**whole["function"], "arguments": ""}}]})
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": c}}]} for c in whole["function"]["arguments"]]
    head = {"id": id, "object": "chat.completion.chunk", "created": 1, "model": "m"}
    said = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    said.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": finish_reason}]})
    return [*said, {**head, "choices": [], "usage": USAGE}]


def events(raw: bytes) -> list[dict[str, Any]]:
    found = []
    for block in raw.decode().split("\n\n"):
        if block:
            name, data = block.split("\n")
            event = json.loads(data.removeprefix("data: "))
            assert name == f"event: {event['type']}"
            found.append(event)
    return found


def streamed(message: dict[str, Any], finish_reason: str = "stop") -> list[dict[str, Any]]:
    stream = API.stream(parse(stream=True))
    return events(b"".join(stream.chunk(chunk) for chunk in chunks(message, finish_reason)) + stream.end())


@pytest.mark.parametrize("name", MESSAGES)
def test_an_answer_comes_back_in_the_next_request_as_the_message_that_the_engine_gave(name: str) -> None:
    message = MESSAGES[name]
    whole = json.loads(API.whole(parse(), answer(message)))
    results = [{"type": "function_call_output", "call_id": c["id"], "output": "42"} for c in message.get("tool_calls", ())]
    turn = [{"role": "user", "content": "6 * 7?"}, *whole["output"], *results, {"role": "user", "content": "And?"}]
    told = messages_of({"input": turn})
    assert told[0] == {"role": "user", "content": "6 * 7?"} and told[1] == message
    assert told[2:] == [
        *({"role": "tool", "tool_call_id": r["call_id"], "content": "42"} for r in results),
        {"role": "user", "content": "And?"},
    ]


@pytest.mark.parametrize("name", MESSAGES)
def test_a_stream_ends_in_the_response_that_an_unstreamed_request_gets(name: str) -> None:
    whole = json.loads(API.whole(parse(), answer(MESSAGES[name])))
    last = streamed(MESSAGES[name])[-1]
    assert last["type"] == "response.completed" and last["response"] == whole
    assert whole["usage"]["output_tokens"] == 9 and whole["status"] == "completed"


@pytest.mark.parametrize("name", MESSAGES)
def test_every_item_and_part_of_a_stream_is_added_told_and_closed(name: str) -> None:
    told = streamed(MESSAGES[name])
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    assert [event["type"] for event in told[:2]] == ["response.created", "response.in_progress"]
    items = told[-1]["response"]["output"]
    for position, item in enumerate(items):
        own = [event for event in told if event.get("output_index") == position]
        assert (own[0]["type"], own[-1]["type"]) == ("response.output_item.added", "response.output_item.done")
        assert own[0]["item"]["id"] == own[-1]["item"]["id"] == item["id"] and own[-1]["item"] == item
        deltas = "".join(event["delta"] for event in own if event["type"].endswith(".delta"))
        assert deltas == (item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])
        kinds = [event["type"] for event in own]
        if item["type"] == "function_call":
            assert kinds[-2] == "response.function_call_arguments.done" and own[-2]["arguments"] == item["arguments"]
        else:
            assert kinds[1] == "response.content_part.added" and kinds[-2] == "response.content_part.done"


def test_an_answer_that_was_cut_is_incomplete_streamed_or_not() -> None:
    whole = json.loads(API.whole(parse(), answer(MESSAGES["text"], "length")))
    last = streamed(MESSAGES["text"], "length")[-1]
    assert last["type"] == "response.incomplete" and last["response"] == whole
    assert whole["incomplete_details"] == {"reason": "max_output_tokens"} and whole["output"][-1]["status"] == "incomplete"


def test_the_ids_of_items_tell_two_answers_in_a_row_apart() -> None:
    first = json.loads(API.whole(parse(), answer(MESSAGES["text"], id="chatcmpl-one")))["output"]
    second = json.loads(API.whole(parse(), answer(MESSAGES["a call"], id="chatcmpl-two")))["output"]
    assert messages_of({"input": [*first, *second]}) == [MESSAGES["text"], MESSAGES["a call"]]
    for item in (*first, *second):
        del item["id"]  # nobody knows any more: text and the calls after it are one turn
    assert messages_of({"input": [*first, *second]}) == [{**MESSAGES["a call"], "content": "42"}]


def test_everything_a_request_says_reaches_the_engine() -> None:
    tool = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    image = {
        "role": "user",
        "content": [{"type": "input_text", "text": "?"}, {"type": "input_image", "image_url": "data:x", "detail": "low"}],
    }
    asked = parse(
        input=[{"role": "developer", "content": "D"}, image],
        instructions="I",
        tools=[tool],
        tool_choice={"type": "function", "name": "f"},
        parallel_tool_calls=False,
        text={"format": schema},
        reasoning={"effort": "low"},
        max_output_tokens=7,
        temperature=0.5,
        include=["message.output_text.logprobs", "reasoning.encrypted_content"],
        top_logprobs=2,
        stream=True,
        store=True,
        metadata={"a": "b"},
    )
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
    picture = {"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}}
    assert asked.body == {
        "model": "policy",
        "messages": [
            {"role": "system", "content": "I"},
            {"role": "system", "content": "D"},
            {"role": "user", "content": [{"type": "text", "text": "?"}, picture]},
        ],
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "parallel_tool_calls": False,
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True}},
        "reasoning_effort": "low",
        "max_completion_tokens": 7,
        "temperature": 0.5,
        "top_logprobs": 2,
        "stream": True,
    }
    assert asked.logprobs and asked.stream


REFUSED: dict[str, dict[str, Any]] = {
    "previous_response_id": {"previous_response_id": "resp_1"},
    "background": {"background": True},
    "truncation": {"truncation": "auto"},
    "conversation": {"conversation": "conv_1"},
    "n": {"n": 2},
    "input": {"input": None},
    "input[0].type": {"input": [{"type": "item_reference", "id": "msg_1"}]},
    "input[0].role": {"input": [{"role": "tool", "content": "x"}]},
    "input[0].content[0].type": {"input": [{"role": "user", "content": [{"type": "input_video"}]}]},
    "input[0].content[0].file_id": {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
    "input[0]": {"input": [{"type": "reasoning", "summary": [], "encrypted_content": "secret"}]},
    "tools[0].type": {"tools": [{"type": "web_search"}]},
    "tool_choice": {"tools": [{"type": "function", "name": "f"}], "tool_choice": {"type": "allowed_tools"}},
    "text.format.type": {"text": {"format": {"type": "grammar"}}},
    "reasoning.summary": {"reasoning": {"summary": "detailed"}},
    "include nonsense": {"include": ["nonsense"]},
    "stream": {"stream": "yes"},
    "made_up": {"made_up": 1},
}


@pytest.mark.parametrize("field", REFUSED)
def test_what_cannot_be_told_to_an_engine_is_refused_by_its_name(field: str) -> None:
    with pytest.raises(Refusal) as caught:
        parse(**REFUSED[field])
    assert caught.value.status == 400 and caught.value.param == field


@pytest.mark.parametrize("field", ["previous_response_id", "conversation"])
def test_what_would_need_a_memory_says_what_to_send_instead(field: str) -> None:
    with pytest.raises(Refusal) as caught:
        parse(**{field: "x_1"})
    assert "send the whole conversation as input, with store=False" in caught.value.as_openai()["error"]["message"]  # type: ignore[operator]


def test_a_stream_that_breaks_off_fails_in_the_openai_sdk_and_in_the_agents_sdk() -> None:
    from agents import Agent, OpenAIResponsesModel, RunConfig, Runner

    async def test(this: Room) -> None:
        this.engine.fault = "cut"
        async with AsyncOpenAI(base_url=this.proxy.base_url, api_key=this.lease.key, max_retries=0) as client:
            kinds = []
            with pytest.raises(openai.APIError, match="ended its stream"):
                async for event in await client.responses.create(model="policy", input="6 * 7?", stream=True):
                    kinds.append(event.type)
            assert kinds[-1] == "response.failed"
            agent = Agent(name="a", model=OpenAIResponsesModel("policy", openai_client=client))
            run = Runner.run_streamed(agent, "6 * 7?", run_config=RunConfig(tracing_disabled=True))
            with pytest.raises(Exception, match="ended its stream"):
                async for _ in run.stream_events():
                    pass
        rows = await this.rows()
        assert [row.status for row in rows] == ["error", "error"] and rows[0].response_token_ids == [40]

    in_room(test)


def test_the_engines_own_error_arrives_as_it_came() -> None:
    async def test(this: Room) -> None:
        this.engine.fault = "status"
        async with AsyncOpenAI(base_url=this.proxy.base_url, api_key=this.lease.key, max_retries=0) as client:
            with pytest.raises(openai.BadRequestError, match="too long") as caught:
                await client.responses.create(model="policy", input="6 * 7?")
        assert caught.value.response.headers["retry-after"] == "7"

    in_room(test)


def test_ids_and_logprobs_are_shown_to_an_agent_that_asks_for_them() -> None:
    async def test(this: Room) -> None:
        async with AsyncOpenAI(base_url=this.proxy.base_url, api_key=this.lease.key) as client:
            asked: dict[str, Any] = {"model": "policy", "input": "?", "include": ["message.output_text.logprobs"]}
            said = await client.responses.create(**asked, extra_body={"return_token_ids": True})
            stream = await client.responses.create(**asked, extra_body={"return_token_ids": True}, stream=True)
            last = [event async for event in stream][-1].response
            plain = await client.responses.create(model="policy", input="?")
        for response in (said, last):
            assert response.model_extra["token_ids"] == [40, 20, 99] and len(response.output[0].content[0].logprobs) == 3
        assert "token_ids" not in plain.model_extra and plain.output[0].content[0].logprobs == []

    in_room(test)
