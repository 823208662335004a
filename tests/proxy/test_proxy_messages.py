"""Anthropic's messages: what it says is what a chat completion would have said, and what it cannot say is refused by name."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import orjson
import pytest
from anthropic import AsyncAnthropic
from proxy_room import Room, in_room
from test_proxy_responses import MESSAGES, answer, call, chunks

from leyden.proxy.apis import message_input
from leyden.proxy.apis.message_input import INVALID, Written, messages_of
from leyden.proxy.apis.messages import Messages
from leyden.proxy.refusal import Refusal

API = Messages()
WRITTEN = Written()


def parse(**body: Any) -> Any:
    return API.parse(orjson.dumps({"model": "policy", "max_tokens": 9, "messages": [{"role": "user", "content": "6 * 7?"}], **body}))


def events(raw: bytes) -> list[dict[str, Any]]:
    return [json.loads(block.partition("\ndata: ")[2]) for block in raw.decode().split("\n\n") if block]


def streamed(message: dict[str, Any], finish_reason: str = "stop", **last: Any) -> list[dict[str, Any]]:
    stream = API.stream(parse(stream=True))
    said = chunks(message, finish_reason)
    said[-2]["choices"][0] |= last
    return events(b"".join(stream.chunk(chunk) for chunk in said) + stream.end())


def whole(message: dict[str, Any], finish_reason: str = "stop", **last: Any) -> dict[str, Any]:
    said = answer(message, finish_reason)
    said["choices"][0] |= last
    return json.loads(API.whole(parse(), said))


def gathered(told: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a stream tells, put together as Anthropic's clients do it."""
    assert [event["type"] for event in told[:2]] == ["message_start", "ping"] and told[-1] == {"type": "message_stop"}
    message = told[0]["message"]
    for event in told[2:]:
        if event["type"] == "content_block_start":
            assert event["index"] == len(message["content"])
            message["content"].append({**event["content_block"], "json": ""})
        elif event["type"] == "content_block_delta":
            block, delta = message["content"][event["index"]], event["delta"]
            assert event["index"] == len(message["content"]) - 1  # the blocks come one after the other
            if delta["type"] == "input_json_delta":
                block["json"] += delta["partial_json"]
            else:
                name = delta["type"].removesuffix("_delta")
                block[name] += delta[name]
        elif event["type"] == "content_block_stop":
            block = message["content"][event["index"]]
            if text := block.pop("json"):
                block["input"] = json.loads(text)
        elif event["type"] == "message_delta":
            message |= event["delta"] | {"usage": event["usage"]}
    return message


@pytest.mark.parametrize("name", MESSAGES)
def test_an_answer_comes_back_in_the_next_request_as_the_message_that_the_engine_gave(name: str) -> None:
    said = whole(MESSAGES[name])
    turn = [{"role": "user", "content": "6 * 7?"}, {"role": "assistant", "content": said["content"]}, {"role": "user", "content": "And?"}]
    assert parse(messages=turn).body["messages"] == [turn[0], MESSAGES[name], turn[2]]


@pytest.mark.parametrize("name", MESSAGES)
def test_a_stream_tells_the_message_that_an_unstreamed_request_gets(name: str) -> None:
    assert gathered(streamed(MESSAGES[name])) == whole(MESSAGES[name])


@pytest.mark.parametrize(
    ("finish_reason", "last", "stop"),
    [
        ("stop", {}, ("end_turn", None)),
        ("stop", {"stop_reason": "###"}, ("stop_sequence", "###")),
        ("stop", {"stop_reason": 2}, ("end_turn", None)),
        ("length", {}, ("max_tokens", None)),
        ("tool_calls", {}, ("tool_use", None)),
        ("content_filter", {}, ("refusal", None)),
    ],
)
def test_the_reason_of_the_end_is_told_in_anthropics_words(finish_reason: str, last: dict[str, Any], stop: tuple[str, str | None]) -> None:
    for message in (whole(MESSAGES["text"], finish_reason, **last), gathered(streamed(MESSAGES["text"], finish_reason, **last))):
        assert (message["stop_reason"], message["stop_sequence"]) == stop
    assert whole(MESSAGES["a call"])["stop_reason"] == "tool_use"  # engines say "stop" after a call they were told to make


@pytest.mark.parametrize("arguments", ['{"a":  1}', '{ "b":[1, 2],"a":"é"}', "", "{}", '{"a": 1', "[1]", "not json"])
def test_arguments_go_back_to_the_engine_as_they_were_written(arguments: str) -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [call(1, arguments)]}
    for said in (whole(message), gathered(streamed(message))):
        turn = [{"role": "user", "content": "?"}, {"role": "assistant", "content": said["content"]}, {"role": "user", "content": "!"}]
        assert parse(messages=turn).body["messages"][1] == message


def test_numbers_that_no_float_holds_reach_the_agent_as_they_were_written() -> None:
    arguments = '{"a": 123456789012345678901234567890, "b": 1.50}'
    message = {"role": "assistant", "content": None, "tool_calls": [call(1, arguments)]}
    raw = API.whole(parse(), answer(message))
    assert arguments.encode() in raw and json.loads(raw)["content"][0]["input"]["a"] == 123456789012345678901234567890
    assert gathered(streamed(message)) == json.loads(raw)


def test_arguments_that_went_through_javascript_are_told_as_they_were_written() -> None:
    arguments = '{"a":1.0, "b": [1e3]}'
    whole({"role": "assistant", "content": None, "tool_calls": [call(1, arguments)]})
    block = {"type": "tool_use", "id": "call_1", "name": "calculate", "input": {"a": 1, "b": [1000]}}
    told = parse(messages=[{"role": "user", "content": "?"}, {"role": "assistant", "content": [block]}]).body["messages"]
    assert told[1]["tool_calls"][0]["function"]["arguments"] == arguments


def test_engines_that_number_their_calls_do_not_mix_two_conversations() -> None:
    """Kimi K2's ids are functions.NAME:NUMBER, in every conversation."""
    written = Written()
    for a in (-1, -2, 3):  # the hashes of the first two are the same
        written.read("functions.add:0", f'{{"a":  {a}}}')
    assert [written.tell("functions.add:0", {"a": a}) for a in (3, -2, -1, 4)] == ['{"a":  3}', '{"a":  -2}', '{"a": -1}', '{"a": 4}']


def test_what_is_remembered_of_calls_is_bounded_and_calls_in_use_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_input, "_REMEMBERED", 20_000)
    written, used = Written(), '{"a":1}'
    written.read("used", used)
    for n in range(1000):
        written.read(f"call_{n}", f'{{"n":{n}, "text": "{"x" * (n % 50)}"}}')
        assert written.tell("used", {"a": 1}) == used
        assert written._size <= 20_000
    assert written.tell("call_0", {"n": 0, "text": ""}) == '{"n": 0, "text": ""}'  # forgotten, and told as models write it
    written.read("call_long", json.dumps({"text": "x" * 30_000}))
    assert written._size == 0


def test_a_thought_is_signed_for_clients_that_take_one_without_for_broken_off() -> None:
    said = whole(MESSAGES["a thought"])["content"][0]
    assert said["type"] == "thinking" and said["signature"]
    kinds = [(event.get("delta") or {}).get("type") for event in streamed(MESSAGES["a thought"])]
    assert kinds.index("signature_delta") == kinds.index("text_delta") - 3  # before its block's stop and the text's start


def test_a_thought_that_goes_through_pydantic_ai_comes_back_as_one() -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    async def test(this: Room) -> None:
        whole, delta = this.engine._whole, this.engine.samples[0].delta

        def thinking(body: dict[str, Any]) -> dict[str, Any]:
            said = whole(body)
            said["choices"][0]["message"]["reasoning_content"] = "hm"
            return said

        this.engine._whole = thinking  # type: ignore[method-assign]
        this.engine.samples[0].delta = lambda at: {"reasoning_content": "hm"} if at == 0 else delta(at)  # type: ignore[method-assign]
        async with client(this) as own:
            agent = Agent(AnthropicModel("policy", provider=AnthropicProvider(anthropic_client=own)))
            asked = await agent.run("6 * 7?")
            await agent.run("And?", message_history=asked.all_messages())
            async with agent.run_stream("6 * 7?") as streamed:
                await streamed.get_output()
            await agent.run("And?", message_history=streamed.all_messages())
        for body, text in ((this.engine.bodies[1], "42"), (this.engine.bodies[3], "2")):
            assert body["messages"][1] == {"role": "assistant", "content": text, "reasoning_content": "hm"}

    in_room(test)


def test_a_stream_shows_the_ids_to_an_agent_that_asks_for_them() -> None:
    stream = API.stream(parse(stream=True, return_token_ids=True))
    said = chunks(MESSAGES["text"])
    said[0]["prompt_token_ids"] = [1, 2]
    for n, chunk in enumerate(said[1:-1]):
        chunk["choices"][0]["token_ids"] = [n]
    told = events(b"".join(stream.chunk(chunk) for chunk in said) + stream.end())
    assert told[0]["message"]["prompt_token_ids"] == [1, 2] and told[-2]["token_ids"] == list(range(len(said) - 2))
    assert not any("token_ids" in event for event in streamed(MESSAGES["text"]))


def test_arguments_that_are_no_object_reach_the_agent_by_a_name_of_their_own() -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [call(1, '{"a": 1'), call(2, "")]}
    assert [block["input"] for block in whole(message)["content"]] == [{INVALID: '{"a": 1'}, {}]


def test_arguments_that_the_agent_changed_are_told_as_it_changed_them() -> None:
    said = whole(MESSAGES["a call"])["content"]
    said[0]["input"]["a"] = 2
    told = messages_of({"messages": [{"role": "assistant", "content": said}]}, WRITTEN)
    assert told[0]["tool_calls"][0]["function"]["arguments"] == '{"a": 2}'


def test_everything_a_request_says_reaches_the_engine() -> None:
    tool = {"name": "f", "description": "d", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}}
    source = {"type": "base64", "media_type": "image/png", "data": "eA=="}
    results = [
        {"type": "tool_result", "tool_use_id": "call_9", "content": [{"type": "text", "text": "42"}]},
        {"type": "tool_result", "tool_use_id": "call_8", "content": "gone", "is_error": True},
        {"type": "text", "text": "Look:"},
        {"type": "image", "source": source},
    ]
    asked = parse(
        system=[{"type": "text", "text": "S", "cache_control": {"type": "ephemeral"}}],
        messages=[{"role": "user", "content": results}],
        tools=[tool],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        stop_sequences=["###"],
        temperature=0.5,
        top_k=3,
        thinking={"type": "enabled", "budget_tokens": 1024},
        output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}},
        metadata={"user_id": "u"},
        stream=True,
    )
    assert asked.body == {
        "model": "policy",
        "messages": [
            {"role": "system", "content": "S"},
            {"role": "tool", "tool_call_id": "call_9", "content": "42"},
            {"role": "tool", "tool_call_id": "call_8", "content": "gone", "is_error": True},
            {
                "role": "user",
                "content": [{"type": "text", "text": "Look:"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,eA=="}}],
            },
        ],
        "max_tokens": 9,
        "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "stop": ["###"],
        "temperature": 0.5,
        "top_k": 3,
        "chat_template_kwargs": {"enable_thinking": True},
        "thinking_token_budget": 1024,
        "response_format": {"type": "json_schema", "json_schema": {"name": "output", "schema": {"type": "object"}, "strict": True}},
        "stream": True,
    }


def test_an_answer_that_the_agent_began_is_gone_on_with() -> None:
    asked = parse(messages=[{"role": "user", "content": "?"}, {"role": "assistant", "content": "### "}])
    assert asked.body["continue_final_message"] is True and asked.body["add_generation_prompt"] is False


BLOCK = [{"role": "user", "content": [{"type": "document", "source": {}}]}]
REFUSED: dict[str, dict[str, Any]] = {
    "max_tokens": {"max_tokens": None},
    "messages": {"messages": []},
    "messages[0].content[0].type": {"messages": BLOCK},
    "messages[0].role": {"messages": [{"role": "tool", "content": "x"}]},
    "messages[0].content[0].source.type": {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "file"}}]}]},
    "messages[0].content[0].input": {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b"}]}]},
    "tools[0].type": {"tools": [{"type": "bash_20250124", "name": "bash"}]},
    "tools[0].input_examples": {"tools": [{"name": "f", "input_schema": {}, "input_examples": [{}]}]},
    "tool_choice": {"tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "some"}},
    "thinking": {"thinking": {"type": "maybe"}},
    "thinking.display": {"thinking": {"type": "adaptive", "display": "omitted"}},
    "output_config.format": {"output_config": {"format": {"type": "xml"}}},
    "container": {"container": "c"},
    "mcp_servers": {"mcp_servers": [{}]},
}


@pytest.mark.parametrize("field", REFUSED)
def test_what_cannot_be_told_to_an_engine_is_refused_by_its_name(field: str) -> None:
    with pytest.raises(Refusal) as caught:
        parse(**REFUSED[field])
    assert caught.value.status == 400 and caught.value.param == field


def client(this: Room, **options: Any) -> AsyncAnthropic:
    root = this.proxy.base_url.removesuffix("/v1")
    return AsyncAnthropic(**{"base_url": root, "api_key": this.lease.key, "max_retries": 0, **options})


ASKED: dict[str, Any] = {"model": "policy", "max_tokens": 9, "messages": [{"role": "user", "content": "6 * 7?"}]}


def test_each_failure_is_the_anthropic_sdks_own_error() -> None:
    async def test(this: Room) -> None:
        async with client(this, api_key="nobody") as stranger:
            with pytest.raises(anthropic.AuthenticationError, match="never issued"):
                await stranger.messages.create(**ASKED)
        async with client(this) as agent:
            with pytest.raises(anthropic.NotFoundError, match="does not exist") as missing:
                # A name nobody knows is the attempt's only model; a second one makes that unclear.
                lease = await this.claim(one=this.proxy.as_resource(), two=this.proxy.as_resource())
                await agent.with_options(api_key=lease.key).messages.create(**{**ASKED, "model": "nonsense"})
            assert missing.value.body["error"]["type"] == "not_found_error"
            with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
                await agent.messages.create(**{**ASKED, "max_tokens": 0})
            this.engine.fault = "status"
            with pytest.raises(anthropic.BadRequestError, match="too long") as refused:
                await agent.messages.create(**ASKED)
            assert refused.value.body == {
                "type": "error",
                "error": {"type": "invalid_request_error", "message": "too long", "code": "upstream_error"},
            }
            this.engine.fault = "garbage"
            with pytest.raises(anthropic.InternalServerError) as broken:
                await agent.messages.create(**ASKED)
            assert broken.value.status_code == 502 and broken.value.body["error"]["type"] == "api_error"
            this.engine.fault = "cut"
            with pytest.raises(anthropic.APIStatusError, match="ended its stream"):
                async with agent.messages.stream(**ASKED) as stream:
                    await stream.get_final_message()
        rows = await this.rows()
        assert [row.status for row in rows] == ["error"] * 3 and rows[-1].response_token_ids == [40]

    in_room(test)


def test_the_models_are_listed_in_anthropics_form_too() -> None:
    async def test(this: Room) -> None:
        async with client(this) as agent:
            assert [(model.id, model.type, model.display_name) async for model in agent.models.list()] == [("policy", "model", "policy")]
            with pytest.raises(anthropic.NotFoundError, match="POST /v1/messages") as caught:
                await agent.messages.batches.list()
            assert caught.value.body["type"] == "error"
        async with client(this, base_url=this.proxy.base_url) as lost:
            with pytest.raises(anthropic.NotFoundError, match="without /v1"):
                await lost.messages.create(**ASKED)

    in_room(test)
