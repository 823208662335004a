"""Exact mode over chat templates of many families: the next prompt is what was read and sampled, and what the template adds after it."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest
from asgi import serving
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from proxy_room import Room, entry, events, in_room
from template_engine import FAMILIES, Family, ScriptedEngine
from templates import TOOL, measure, script
from tinymodel import make_tokenizer

from leyden.audit import Continuity
from leyden.errors import UsageError
from leyden.proxy.deployments import Deployment
from leyden.proxy.exact import ExactUpstream
from leyden.proxy.refusal import Refusal
from leyden.proxy.trail import Trail, preamble_of
from leyden.types import Generation

# What closes a turn there is text, which a tokenizer may join to what comes after it, and nothing that the model stops at.
PLAIN_TEXT = Family("plain_text", "<|endoftext|>", (), " CALL {name} {arguments}", r" CALL (?P<name>\w+) (?P<arguments>\{.*\})$")
PARAMS = {"model": "hosted_vllm/policy", "api_base": "http://engine/v1"}
DEPLOYMENT = Deployment.from_entry({"model_name": "policy", "litellm_params": PARAMS, "model_info": {"exact": True}})


class Direct:
    """``PassThrough`` without a network."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self._client = httpx.AsyncClient(transport=httpx.ASGITransport(engine.app))

    async def complete(self, deployment: Deployment, body: dict[str, Any], path: str = "/chat/completions") -> dict[str, Any]:
        answer = await self._client.post(f"{deployment.api_base}{path}", json=body)
        if answer.status_code != 200:
            raise Refusal(answer.status_code, "upstream_error", answer.text, body=answer.content)
        return answer.json()  # type: ignore[no-any-return]

    async def stream(self, deployment: Deployment, body: dict[str, Any], path: str) -> AsyncGenerator[dict[str, Any], None]:
        answer = await self._client.post(f"{deployment.api_base}{path}", json=body)
        for event in events(answer.text)[:-1]:
            yield event


class Talk:
    """An agent that keeps its history, in front of ``engine``."""

    def __init__(self, family: Family, odd: float = 0.0) -> None:
        self.said: list[str] = []
        self.family, self.trail = family, Trail()
        self.engine = ScriptedEngine(family, make_tokenizer(), self.said.__getitem__, odd)
        self.passthrough = Direct(self.engine)
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 12 + 34?"}]

    async def turn(self, says: str, max_tokens: int | None = None) -> tuple[list[int], bool]:
        """The prompt's ids, and whether it was spliced."""
        body = {"model": "policy", "messages": self.messages, "seed": len(self.said), "max_tokens": max_tokens}
        body |= {"tools": [TOOL]} if self.family.with_tools else {}
        self.said.append(says)
        place = self.trail.place(preamble_of(body), self.messages)
        upstream = ExactUpstream(self.passthrough, place)  # type: ignore[arg-type]
        answer = await upstream.complete(DEPLOYMENT, body)
        (choice,) = answer["choices"]
        ids, message = answer["prompt_token_ids"], choice["message"]
        self.trail.add(place, Generation(
            id=f"g{len(self.said)}", call_id="c", rollout_id="r", attempt=1, model="m", started_at=0, latency=0.0, prompt_token_ids=ids,
            response_token_ids=choice["token_ids"], response=message, finish_reason=choice["finish_reason"],
        ))  # fmt: skip
        kept = {name: value for name, value in message.items() if name != "reasoning_content"}
        self.messages = [*self.messages, {"content": None, **kept}]
        return ids, upstream.spliced

    def goes_on(self, text: str, n: int) -> None:
        """What the agent says next: the results of calls, or another question."""
        calls = self.messages[-1].get("tool_calls") or []
        self.messages += [{"role": "tool", "tool_call_id": call["id"], "content": f"{text} {n}"} for call in calls]
        if not calls:
            self.messages.append({"role": "user", "content": f"{text} {n}"})


TEXTS = st.text("abc XYZ019.,:{}\"'\n\té→<|>", max_size=30).map(lambda text: text + "q") | st.sampled_from(
    ["46 \n\n", "  spaces before", "ends in a newline\n", "0", "1", "### 46", "10", "<tool_call>\n{broken", "</think> after"]
)


@st.composite
def answers(draw: st.DrawFn, family: Family) -> tuple[str, int | None]:
    """What the model says, and a limit that it may run into."""
    thought = f"<think>\n{draw(TEXTS)}\n</think>\n\n" if family.thinks and draw(st.booleans()) else ""
    if family.with_tools and draw(st.booleans()):
        arguments = draw(st.sampled_from(['{"expression": "1 + 1"}', '{"expression":"1+1"}', "{}", '{"a": {"b": [1, 2]}, "c": "}"}']))
        return thought + family.write.format(name="calculate", arguments=arguments), None
    return thought + draw(TEXTS), draw(st.none() | st.integers(1, 6))


@pytest.mark.parametrize("family", [*FAMILIES, PLAIN_TEXT], ids=lambda family: family.name)
@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_next_prompt_begins_with_what_was_read_and_sampled_and_ends_as_the_template_does(family: Family, data: st.DataObject) -> None:
    async def talk() -> None:
        this = Talk(family, odd=0.3)
        for turn in range(4):
            ids, spliced = await this.turn(*data.draw(answers(family)))
            assert spliced == (turn > 0)
            if turn:
                before = array("i", [*this.engine.gave[-2][0], *this.engine.gave[-2][1]])
                tail = ids[len(before) :]
                assert array("i", ids[: len(before)]) == before
                told = {"messages": this.messages[:-1], **({"tools": [TOOL]} if family.with_tools else {})}
                rendered = this.engine.render(told)
                assert tail == rendered[len(rendered) - len(tail) :], "the template's own end"
                new = this.engine.tokenizer.decode(tail)
                assert f"number {turn - 1}" in new and new.count("number") == len(this.messages[-2].get("tool_calls") or [1])
                assert not (before[-1] == this.engine.end and tail[0] == this.engine.end), "the end of a turn stands there once"
                if before[-1] != this.engine.end and family is not PLAIN_TEXT:
                    assert tail[0] == this.engine.end, "what was cut short is closed"
            this.goes_on("number", turn)

    asyncio.run(talk())


@pytest.mark.parametrize("family", [family for family in FAMILIES if family.name in ("chatml", "hermes", "gemma")], ids=lambda f: f.name)
def test_where_nothing_is_rewritten_an_exact_prompt_is_the_rendered_one(family: Family) -> None:
    async def talk() -> None:
        this = Talk(family)
        for turn, says in enumerate(script(family, 3, 8)):
            ids, _ = await this.turn(says.replace('":"', '": "'))
            told = {"messages": this.messages[:-1], **({"tools": [TOOL]} if family.with_tools else {})}
            assert ids == this.engine.render(told)
            this.goes_on("number", turn)

    asyncio.run(talk())


def test_thinking_that_the_template_strips_stays_as_it_was_sampled() -> None:
    """TRL 6361, slime PR 330, verl 7807: thoughts corrupted or dropped when a Qwen3 history is rendered anew."""
    qwen3 = next(family for family in FAMILIES if family.thinks)

    async def talk() -> None:
        this = Talk(qwen3)
        await this.turn("<think>\nfirst thoughts\n</think>\n\nThe answer is 46.")
        this.goes_on("number", 0)
        ids, _ = await this.turn("done")
        text = this.engine.tokenizer.decode(ids)
        assert "first thoughts" in text
        assert "first thoughts" not in this.engine.tokenizer.decode(this.engine.render({"messages": this.messages[:-1], "tools": [TOOL]}))

    asyncio.run(talk())


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_eight_turns_through_the_proxy_are_clean_and_merge_into_one_row(family: Family) -> None:
    exact = asyncio.run(measure(family, make_tokenizer(), "exact", 1, 8, 0.05))
    assert (exact.clean, exact.turns, exact.findings) == (1.0, 7, 0)
    assert exact.fewer >= 3
    plain = asyncio.run(measure(family, make_tokenizer(), "plain", 1, 8, 0.05))
    assert plain.clean < 1.0 and plain.clean + plain.realigned == pytest.approx(1.0, abs=1e-3) and plain.fewer <= exact.fewer


def engine_entry(this: Room) -> dict[str, Any]:
    item = entry(this.engine, name="exact", id="exact", exact=True)
    item["litellm_params"]["model"] = "hosted_vllm/policy"
    return item


def exact_room(test: Any, family: Family = FAMILIES[1]) -> None:
    """``test(room, engine)``; the attempt is pinned to an exact deployment of a scripted engine."""

    async def main(this: Room) -> None:
        said = script(family, 1, 8)
        engine = ScriptedEngine(family, make_tokenizer(), said.__getitem__)
        async with serving(engine.app) as url:
            this.engine.api_base = f"{url}/v1"
            this.proxy.update_model_list([engine_entry(this)])
            this.lease = await this.claim(llm=this.proxy.as_resource("exact"))
            await test(this, engine)

    in_room(main)


def test_a_stream_is_the_same_answer_and_the_same_record() -> None:
    async def test(this: Room, engine: ScriptedEngine) -> None:
        messages = [{"role": "user", "content": "12 + 34?"}]
        body = {"model": "exact", "messages": messages, "tools": [TOOL], "seed": 0}
        whole = (await this.ask(**body)).json()["choices"][0]
        chunks = events((await this.ask(**body, stream=True)).text)
        deltas = [choice["delta"] for chunk in chunks[:-1] for choice in chunk["choices"]]
        (call,) = [call for delta in deltas for call in delta.get("tool_calls", ())]
        assert call["function"] == whole["message"]["tool_calls"][0]["function"]
        assert [c["finish_reason"] for chunk in chunks[:-1] for c in chunk["choices"] if c["finish_reason"]] == ["tool_calls"]
        first, second = await this.rows()
        assert first.response_token_ids == second.response_token_ids == engine.gave[0][1]
        assert first.finish_reason == second.finish_reason == whole["finish_reason"] == "tool_calls"
        assert first.audit and not first.audit.findings and second.audit and not second.audit.findings

    exact_room(test)


def test_text_streams_as_it_comes_where_it_can_be_nothing_else() -> None:
    async def test(this: Room, engine: ScriptedEngine) -> None:
        chunks = events((await this.ask(model="exact", messages=[{"role": "user", "content": "hi"}], seed=1, stream=True)).text)
        text = "".join(choice["delta"].get("content") or "" for chunk in chunks[:-1] for choice in chunk["choices"])
        assert text == engine.script(1)
        [row] = await this.rows()
        assert row.response == {"role": "assistant", "content": text} and row.response_token_ids == engine.gave[0][1]

    exact_room(test)


@pytest.mark.parametrize("exact", [False, True])
def test_arguments_that_a_framework_writes_anew_are_the_same_history(exact: bool) -> None:
    """PydanticAI sends a call's arguments back without the spaces that the model put in."""

    async def test(this: Room, engine: ScriptedEngine) -> None:
        this.proxy.update_model_list([{**engine_entry(this), "model_info": {"id": f"exact-{exact}", "exact": exact}}])
        this.lease = await this.claim(llm=this.proxy.as_resource("exact"))
        messages = [{"role": "user", "content": "12 + 34?"}]
        called = (await this.ask(model="exact", messages=messages, tools=[TOOL], seed=0)).json()["choices"][0]["message"]
        (call,) = called["tool_calls"]
        said = call["function"]["arguments"]
        call["function"]["arguments"] = said.replace('": "', '":"')
        assert call["function"]["arguments"] != said
        more = [*messages, called, {"role": "tool", "tool_call_id": call["id"], "content": "46"}]
        await this.ask(model="exact", messages=more, tools=[TOOL], seed=1)
        row = (await this.rows())[1]
        assert row.audit and row.audit.exact is exact
        assert row.audit.continuity is Continuity.CLEAN  # in plain mode only since this template writes arguments anew itself

    exact_room(test)


def test_a_history_that_the_agent_changed_is_rendered_anew_and_named() -> None:
    """ART 883: log-probabilities that belong to another prefix than the recorded one."""

    async def test(this: Room, engine: ScriptedEngine) -> None:
        messages = [{"role": "user", "content": "12 + 34?"}]
        await this.ask(model="exact", messages=messages, seed=1)
        changed = [*messages, {"role": "assistant", "content": "46"}, {"role": "user", "content": "more"}]
        await this.ask(model="exact", messages=changed, seed=1)
        row = (await this.rows())[1]
        assert row.prompt_token_ids == engine.render({"messages": changed})
        assert row.audit and row.audit.continuity is Continuity.FORKED and not row.audit.exact
        assert row.audit.changed and row.audit.changed.startswith("message 2 (assistant): content changed")

    exact_room(test)


def test_an_engine_without_the_endpoints_is_refused_and_the_flag_is_named() -> None:
    async def test(this: Room) -> None:
        this.proxy.update_model_list([entry(this.engine, name="exact", id="exact", exact=True)])
        this.lease = await this.claim(llm=this.proxy.as_resource("exact"))
        reply = await this.ask(model="exact")
        assert reply.status_code == 400 and "--enable-scale-out" in reply.json()["error"]["message"]
        [row] = await this.rows()
        assert row.status == "error"

    in_room(test)


def test_a_provider_that_takes_no_ids_cannot_be_exact() -> None:
    with pytest.raises(UsageError, match="token ids"):
        Deployment.from_entry({"model_name": "x", "litellm_params": {"model": "openai/gpt"}, "model_info": {"exact": True}})
