"""What the proxy finds when it looks at what an engine sampled: ids missing, strange, uncounted; log-probabilities that are none."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import pytest
from asgi import serving
from proxy_room import PROMPT_IDS, Room, Sample, entry, in_room
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from leyden.audit import Audit, Continuity, Finding
from leyden.proxy import LLMProxy
from leyden.types import Generation

Answer = dict[str, Any]


async def answered(this: Room, change: Any, **body: Any) -> list[Generation]:
    """The rows of a call whose answer ``change`` has spoilt."""

    async def chat(request: Request) -> Response:
        answer = this.engine._whole(json.loads(await request.body()))
        raw = json.dumps(change(answer) or answer)  # NaN is written as Python writes it
        return Response(raw, media_type="application/json")

    async with serving(Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])) as url:
        this.engine.api_base = f"{url}/v1"
        this.proxy.update_model_list([entry(this.engine, vocab_size=1000, name="spoilt", id="spoilt")])
        this.lease = await this.claim(llm=this.proxy.as_resource("spoilt"))
        assert (await this.ask(model="spoilt", **body)).status_code == 200
        return await this.rows()


def spoilt(**changes: Any) -> Any:
    def change(answer: Answer) -> None:
        for name, value in changes.items():
            (answer if name in answer else answer["choices"][0])[name] = value

    return change


def logprobs(*values: float | None) -> Answer:
    return {"content": [{"token": "t", "logprob": value, "bytes": None, "top_logprobs": []} for value in values]}


SPOILT: dict[str, tuple[Any, Finding]] = {
    "no ids of the answer": (spoilt(token_ids=None), Finding.NO_IDS),
    "no ids of the prompt": (spoilt(prompt_token_ids=None), Finding.NO_IDS),
    "control tokens left out of the ids": (spoilt(token_ids=[40, 20], logprobs=logprobs(-1.0, -1.0)), Finding.COUNT_MISMATCH),
    "ids without usage": (spoilt(usage=None), Finding.COUNT_MISMATCH),
    "another prompt counted": (spoilt(usage={"prompt_tokens": 9, "completion_tokens": 3}), Finding.COUNT_MISMATCH),
    "a negative id": (spoilt(token_ids=[40, -1, 99]), Finding.OUT_OF_VOCABULARY),
    "an id that the model does not know": (spoilt(token_ids=[40, 1000, 99]), Finding.OUT_OF_VOCABULARY),
    "a prompt id that it does not know": (spoilt(prompt_token_ids=[1, 2, 3, 5000]), Finding.OUT_OF_VOCABULARY),
    "too few logprobs": (spoilt(logprobs=logprobs(-1.0)), Finding.LOGPROBS_MISALIGNED),
    "no logprobs": (spoilt(logprobs=None), Finding.LOGPROBS_MISALIGNED),
    "a logprob that is null": (spoilt(logprobs=logprobs(-1.0, None, -1.0)), Finding.LOGPROBS_NOT_FINITE),
    "a logprob that is NaN": (spoilt(logprobs=logprobs(-1.0, math.nan, -1.0)), Finding.LOGPROBS_NOT_FINITE),
    "a logprob that is minus infinity": (spoilt(logprobs=logprobs(-1.0, -math.inf, -1.0)), Finding.LOGPROBS_NOT_FINITE),
    "vLLM's stand-in for one": (spoilt(logprobs=logprobs(-1.0, -9999.0, -1.0)), Finding.LOGPROBS_NOT_FINITE),
    "an engine that gave up": (spoilt(finish_reason="abort"), Finding.FINISH_UNKNOWN),
}


@pytest.mark.parametrize(("change", "finding"), SPOILT.values(), ids=SPOILT)
def test_what_is_wrong_is_found_and_the_agent_gets_its_answer_all_the_same(change: Any, finding: Finding) -> None:
    """vLLM 10234 and 19661 (NaN and -inf spoil the JSON), TRL PR 6947 (missing ids swallowed), agent-lightning 326, 442, 44."""

    async def test(this: Room) -> None:
        [row] = await answered(this, change)
        assert row.status == "ok" and row.audit is not None and row.audit.findings == (finding,)
        assert row.response == {"role": "assistant", "content": "42"}
        assert this.proxy.counters[finding] == 1
        counts = await this.store.count_audits()
        assert (counts.calls, counts.flagged, counts.findings) == (1, 1, {finding: 1})

    in_room(test)


def test_a_good_call_has_no_finding_and_says_that_nobody_knew_the_vocabulary() -> None:
    async def test(this: Room) -> None:
        await this.ask()
        [row] = await this.rows()
        assert row.audit == Audit(continuity=Continuity.NEW, vocabulary=None)
        assert (await this.store.count_audits()).vocabulary_unknown == 1

    in_room(test)


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_wrong_with_one_choice_is_not_said_of_the_others(stream: bool) -> None:
    async def test(this: Room) -> None:
        this.engine.samples = [Sample(), Sample(ids=[40, -20, 99])]
        await this.ask(n=2, stream=stream)
        first, second = await this.rows()
        assert first.audit and first.audit.findings == ()
        assert second.audit and second.audit.findings == (Finding.OUT_OF_VOCABULARY,)

    in_room(test)


def test_ids_left_out_while_tool_calls_stream_are_found() -> None:
    """agent-lightning 326 and vLLM PR 29074: the parser kept the control tokens, and training collapsed."""

    async def test(this: Room) -> None:
        this.engine.samples = [Sample(pieces=['{"expression": ', '"6*7"}', ""], ids=[7, 8, 99], tool="calculate")]
        this.engine.completion_tokens = 5
        await this.ask(stream=True)
        [row] = await this.rows()
        assert row.audit and row.audit.findings == (Finding.COUNT_MISMATCH,) and row.response and row.response["tool_calls"]

    in_room(test)


def test_a_call_that_failed_is_not_audited_but_counted() -> None:
    async def test(this: Room) -> None:
        this.engine.fault = "status"
        await this.ask()
        [row] = await this.rows()
        assert row.status == "error" and row.audit is None
        assert (await this.store.count_audits()).failed == 1

    in_room(test)


def test_a_proxy_started_anew_goes_on_with_what_the_store_recorded() -> None:
    async def test(this: Room) -> None:
        messages = [{"role": "user", "content": "6 * 7?"}]
        await this.ask(messages=messages)
        [first] = await this.rows()
        other = LLMProxy(this.store)
        other.update_model_list([entry(this.engine, id=this.proxy.as_resource().deployment)])
        await other.start()
        try:
            this.proxy, former = other, this.proxy
            await former.stop()
            assert first.response is not None
            # The engine's prompt is the same four ids whatever it is asked: not what was read and sampled.
            await this.ask(messages=[*messages, first.response, {"role": "user", "content": "and more?"}])
        finally:
            await other.stop()
        second = (await this.rows())[1]
        assert second.audit and second.audit.continuity is Continuity.REALIGNED
        assert (second.audit.follows, second.audit.differs_at) == (first.id, len(PROMPT_IDS))

    in_room(test)


def test_an_engine_that_cannot_spell_ids_is_not_waited_for_and_the_ids_are_told() -> None:
    async def test(this: Room) -> None:
        await this.ask()
        [first] = await this.rows()
        await this.ask(messages=[{"role": "user", "content": "6 * 7?"}, first.response, {"role": "user", "content": "more"}])
        audit = (await this.rows())[1].audit
        assert audit and audit.expected == "ids 1 2 3 4«ids 40»ids 20 99" and audit.found == "ids 1 2 3 4«»"

    in_room(test)


def test_agents_of_one_attempt_that_ask_at_once_are_told_apart() -> None:
    async def test(this: Room) -> None:
        topics = [[{"role": "user", "content": f"topic {n}"}] for n in range(8)]
        await asyncio.gather(*(this.ask(messages=topic) for topic in topics))
        rows = {row.request["messages"][0]["content"]: row for row in await this.rows()}
        reply = {"role": "assistant", "content": "42"}
        await asyncio.gather(*(this.ask(messages=[*topic, reply, {"role": "user", "content": "go on"}]) for topic in topics))
        for row in (await this.rows())[8:]:
            assert row.audit and row.audit.follows == rows[row.request["messages"][0]["content"]].id

    in_room(test)


def test_the_engine_is_asked_once_for_its_vocabulary() -> None:
    async def test(this: Room) -> None:
        asked = []

        async def models(request: Request) -> Response:
            asked.append(1)
            return JSONResponse({"data": [{"id": "models/version_0", "vocab_size": 50}]})

        chat = Route("/v1/chat/completions", this.engine.chat, methods=["POST"])
        async with serving(Starlette(routes=[chat, Route("/v1/models", models)])) as url:
            this.engine.api_base = f"{url}/v1"
            this.proxy.update_model_list([entry(this.engine, name="other", id="other")])
            this.lease = await this.claim(llm=this.proxy.as_resource("other"))
            for _ in range(3):
                await this.ask(model="other")
            rows = await this.rows()
        assert len(asked) == 1 and {row.audit.vocabulary for row in rows if row.audit} == {50}
        assert rows[0].audit and rows[0].audit.findings == (Finding.OUT_OF_VOCABULARY,)

    in_room(test)
