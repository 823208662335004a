"""The embedded engine over HTTP, as a child process and to the official client."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from pathlib import Path

import httpx
import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError

from leyden.errors import Unavailable, UsageError
from leyden.models.engine import EmbeddedEngine
from leyden.process import find_by_marker, new_marker

MESSAGES = [{"role": "user", "content": "What is 12 + 34?"}]


@pytest.fixture(scope="module")
def served(tiny_dir, tmp_path_factory):
    """An engine child for the whole module; yields it with its event loop, since the child belongs to the loop that spawned it."""
    engine = EmbeddedEngine(tiny_dir, log_path=tmp_path_factory.mktemp("logs") / "engine.log", marker=new_marker(), model_name="tiny")
    loop = asyncio.new_event_loop()
    loop.run_until_complete(engine.start())
    yield engine, loop
    loop.run_until_complete(engine.stop())
    loop.close()


def ask(served, **options):
    engine, loop = served

    async def call():
        async with AsyncOpenAI(base_url=engine.base_url, api_key="none", max_retries=0) as client:
            arguments = {"model": "tiny", "messages": MESSAGES, "max_tokens": 12, "temperature": 0} | options
            answer = await client.chat.completions.create(**arguments)
            return [chunk async for chunk in answer] if arguments.get("stream") else answer

    return loop.run_until_complete(call())


def test_answers_carry_ids_and_logprobs_that_agree_with_usage(served):
    answer = ask(served, logprobs=True, top_logprobs=2, extra_body={"return_token_ids": True})
    (choice,) = answer.choices
    assert len(choice.token_ids) == len(choice.logprobs.content) == answer.usage.completion_tokens
    assert len(answer.prompt_token_ids) == answer.usage.prompt_tokens
    assert choice.logprobs.content[0].top_logprobs[0].logprob == pytest.approx(choice.logprobs.content[0].logprob)


def test_a_stream_says_the_same_as_the_whole_answer(served):
    extra = {"logprobs": True, "extra_body": {"return_token_ids": True}}
    whole = ask(served, **extra)
    chunks = ask(served, stream=True, stream_options={"include_usage": True}, **extra)
    pieces = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(piece.delta.content or "" for piece in pieces) == (whole.choices[0].message.content or "")
    assert [token for piece in pieces for token in piece.token_ids] == whole.choices[0].token_ids
    assert chunks[0].prompt_token_ids == whole.prompt_token_ids
    assert pieces[-1].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage == whole.usage


def test_n_choices_come_back_numbered(served):
    answer = ask(served, n=3, temperature=1.0)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    chunks = ask(served, n=3, temperature=1.0, stream=True)
    assert {chunk.choices[0].index for chunk in chunks} == {0, 1, 2}


def test_a_stop_string_ends_the_answer_before_it(served):
    text = ask(served, max_tokens=30).choices[0].message.content
    stop = text[len(text) // 2 : len(text) // 2 + 2]
    answer = ask(served, max_tokens=30, stop=[stop]).choices[0]
    assert answer.message.content == text[: text.find(stop)]
    assert answer.finish_reason == "stop"


def test_what_cannot_be_honoured_is_refused_by_name(served):
    for name, value in {"frequency_penalty": 0.5, "reasoning_effort": "low"}.items():
        with pytest.raises(BadRequestError, match=name):
            ask(served, **{name: value})
    for name, value in {"top_k": 5, "add_generation_prompt": False, "include_stop_str_in_output": True}.items():
        with pytest.raises(BadRequestError, match=name):
            ask(served, extra_body={name: value})
    with pytest.raises(NotFoundError, match="tiny"):
        ask(served, model="other")
    with pytest.raises(BadRequestError, match="context"):
        ask(served, messages=[{"role": "user", "content": "12 " * 9000}])


def test_a_body_that_is_no_request_is_one_clear_error(served):
    engine, loop = served

    async def post(body: bytes) -> httpx.Response:
        async with httpx.AsyncClient(timeout=60) as client:
            return await client.post(engine.base_url + "/chat/completions", content=body)

    for body in (b"", b"{", b"[]", b'{"model": "tiny"}', b'{"model": "tiny", "messages": [{"content": "no role"}]}'):
        response = loop.run_until_complete(post(body))
        assert response.status_code == 400 and response.json()["error"]["message"]


def test_a_child_that_dies_while_starting_is_reported_with_its_log(tiny_dir, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in tiny_dir.iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    config = json.loads((broken / "config.json").read_text()) | {"model_type": "no-such-architecture"}
    (broken / "config.json").write_text(json.dumps(config))
    marker = new_marker()
    engine = EmbeddedEngine(broken, log_path=tmp_path / "engine.log", marker=marker)
    with pytest.raises(Unavailable) as caught:
        asyncio.run(engine.start())
    assert "no-such-architecture" in (caught.value.hint or "")
    assert find_by_marker(marker) == []


def test_a_missing_or_damaged_model_is_refused_before_anything_starts(tiny_dir, tmp_path):
    def start(directory: Path) -> None:
        asyncio.run(EmbeddedEngine(directory, log_path=tmp_path / "log", marker=new_marker()).start())

    with pytest.raises(UsageError, match="no model directory"):
        start(tmp_path / "nowhere")
    cut = tmp_path / "cut"
    cut.mkdir()
    for file in tiny_dir.iterdir():
        data = file.read_bytes()
        (cut / file.name).write_bytes(data[: len(data) // 2] if file.suffix == ".safetensors" else data)
    with pytest.raises(UsageError, match="damaged"):
        start(cut)


def test_an_engine_that_was_prepared_serves_a_model_that_came_later(tiny_dir, tmp_path):
    marker = new_marker()

    async def prepare_and_start() -> str:
        engine = EmbeddedEngine(tmp_path / "later", log_path=tmp_path / "log", marker=marker)
        await engine.prepare()
        [prepared] = {process.pid for process in find_by_marker(marker)}
        shutil.copytree(tiny_dir, tmp_path / "later")
        await engine.start()
        [serving] = {process.pid for process in find_by_marker(marker)}
        async with httpx.AsyncClient() as client:
            models = (await client.get(f"{engine.base_url}/models")).json()
        await engine.stop()
        assert serving == prepared
        return models["data"][0]["id"]

    assert asyncio.run(prepare_and_start()) == "later"
    assert find_by_marker(marker) == []


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_an_engine_that_was_prepared_for_nothing_leaves_nothing(tiny_dir, tmp_path, monkeypatch, end):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    marker = new_marker()

    async def prepare() -> None:
        engine = EmbeddedEngine(tiny_dir, log_path=tmp_path / "log", marker=marker)
        await engine.prepare()
        if end == "killed":
            for process in find_by_marker(marker):
                process.kill()
            await engine.wait_death()
            await engine.start()  # by another child
        await engine.stop()

    asyncio.run(prepare())
    assert find_by_marker(marker) == []
    assert list(tmp_path.glob("leyden-engine-*")) == []


def test_stopping_leaves_no_process(tiny_dir, tmp_path):
    marker = new_marker()

    async def start_and_stop() -> int:
        engine = EmbeddedEngine(tiny_dir, log_path=tmp_path / "log", marker=marker)
        await engine.start()
        alive = len(find_by_marker(marker))
        await engine.stop()
        await engine.stop()
        return alive

    assert asyncio.run(start_and_stop()) >= 1
    assert find_by_marker(marker) == []
