"""What holds for every form of request: errors in its own shape, ids in streams, retries that join, response ids that are kept."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from proxy_room import CALCULATOR, Room, Sample, in_room

from leyden.proxy.apis import APIS
from leyden.types import FailureKind

FORMS: dict[str, dict[str, Any]] = {
    "/chat/completions": {"messages": [{"role": "user", "content": "6 * 7?"}]},
    "/responses": {"input": "6 * 7?"},
    "/messages": {"messages": [{"role": "user", "content": "6 * 7?"}], "max_tokens": 9},
}
TOOL_CALL = Sample(pieces=['{"expression": ', '"6*7"}', ""], ids=[7, 8, 99], tool="calculate")

form = pytest.mark.parametrize("path", FORMS)


async def post(this: Room, path: str, headers: dict[str, str] | None = None, key: str | None = None, **more: Any) -> httpx.Response:
    body = {"model": "policy", **FORMS.get(path, {}), **more}
    return await this.client.post(
        f"{this.proxy.base_url}{path}", json=body, headers={"x-api-key": key or this.lease.key, **(headers or {})}
    )


def error_of(path: str, reply: httpx.Response) -> str:
    """Its text, if the shape is the form's own."""
    body = reply.json()
    assert reply.headers["content-type"] == "application/json"
    if path == "/messages":
        assert body["type"] == "error" and body["error"]["type"]
    else:
        assert "type" not in body and body["error"].keys() >= {"message", "type", "code"}
    return body["error"]["message"]


def test_the_forms_tested_here_are_all_that_ask_for_messages() -> None:
    assert [api.path for api in APIS] == ["/chat/completions", "/completions", "/responses", "/messages"]


@form
def test_every_refusal_comes_in_the_forms_own_shape(path: str) -> None:
    async def test(this: Room) -> None:
        stranger = await post(this, path, key="nobody")
        assert stranger.status_code == 401 and "never issued" in error_of(path, stranger)
        for broken in (b"{", b"[]", b'{"no": "model"}'):
            refused = await this.client.post(f"{this.proxy.base_url}{path}", content=broken, headers={"x-api-key": this.lease.key})
            assert refused.status_code == 400 and error_of(path, refused)
        long = await this.client.post(
            f"{this.proxy.base_url}{path}", content=b"x" * (16 * 2**20 + 1), headers={"x-api-key": this.lease.key}
        )
        assert long.status_code == 413 and error_of(path, long)
        this.engine.fault = "garbage"
        assert (await post(this, path)).status_code == 502
        assert (await this.client.get(f"{this.proxy.base_url}{path}")).status_code == 404
        this.engine.fault = None
        this.store.error = OSError("disk full")
        unrecorded = await post(this, path)
        assert unrecorded.status_code == 503 and "disk full" in error_of(path, unrecorded)
        this.store.error = None
        other = await this.claim(llm=this.proxy.as_resource())
        await this.store.fail(other.ref, FailureKind.AGENT, "gone")
        over = await post(this, path, key=other.key)
        assert over.status_code == 409 and over.headers["x-should-retry"] == "false" and error_of(path, over)

    in_room(test)


@form
def test_an_unknown_url_names_every_path_in_the_shape_of_the_nearest_form(path: str) -> None:
    async def test(this: Room) -> None:
        reply = await this.client.post(f"{this.proxy.base_url}{path}/batches", json={})
        said = error_of(path, reply)
        assert reply.status_code == 404 and all(f"POST /v1{api.path}" in said for api in APIS)

    in_room(test)


@form
@pytest.mark.parametrize("sample", [Sample(), TOOL_CALL], ids=["text", "tool call"])
def test_ids_are_there_when_a_stream_with_a_tool_parser_is_asked_for(path: str, sample: Sample) -> None:
    """Engines and gateways that lose them: agent-lightning 262 and 326, vLLM 27482, OpenEnv 1029."""

    async def test(this: Room) -> None:
        this.engine.samples = [sample]
        tool = CALCULATOR["function"]
        tools = {
            "/chat/completions": [CALCULATOR],
            "/responses": [{"type": "function", **tool}],
            "/messages": [{"name": tool["name"], "input_schema": tool["parameters"]}],
        }[path]
        for stream in (True, False):
            assert (await post(this, path, tools=tools, stream=stream)).status_code == 200
        for row in await this.rows():
            assert (row.response_token_ids, len(row.prompt_token_ids or ())) == (sample.ids, 4)  # the stop token too
            assert row.finish_reason == sample.finish_reason and len(row.logprobs or ()) == 3
            assert [m["role"] for m in row.request["messages"]] == ["user"] and row.request["tools"][0]["function"]["name"] == "calculate"

    in_room(test)


@form
def test_the_engines_response_id_is_kept_in_the_answer_and_beside_the_record(path: str) -> None:
    """So that an agent's own trace can be told which generation it is about: agent-lightning 217."""

    async def test(this: Room) -> None:
        said = (await post(this, path)).json()["id"]
        assert said.rpartition("1")[2] == "" and said in ("chatcmpl-1", "resp_1", "msg_1")
        [row] = await this.rows()
        [span] = await this.store.list_spans(row.rollout_id)
        assert span.attributes["gen_ai.response.id"] == "chatcmpl-1" and span.attributes["leyden.generation_ids"] == [row.id]

    in_room(test)


@form
def test_a_marked_retry_joins_the_first_answer_and_an_unmarked_one_is_a_new_sample(path: str) -> None:
    async def test(this: Room) -> None:
        first = await post(this, path, {"x-stainless-retry-count": "0"})
        again = await post(this, path, {"x-stainless-retry-count": "1"})
        assert again.text == first.text and len(this.engine.bodies) == 1 and this.proxy.counters["retries_joined"] == 1
        await post(this, path)
        assert len(this.engine.bodies) == len(await this.rows()) == 2

    in_room(test)


@form
def test_the_last_byte_of_a_stream_waits_for_the_commit(path: str) -> None:
    async def test(this: Room) -> None:
        this.store.open.clear()
        body = {"model": "policy", **FORMS[path], "stream": True}
        seen = bytearray()

        async def read() -> None:
            async with this.client.stream(
                "POST", f"{this.proxy.base_url}{path}", json=body, headers={"x-api-key": this.lease.key}
            ) as reply:
                async for part in reply.aiter_bytes():
                    seen.extend(part)

        reading = asyncio.create_task(read())
        await this.store.writing.wait()
        while b"2" not in seen.replace(b"policy", b""):  # the text is there; its end is not
            await asyncio.sleep(0)
        for end in (
            b"[DONE]",
            b'"finish_reason":"stop"',
            b"response.completed",
            b"response.output_item.done",
            b"message_delta",
            b"message_stop",
        ):
            assert end not in seen
        this.store.open.set()
        await reading
        assert any(end in seen for end in (b"[DONE]", b"response.completed", b"message_stop"))

    in_room(test)


@form
def test_images_reach_the_engine_and_the_record_untouched(path: str) -> None:
    url = "data:image/png;base64,eA=="
    part: dict[str, Any] = {"type": "image_url", "image_url": {"url": url}}
    own = {
        "/chat/completions": {**part, "odd": {"kept": True}},
        "/responses": {"type": "input_image", "image_url": url},
        "/messages": {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}},
    }[path]
    name = "input" if path == "/responses" else "messages"

    async def test(this: Room) -> None:
        assert (await post(this, path, **{name: [{"role": "user", "content": [own]}]})).status_code == 200
        expected = own if path == "/chat/completions" else part
        [row] = await this.rows()
        assert this.engine.bodies[0]["messages"] == row.request["messages"] == [{"role": "user", "content": [expected]}]

    in_room(test)


def test_a_conversation_that_drops_its_own_history_is_recorded_call_by_call() -> None:
    """Not every trajectory is cumulative: rllm 352."""

    async def test(this: Room) -> None:
        for messages in ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "42"}], [{"role": "user", "content": "b"}]):
            assert (await post(this, "/chat/completions", messages=messages)).status_code == 200
        assert [row.request["messages"][-1]["content"] for row in await this.rows()] == ["42", "b"]

    in_room(test)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:

    from tinymodel import make_tiny_model

    from leyden.models.embedded.engine import TransformersEngine

    directory = make_tiny_model(tmp_path_factory.mktemp("apis") / "thinking")
    template = directory / "chat_template.jinja"
    # A model that always thinks: its prompt opens the thought.
    template.write_text(
        template.read_text().replace(
            "<|im_start|>assistant\\n' }}{%- endif %}", "<|im_start|>assistant\\n<think>\\n' }}{%- endif %}{# </think> #}"
        )
    )
    engine = TransformersEngine(directory, device="cpu")
    yield engine
    engine.close()


@form
@pytest.mark.parametrize("stream", [False, True])
def test_a_reasoning_parser_loses_no_ids(tiny: Any, path: str, stream: bool) -> None:
    """Thoughts are shown apart from the answer, and the ids are all that was sampled: vLLM 28246."""
    from asgi import serving
    from desk import desk

    from leyden.models.embedded.server import create_app

    async def test() -> None:
        async with serving(create_app(tiny, "tiny")) as url, desk(f"{url}/v1", "tiny") as at, httpx.AsyncClient(timeout=60) as client:
            body = {"model": "policy", **FORMS[path], "stream": stream, "seed": 1}
            body["max_output_tokens" if path == "/responses" else "max_tokens"] = 12
            reply = await client.post(f"{at.proxy.base_url}{path}", json=body, headers={"x-api-key": at.lease.key})
            assert reply.status_code == 200, reply.text
            [row] = await at.check()
            thought = tiny.tokenizer.decode(row.response_token_ids, skip_special_tokens=True)
            assert row.response == {"role": "assistant", "content": "", "reasoning_content": thought}
            word = {"/chat/completions": "reasoning_content", "/responses": "reasoning_text", "/messages": "thinking"}[path]
            assert word in reply.text
            if not stream:
                assert json.dumps(thought)[1:-1] in json.dumps(reply.json())

    asyncio.run(test())
