"""Token ids in, token ids out, as vLLM's endpoints have it: what is generated from is what was sent."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from leyden.models.embedded.server import create_app

ASKED = {"model": "tiny", "messages": [{"role": "user", "content": "What is 12 + 34?"}], "max_tokens": 12, "temperature": 0}
CALL = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "1+1"}}\n</tool_call>'


@pytest.fixture
def post(engine):
    """Posts to a server around ``engine``; returns (status, answer)."""
    app = create_app(engine, "tiny")

    async def go(path, body):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://engine", timeout=60) as client:
            answer = await client.post(path, json=body)
            return answer.status_code, answer.text if body.get("stream") else answer.json()

    return lambda path, body: asyncio.run(go(path, body))


def test_render_generate_derender_in_three_steps_is_the_chat_completion(post):
    asked = {**ASKED, "logprobs": True, "return_token_ids": True}
    _, whole = post("/v1/chat/completions", asked)
    _, rendered = post("/v1/chat/completions/render", asked)
    assert rendered["token_ids"] == whole["prompt_token_ids"] and rendered["sampling_params"]["max_tokens"] == 12
    _, generated = post("/inference/v1/generate", {**rendered, "output_mode": "text"})
    (choice,) = generated["choices"]
    (expected,) = whole["choices"]
    assert choice["token_ids"] == expected["token_ids"] and choice["text"] == expected["message"]["content"]
    assert choice["logprobs"]["content"] == expected["logprobs"]["content"] and generated["usage"] == whole["usage"]
    _, derendered = post(
        "/v1/chat/completions/derender", {"generate_response": generated, "chat_request": asked, "prompt_token_ids": rendered["token_ids"]}
    )
    assert derendered["choices"][0]["message"] == expected["message"]


def test_ids_that_no_text_would_give_are_taken_as_they_are(post, engine):
    ids = engine.tokenizer.encode("What is 12 + 34?")
    odd = [token for character in "What is 12" for token in engine.tokenizer.encode(character)] + ids
    status, answer = post("/inference/v1/generate", {"token_ids": odd, "sampling_params": {"max_tokens": 3, "temperature": 0}})
    assert status == 200 and answer["usage"]["prompt_tokens"] == len(odd) and "text" not in answer["choices"][0]


def test_a_stream_says_the_same(post):
    _, rendered = post("/v1/chat/completions/render", {**ASKED, "n": 2, "temperature": 1.0, "seed": 3})
    asked = {**rendered, "output_mode": "text"}
    _, whole = post("/inference/v1/generate", asked)
    _, text = post("/inference/v1/generate", {**asked, "stream": True})
    chunks = [json.loads(part.removeprefix("data: ")) for part in text.split("\n\n") if part and "[DONE]" not in part]
    for choice in whole["choices"]:
        parts = [part for chunk in chunks for part in chunk["choices"] if part["index"] == choice["index"]]
        assert [token for part in parts for token in part["token_ids"]] == choice["token_ids"]
        assert "".join(part["text"] for part in parts) == choice["text"] and parts[-1]["finish_reason"] == choice["finish_reason"]
    assert chunks[-1]["usage"] == whole["usage"]


def test_a_stop_text_ends_the_text_before_it_and_is_among_the_ids(post, engine):
    _, rendered = post("/v1/chat/completions/render", {**ASKED, "max_tokens": 30})
    _, plain = post("/inference/v1/generate", {**rendered, "output_mode": "text"})
    text = plain["choices"][0]["text"]
    stop = text[len(text) // 2 : len(text) // 2 + 2]
    _, rendered = post("/v1/chat/completions/render", {**ASKED, "max_tokens": 30, "stop": [stop]})
    _, stopped = post("/inference/v1/generate", {**rendered, "output_mode": "text"})
    (choice,) = stopped["choices"]
    assert choice["text"] == text[: text.find(stop)] and (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    assert stop in engine.tokenizer.decode(choice["token_ids"])


def test_tool_calls_are_parsed_as_in_a_chat_completion(post, engine):
    ids = [*engine.tokenizer.encode(CALL), *sorted(engine.stop_ids)[:1]]
    tool = {"type": "function", "function": {"name": "calculate", "parameters": {"type": "object"}}}
    generated = {"request_id": "x", "choices": [{"index": 0, "token_ids": ids, "finish_reason": "stop"}]}
    status, answer = post("/v1/chat/completions/derender", {"generate_response": generated, "chat_request": {**ASKED, "tools": [tool]}})
    assert status == 200
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "calculate", "arguments": '{"expression": "1+1"}'}


def test_tokenize_and_detokenize_show_special_tokens(post):
    _, found = post("/tokenize", {"prompt": "hi<|im_end|>"})
    _, text = post("/detokenize", {"tokens": found["tokens"]})
    assert text == {"prompt": "hi<|im_end|>"} and found["count"] == len(found["tokens"])


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/inference/v1/generate", {"token_ids": [10**6]}, "vocabulary"),
        ("/inference/v1/generate", {"token_ids": []}, "token_ids"),
        ("/inference/v1/generate", {"token_ids": [1], "sampling_params": {"top_p": 0}}, "top_p"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        (
            "/v1/chat/completions/derender",
            {"generate_response": {"choices": [{"index": 0, "token_ids": [2**40]}]}, "chat_request": ASKED},
            "token_ids",
        ),
        ("/inference/v1/generate", {"token_ids": [1], "sampling_params": {"top_k": 3}}, "top_k"),
        ("/v1/chat/completions/render", {**ASKED, "frequency_penalty": 1}, "frequency_penalty"),
    ],
)
def test_what_it_cannot_do_it_refuses_by_name(post, path, body, said):
    status, answer = post(path, body)
    assert status == 400 and said in answer["error"]["message"]


def test_another_model_is_not_found(post):
    assert post("/detokenize", {"model": "other", "tokens": [1]})[0] == 404
