"""Requests that are none, in every form: whatever a field holds, the agent is told which one, and it is the agent's own mistake."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from proxy_room import CALCULATOR, Room, in_room

from leyden.proxy.apis import APIS, Api
from leyden.proxy.asked import Asked
from leyden.proxy.refusal import Refusal

SCHEMA = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
REQUESTS: dict[str, dict[str, Any]] = {
    "/chat/completions": {
        "messages": [{"role": "user", "content": "?"}],
        "n": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    },
    "/completions": {"prompt": ["?"], "n": 1, "best_of": 1, "logprobs": 1, "echo": False, "stream_options": {"include_usage": True}},
    "/responses": {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "?"}, {"type": "input_image", "image_url": "u", "detail": "low"}]},
            {"type": "reasoning", "id": "rs_a_0", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "id": "msg_a_1", "content": [{"type": "output_text", "text": "a"}]},
            {"type": "function_call", "id": "fc_a_2", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "3"}]},
        ],
        "instructions": "I",
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
        "tool_choice": {"type": "function", "name": "f"},
        "text": {"format": SCHEMA, "verbosity": "low"},
        "reasoning": {"effort": "low"},
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
    },
    "/messages": {
        "max_tokens": 9,
        "system": [{"type": "text", "text": "S"}],
        "messages": [
            {"role": "user", "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "text", "text": "a"},
                    {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "3"}]}]},
        ],
        "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
        "stop_sequences": ["#"],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}, "effort": "low"},
        "chat_template_kwargs": {"a": 1},
    },
}
ODD: list[Any] = [None, 5, -1, 1.5, True, "x", "", [], {}, [5], [{}], [[]], {"type": []}, {"type": {}}, {"type": "image", "source": "x"}]


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield (*at, key)
        yield from places(part, (*at, key))


def put(value: Any, place: tuple[Any, ...], odd: Any) -> Any:
    changed = part = copy.deepcopy(value)
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = odd
    return changed


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.path)
def test_whatever_a_field_holds_the_request_is_read_or_refused(api: Api) -> None:
    request = {"model": "policy", **REQUESTS[api.path]}
    assert isinstance(api.parse(orjson.dumps(request)), Asked)
    for place in places(request):
        for odd in ODD:
            try:
                api.parse(orjson.dumps(put(request, place, odd)))
            except Refusal as refusal:
                assert refusal.status == 400 and refusal.param, (place, odd)


@pytest.mark.parametrize("messages", [5, "6 * 7?", [5], [None], [{"role": "user", "content": "?"}, "x"]])
def test_messages_that_are_none_are_the_agents_mistake_and_no_call(messages: Any) -> None:
    """An error of the proxy's own would be tried again as a failure of the machinery."""

    async def test(this: Room) -> None:
        refused = await this.ask(messages=messages)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages")
        assert await this.rows() == [] and this.engine.bodies == []

    in_room(test)


NO_TOOLS: dict[str, Any] = {
    "/responses": {"input": "?", "tool_choice": "required"},
    "/messages": {"max_tokens": 9, "messages": [{"role": "user", "content": "?"}], "tool_choice": {"type": "any"}},
}


@pytest.mark.parametrize("path", NO_TOOLS)
def test_a_call_that_must_be_made_without_tools_is_refused_and_one_that_may_be_is_not(path: str) -> None:
    api = next(api for api in APIS if api.path == path)
    with pytest.raises(Refusal) as caught:
        api.parse(orjson.dumps({"model": "policy", **NO_TOOLS[path]}))
    assert caught.value.param == "tool_choice"
    may = {"type": "auto"} if path == "/messages" else "auto"
    assert "tool_choice" not in api.parse(orjson.dumps({"model": "policy", **NO_TOOLS[path], "tool_choice": may})).body


def test_the_chat_form_is_the_engines_own_to_judge() -> None:
    body = {"model": "policy", "messages": [{"role": "critic", "content": 5}], "tools": [CALCULATOR], "tool_choice": "sometimes", "new": 1}
    assert APIS[0].parse(orjson.dumps(body)).body == body


def test_an_answer_that_the_form_cannot_tell_is_one_failure_and_no_sample() -> None:
    """Text in parts, as some engines give thoughts: Responses would have to guess."""

    async def test(this: Room) -> None:
        whole = this.engine._whole

        def in_parts(body: dict[str, Any]) -> dict[str, Any]:
            said = whole(body)
            said["choices"][0]["message"]["content"] = [{"type": "text", "text": "42"}]
            return said

        this.engine._whole = in_parts  # type: ignore[method-assign]
        url, headers = f"{this.proxy.base_url}/responses", {"x-api-key": this.lease.key}
        reply = await this.client.post(url, json={"model": "policy", "input": "?"}, headers=headers)
        assert reply.status_code == 500 and reply.json()["error"]["code"] == "internal_error"
        assert [(row.status, row.response_token_ids) for row in await this.rows()] == [("error", None)]

    in_room(test)


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.path)
@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_a_request_that_is_nested_too_deep_for_those_that_write_it_is_refused(api: Api, opening: bytes) -> None:
    closing = b"]" if opening == b"[" else b"}"
    for depth in (240, 300, 900):
        with pytest.raises(Refusal, match="nested too deep"):
            api.parse(b'{"model": "policy", "metadata": ' + opening * depth + b"1" + closing * depth + b"}")
