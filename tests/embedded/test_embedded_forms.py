"""Answers that must have a form, completions, and thoughts: what the engine can do beyond plain chat."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from leyden.models.embedded.chat import parse_tool_calls, render
from leyden.models.embedded.choice import ChatChoice
from leyden.models.embedded.engine import Token
from leyden.models.embedded.protocol import ChatRequest
from leyden.models.embedded.reasoning import Thought, split
from leyden.models.embedded.sampling import Sampled
from leyden.models.embedded.server import create_app

DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": DIGIT}, "required": ["a"]}}}
OTHER = {"type": "function", "function": {"name": "drop", "parameters": {"type": "object", "properties": {}}}}
MESSAGES = [{"role": "user", "content": "What is 12 + 34?"}]


def ask(engine: Any, path: str = "/v1/chat/completions", **body: Any) -> httpx.Response:
    async def main() -> httpx.Response:
        transport = httpx.ASGITransport(app=create_app(engine, "tiny"))
        async with httpx.AsyncClient(transport=transport, base_url="http://engine", timeout=60) as client:
            asked = {"model": "tiny", "max_tokens": 300, **({"messages": MESSAGES} if "chat" in path else {}), **body}
            return await client.post(path, json=asked)

    return asyncio.run(main())


def schema(**more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object", "properties": {"a": DIGIT}, **more}}}


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_by_a_schema_is_one_and_its_ids_are_all_of_it(engine, stream):
    for seed in range(4):
        reply = ask(engine, response_format=schema(required=["a"]), seed=seed, stream=stream, return_token_ids=True, logprobs=True)
        if stream:
            chunks = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
            parts = [chunk["choices"][0] for chunk in chunks]
            content = "".join(part["delta"].get("content") or "" for part in parts)
            ids, reason = [id for part in parts for id in part["token_ids"]], parts[-1]["finish_reason"]
        else:
            choice = reply.json()["choices"][0]
            content, ids, reason = choice["message"]["content"], choice["token_ids"], choice["finish_reason"]
            assert all(token["logprob"] > float("-inf") for token in choice["logprobs"]["content"])
        assert json.loads(content).keys() == {"a"} and 0 <= json.loads(content)["a"] <= 9
        assert engine.tokenizer.decode(ids, skip_special_tokens=True) == content and reason == "stop"


def test_a_tool_that_must_be_called_is_called(engine):
    for seed in range(3):
        required = ask(engine, tools=[TOOL, OTHER], tool_choice="required", seed=seed).json()["choices"][0]
        assert required["finish_reason"] == "tool_calls" and required["message"]["content"] is None
        assert {call["function"]["name"] for call in required["message"]["tool_calls"]} <= {"add", "drop"}
        named = {"type": "function", "function": {"name": "drop"}}
        one = ask(engine, tools=[TOOL, OTHER], tool_choice=named, parallel_tool_calls=False, seed=seed).json()["choices"][0]
        assert [call["function"] for call in one["message"]["tool_calls"]] == [{"name": "drop", "arguments": "{}"}]


def test_with_tools_an_answer_by_a_schema_may_be_a_call_instead(engine):
    seen = set()
    for seed in range(12):
        message = ask(engine, tools=[TOOL], parallel_tool_calls=False, response_format=schema(required=["a"]), seed=seed).json()["choices"][
            0
        ]["message"]
        seen.add("call" if message.get("tool_calls") else "answer")
        assert message.get("tool_calls") or json.loads(message["content"]).keys() == {"a"}
    assert seen == {"call", "answer"}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nonsense"}}}}, "nonsense"),
        ({"response_format": {"type": "grammar"}}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tools": [{"type": "function", "function": "add"}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "add", "parameters": [5]}}], "tool_choice": "required"}, "parameters of add"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]}]}, "image_url"),
    ],
)
def test_what_has_no_form_is_refused_by_name(engine, body, words):
    reply = ask(engine, **body)
    assert reply.status_code == 400 and words in reply.json()["error"]["message"]


def test_null_is_what_was_left_out(engine):
    nothing = dict.fromkeys(("n", "stream", "logprobs", "return_token_ids", "tools", "seed", "frequency_penalty", "made_up"))
    reply = ask(engine, max_tokens=1, **nothing)
    assert reply.status_code == 200 and len(reply.json()["choices"]) == 1
    assert ask(engine, "/v1/completions", prompt="a", max_tokens=1, n=None, stream=None, echo=None).status_code == 200
    assert "messages" in ask(engine, messages=None).json()["error"]["message"]


def test_without_llguidance_a_form_is_refused_and_says_what_to_install(engine, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "llguidance", None)
    reply = ask(engine, response_format={"type": "json_object"})
    assert reply.status_code == 400 and "pip install llguidance" in reply.json()["error"]["message"]


def test_one_call_at_a_time_ends_the_answer_behind_the_first(engine):
    request = ChatRequest(model="tiny", messages=MESSAGES, tools=[TOOL], parallel_tool_calls=False)
    choice = ChatChoice(0, engine, request, False)
    text = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>\n<tool_call>'
    taken = [token for token in engine.tokenizer(text).input_ids if choice.finish_reason is None and not choice.add(spoken(token))]
    assert choice.message()["tool_calls"][0]["function"]["arguments"] == '{"a": 1}' and choice.finish_reason == "tool_calls"
    assert len(taken) < len(engine.tokenizer(text).input_ids) - 1


def test_a_turn_without_calls_begins_like_those_with_them(engine):
    prompts = [ask(engine, tools=[TOOL], tool_choice=choice, max_tokens=1, return_token_ids=True).json() for choice in ("none", "auto")]
    assert prompts[0]["prompt_token_ids"] == prompts[1]["prompt_token_ids"]


@pytest.mark.parametrize("body", [{"prompt": "What is"}, {"prompt": [7, 8, 9]}])
def test_a_completion_goes_on_from_a_text_or_from_ids(engine, body):
    asked = {**body, "max_tokens": 5, "temperature": 0, "return_token_ids": True, "logprobs": 1}
    choice = ask(engine, "/v1/completions", **asked).json()["choices"][0]
    assert choice["prompt_token_ids"] == (body["prompt"] if isinstance(body["prompt"], list) else engine.tokenizer("What is").input_ids)
    assert len(choice["token_ids"]) == len(choice["logprobs"]["token_logprobs"]) == 5
    assert choice["text"] == engine.tokenizer.decode(choice["token_ids"], skip_special_tokens=True)


@pytest.mark.parametrize("body", [{"prompt": [10**6]}, {"prompt": []}, {"prompt": ["a", "b"]}, {"prompt": "a", "echo": True}])
def test_a_completion_that_cannot_be_is_refused(engine, body):
    assert ask(engine, "/v1/completions", **body).status_code == 400


def test_a_stop_string_is_named_as_the_reason(engine):
    text = ask(engine, max_tokens=20, temperature=0).json()["choices"][0]["message"]["content"]
    stop = text[4:6]
    choice = ask(engine, max_tokens=20, temperature=0, stop=[stop, "never said"]).json()["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)


@pytest.mark.parametrize(
    ("text", "inside", "thought"),
    [
        ("42", False, Thought("", "42", True)),
        ("<thi", False, Thought("", "<thi", None)),
        ("<think>\nhm", False, Thought("\nhm", "", False)),
        ("<think>hm</think>\n42", False, Thought("hm", "\n42", True)),
        ("hm</think>42", True, Thought("hm", "42", True)),
        ("hm", True, Thought("hm", "", False)),
    ],
)
def test_thoughts_are_told_apart_from_the_answer(text, inside, thought):
    assert split(text, inside) == thought


@pytest.mark.parametrize(
    "text", ["<think>\nhm < 3</think>\n42", "no thought <think>", '<think>a</think>b<tool_call>{"name": "f", "arguments": {}}</tool_call>']
)
def test_a_streamed_thought_is_the_whole_one_in_pieces(engine, monkeypatch, text):
    monkeypatch.setattr(engine, "thinks", True)
    request = ChatRequest(model="tiny", messages=MESSAGES, tools=[TOOL])
    choice, pieces = ChatChoice(0, engine, request, False), {"reasoning_content": "", "content": ""}
    ids = engine.tokenizer(text).input_ids
    for place, token in enumerate(ids):
        choice.add(spoken(token, "stop" if place == len(ids) - 1 else None))
        for name, piece in (choice.delta() if choice.finish_reason is None else choice.last_delta()).items():
            if name in pieces:
                pieces[name] += piece
    message = choice.message()
    assert pieces == {"reasoning_content": message.get("reasoning_content", ""), "content": message["content"] or ""}
    assert "</think>" not in json.dumps(message)


def test_a_model_whose_template_knows_no_thoughts_has_none(engine):
    assert not engine.thinks
    choice = ChatChoice(0, engine, ChatRequest(model="tiny", messages=MESSAGES), False)
    for token in engine.tokenizer("<think>a</think>b").input_ids:
        choice.add(spoken(token))
    assert choice.message()["content"] == "<think>a</think>b"


def test_texts_in_parts_are_one_where_the_template_expects_one(engine):
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert render(engine.tokenizer, parts, None) == render(engine.tokenizer, [{"role": "user", "content": "a\nb"}], None)


def test_a_call_that_was_forced_is_written_as_models_write_it(engine):
    ids = ask(engine, tools=[TOOL], tool_choice="required", return_token_ids=True).json()["choices"][0]["token_ids"]
    text = engine.tokenizer.decode(ids, skip_special_tokens=True)
    content, calls = parse_tool_calls(text)
    assert content == "" and calls and all(json.dumps(json.loads(call.arguments)) == call.arguments for call in calls)


def spoken(token: int, reason: str | None = None) -> Token:
    return Token(0, Sampled(token, -1.0), reason)
