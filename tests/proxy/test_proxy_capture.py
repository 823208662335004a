"""What a call leaves behind, and what its agent sees of it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from proxy_room import CALCULATOR, PROMPT_IDS, Room, Sample, events, in_room

from leyden.proxy.apis.chat import ChatCompletions
from leyden.types import Generation

TOOL_CALL = Sample(pieces=['{"expression": ', '"6*7"}', ""], ids=[7, 8, 99], tool="calculate")


def same(row: Generation) -> dict[str, object]:
    return row.model_dump(exclude={"id", "call_id", "started_at", "latency"})


def test_a_call_is_recorded_with_token_ids_logprobs_and_its_checkpoint() -> None:
    async def test(this: Room) -> None:
        reply = await this.ask(temperature=0.5, tools=[CALCULATOR])
        assert reply.status_code == 200
        [row] = await this.rows()
        assert (row.rollout_id, row.attempt) == (this.lease.ref.rollout_id, this.lease.ref.attempt)
        assert row.status == "ok" and row.finish_reason == "stop" and row.error is None
        assert row.prompt_token_ids == PROMPT_IDS and row.response_token_ids == [40, 20, 99]
        assert row.logprobs == pytest.approx([-0.4, -0.2, -0.99])
        assert (row.prompt_tokens, row.completion_tokens) == (4, 3)
        assert (row.model, row.checkpoint) == ("policy", "version_0")
        assert row.deployment == this.proxy.as_resource().deployment
        assert row.sampling == {"temperature": 0.5}
        assert row.request == {"messages": [{"role": "user", "content": "6 * 7?"}], "tools": [CALCULATOR]}
        assert row.response == {"role": "assistant", "content": "42"}
        assert row.latency >= 0 and row.started_at > 1_700_000_000_000_000
        assert this.proxy.counters == {"calls": 1}
        [span] = await this.store.list_spans(row.rollout_id)
        assert (span.name, span.kind, span.status, span.attempt) == ("chat policy", "client", "ok", row.attempt)
        assert span.start_ns == row.started_at * 1000 and span.end_ns >= span.start_ns
        assert span.attributes["leyden.generation_ids"] == [row.id] and span.attributes["gen_ai.usage.output_tokens"] == 3

    in_room(test)


def test_a_call_and_its_span_are_recorded_in_one_commit_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(this: Room) -> None:
        from leyden.server.operations import generations

        def full(*_: object) -> int:
            raise OSError("disk full")

        monkeypatch.setattr(generations, "insert_spans", full)
        assert (await this.ask()).json()["error"]["code"] == "upstream_not_recorded"
        assert not await this.rows()

    in_room(test)


def test_the_engine_gets_the_agents_body_with_model_ids_and_logprobs_and_never_the_agents_key() -> None:
    async def test(this: Room) -> None:
        await this.ask(temperature=0.5, odd={"kept": True})
        [body] = this.engine.bodies
        assert body == {
            "model": "models/version_0",
            "messages": [{"role": "user", "content": "6 * 7?"}],
            "temperature": 0.5,
            "odd": {"kept": True},
            "logprobs": True,
            "return_token_ids": True,
        }
        assert this.engine.authorizations == ["Bearer engine-secret"]

    in_room(test)


def test_the_agent_does_not_see_what_it_did_not_ask_for() -> None:
    async def test(this: Room) -> None:
        whole = (await this.ask()).json()
        assert "prompt_token_ids" not in whole and whole["model"] == "policy"
        assert "token_ids" not in whole["choices"][0] and whole["choices"][0]["logprobs"] is None
        chunks = events((await this.ask(stream=True)).text)
        assert chunks.pop() == "[DONE]"
        for chunk in chunks:
            assert chunk["model"] == "policy" and "usage" not in chunk and "prompt_token_ids" not in chunk
            assert len(chunk["choices"]) == 1
            assert "token_ids" not in chunk["choices"][0] and chunk["choices"][0]["logprobs"] is None

    in_room(test)


def test_the_agent_sees_what_it_asked_for() -> None:
    async def test(this: Room) -> None:
        whole = (await this.ask(logprobs=True, return_token_ids=True)).json()
        assert whole["prompt_token_ids"] == PROMPT_IDS and whole["choices"][0]["token_ids"] == [40, 20, 99]
        assert len(whole["choices"][0]["logprobs"]["content"]) == 3
        reply = await this.ask(stream=True, logprobs=True, return_token_ids=True, stream_options={"include_usage": True})
        chunks = events(reply.text)[:-1]
        assert chunks[0]["prompt_token_ids"] == PROMPT_IDS and chunks[-1]["usage"]["completion_tokens"] == 3
        assert [id for c in chunks for choice in c["choices"] for id in choice.get("token_ids", ())] == [40, 20, 99]

    in_room(test)


ODD_LINE_ENDS = Sample(pieces=["a\u2028b", "é\x85", ""])


@pytest.mark.parametrize("sample", [Sample(), TOOL_CALL, ODD_LINE_ENDS], ids=["text", "tool call", "odd line ends"])
def test_a_streamed_call_leaves_the_same_record_as_an_unstreamed_one(sample: Sample) -> None:
    async def test(this: Room) -> None:
        this.engine.samples = [sample]
        await this.ask(temperature=1.0)
        await this.ask(temperature=1.0, stream=True)
        whole, streamed = await this.rows()
        assert same(whole) == same(streamed)
        assert whole.call_id != streamed.call_id

    in_room(test)


@pytest.mark.parametrize("stream", [False, True])
def test_each_choice_is_a_row_of_one_call(stream: bool) -> None:
    async def test(this: Room) -> None:
        this.engine.samples = [Sample(), Sample(pieces=["4", "1", "!", ""], ids=[40, 10, 3, 99])]
        await this.ask(n=2, stream=stream)
        first, second = await this.rows()
        assert first.call_id == second.call_id and first.id != second.id
        assert (first.choice, second.choice) == (0, 1)
        assert (first.response_token_ids, second.response_token_ids) == ([40, 20, 99], [40, 10, 3, 99])
        assert (first.completion_tokens, second.completion_tokens) == (3, 4)
        assert second.response == {"role": "assistant", "content": "41!"} and second.prompt_token_ids == PROMPT_IDS
        assert second.sampling == {"n": 2}

    in_room(test)


def test_the_resources_sampling_is_used_where_the_agent_sets_none() -> None:
    async def test(this: Room) -> None:
        await this.ask()
        await this.ask(temperature=0, max_completion_tokens=9)
        first, second = await this.rows()
        assert first.sampling == {"temperature": 0.7, "max_tokens": 64}
        assert second.sampling == {"temperature": 0, "max_completion_tokens": 9}
        assert "max_tokens" not in this.engine.bodies[1]

    in_room(test, temperature=0.7, max_tokens=64)


@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize("chunk", [{"choices": None}, {}])
def test_a_chunk_without_choices_is_no_failure(chunk: dict[str, Any], usage: bool) -> None:
    chat = ChatCompletions()
    asked = chat.parse(orjson.dumps({"model": "m", "stream": True, "stream_options": {"include_usage": usage}}))
    shown = chat.stream(asked).chunk({**chunk, "usage": {"completion_tokens": 1}})
    assert (b'"completion_tokens":1' in shown) == usage
