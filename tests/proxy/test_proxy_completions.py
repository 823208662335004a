"""Completions: asked at the engine's own route, recorded like everything else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import orjson
import pytest
from proxy_room import Room, in_room

from leyden.proxy.apis.completions import Completions
from leyden.proxy.refusal import Refusal


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:

    from tinymodel import make_tiny_model

    from leyden.models.embedded.engine import TransformersEngine

    engine = TransformersEngine(make_tiny_model(tmp_path_factory.mktemp("completions") / "tiny"), device="cpu")
    yield engine
    engine.close()


def at_a_desk(tiny: Any, test: Any) -> None:
    from asgi import serving
    from desk import desk

    from leyden.models.embedded.server import create_app

    async def main() -> None:
        async with serving(create_app(tiny, "tiny")) as url, desk(f"{url}/v1", "tiny") as at, httpx.AsyncClient(timeout=60) as client:

            async def ask(**body: Any) -> httpx.Response:
                headers = {"authorization": f"Bearer {at.lease.key}"}
                body = {"model": "policy", "prompt": "What is 12 + 34?", "max_tokens": 9, "temperature": 0, **body}
                return await client.post(f"{at.proxy.base_url}/completions", json=body, headers=headers)

            await asyncio.wait_for(test(at, ask), 120)

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_of_ids_is_read_as_it_is_and_each_choice_is_a_row(tiny: Any, stream: bool) -> None:
    async def test(at: Any, ask: Any) -> None:
        ids = tiny.tokenizer("What is 12 + 34?").input_ids
        assert (await ask(prompt=[ids], n=2, stream=stream, temperature=1)).status_code == 200
        rows = await at.check()
        assert [row.prompt_token_ids for row in rows] == [ids, ids] and [row.choice for row in rows] == [0, 1]
        assert rows[0].request == {"prompt": ids} and rows[0].sampling == {"n": 2, "max_tokens": 9, "temperature": 1}
        assert rows[0].response["content"] == tiny.tokenizer.decode(rows[0].response_token_ids, skip_special_tokens=True)

    at_a_desk(tiny, test)


def test_the_agent_sees_the_engines_answer_less_what_it_did_not_ask_for(tiny: Any) -> None:
    async def test(at: Any, ask: Any) -> None:
        plain = (await ask()).json()
        [choice] = plain["choices"]
        assert plain["object"] == "text_completion" and plain["model"] == "policy" and plain["usage"]["completion_tokens"] == 9
        assert choice.keys() == {"index", "text", "finish_reason", "stop_reason", "logprobs"} and choice["logprobs"] is None
        full = (await ask(logprobs=2, return_token_ids=True)).json()["choices"][0]
        assert full["text"] == choice["text"] and len(full["token_ids"]) == 9 and full["prompt_token_ids"]
        assert full["logprobs"].keys() == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
        assert len(full["logprobs"]["top_logprobs"][0]) == 2
        streamed = (await ask(stream=True)).text
        chunks = [orjson.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == choice["text"] and "token_ids" not in streamed
        assert streamed.endswith("data: [DONE]\n\n") and not any("usage" in chunk for chunk in chunks)
        first, _, last = await at.check()
        assert first.response == last.response == {"role": "assistant", "content": choice["text"]}

    at_a_desk(tiny, test)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [[1], [2]]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": {"text": "a"}}, "prompt"),
        ({"prompt": "a", "echo": True}, "echo"),
        ({"prompt": "a", "best_of": 3}, "best_of"),
        ({"prompt": "a", "logprobs": True}, "logprobs"),
    ],
)
def test_what_would_blur_the_record_is_refused_by_its_name(body: dict[str, Any], param: str) -> None:
    with pytest.raises(Refusal) as caught:
        Completions().parse(orjson.dumps({"model": "policy", **body}))
    assert caught.value.status == 400 and caught.value.param == param


def test_a_provider_that_knows_chat_only_is_not_asked_for_completions() -> None:
    async def test(this: Room) -> None:
        params = {"model": "anthropic/claude-sonnet-4-5", "api_base": "http://127.0.0.1:9", "api_key": "provider-secret"}
        this.proxy.update_model_list([{"model_name": "claude", "litellm_params": params}])
        lease = await this.claim(llm=this.proxy.as_resource())
        url, headers = f"{this.proxy.base_url}/completions", {"authorization": f"Bearer {lease.key}"}
        reply = await this.client.post(url, json={"model": "claude", "prompt": "6 * 7 ="}, headers=headers)
        assert reply.status_code == 400 and "chat/completions" in reply.json()["error"]["message"]

    in_room(test)
