from __future__ import annotations

import asyncio
import gc
import re
from collections.abc import Iterator
from typing import Any

import pytest
from agents import Agent, OpenAIChatCompletionsModel
from model_stub import ModelStub, call, say
from one_attempt import context, run_once
from openai import AsyncOpenAI

from leyden.environments import Endpoint, Environment, RewardScorer, RunStatus, Task
from leyden.environments.connections import connections, http_client
from leyden.environments.subjects import as_subject
from leyden.errors import InvalidRequest, Unavailable, UsageError
from leyden.runners.failures import classify
from leyden.types import LLM, FailureKind


@pytest.fixture
def stub() -> Iterator[ModelStub]:
    with ModelStub() as server:
        yield server


def llm(stub: ModelStub, **changes: Any) -> LLM:
    return LLM(**{"endpoint": stub.url, "model": "m", "api_key": "k", **changes})


def test_an_endpoint_is_asked_once_with_its_system_message_and_the_whole_conversation_is_kept(stub: ModelStub) -> None:
    run = run_once(Endpoint(llm(stub, sampling_parameters={"temperature": 0.5, "top_k": 3}), system="Be exact."), "2 + 2?")
    assert stub.requests == [{
        "temperature": 0.5, "top_k": 3, "model": "m",
        "messages": [{"role": "system", "content": "Be exact."}, {"role": "user", "content": "2 + 2?"}],
    }]  # fmt: skip
    assert run.messages == (*stub.requests[0]["messages"], {"role": "assistant", "content": "4"})
    assert (run.content, run.finish_reason, run.model, run.input_tokens, run.output_tokens) == ("4", "stop", "stub", 10, 3)
    assert run.status is RunStatus.COMPLETED and run.tool_schemas == run.tools == ()


def test_a_bare_llm_is_an_agent_and_another_one_may_answer_in_its_place(stub: ModelStub) -> None:
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}, {"role": "user", "content": "2 + 2?"}]
    run_once(llm(stub), talk, llm(stub, model="other", api_key="of the run"))
    assert stub.requests[0] == {"model": "other", "messages": talk}
    assert stub.headers[0]["Authorization"] == "Bearer of the run"


def test_an_endpoint_without_a_model_needs_one_from_the_run(stub: ModelStub) -> None:
    assert as_subject(Endpoint()).needs_llm and not as_subject(llm(stub)).needs_llm
    assert run_once(Endpoint(system="Be."), "x", llm(stub)).content == "4"
    with pytest.raises(UsageError, match="no model to ask"):
        run_once(Endpoint(), "x")


@pytest.mark.parametrize("text", ["It is", None])
def test_an_answer_cut_at_its_limit_is_truncated(stub: ModelStub, text: str | None) -> None:
    stub.answer = lambda request: say(text, finish="length")
    run = run_once(llm(stub), "x")
    assert (run.status, run.content) == (RunStatus.TRUNCATED, text)


def test_whose_fault_a_failure_is_can_be_told(stub: ModelStub) -> None:
    for status, error, kind in (
        (503, Unavailable, FailureKind.INFRASTRUCTURE),
        (429, Unavailable, FailureKind.INFRASTRUCTURE),
        (400, InvalidRequest, FailureKind.AGENT),
    ):
        stub.answer = lambda request, status=status: status
        own = context()
        with pytest.raises(error, match=f"answered {status}") as raised:
            asyncio.run(as_subject(llm(stub)).attempt(Task("x", id="t"), own))
        assert classify(raised.value) is kind
        assert own.partial is not None and own.partial.messages == ({"role": "user", "content": "x"},)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"api_key": "a-secret-key\n"}, "the api key holds a character that no header can carry"),
        ({"api_key": "a-secret-kéy"}, "the api key holds a character that no header can carry"),
        ({"endpoint": "127.0.0.1:1/v1"}, "127.0.0.1:1/v1/chat/completions is no URL"),
        ({"endpoint": "http://me:a-secret-key@127.0.0.1:1/v1"}, "http://127.0.0.1:1/v1/chat/completions does not answer"),
        ({"endpoint": "http://127.0.0.1:1/v1?api-key=a-secret-key"}, "http://127.0.0.1:1/v1 does not answer"),
    ],
)
def test_no_error_has_a_key_in_it_and_an_address_that_is_none_is_nobodys_failure(stub: ModelStub, given: Any, said: str) -> None:
    with pytest.raises((InvalidRequest, Unavailable), match=re.escape(said)) as raised:
        run_once(llm(stub, **given), "x")
    assert "secret" not in f"{raised.value} {raised.value.hint}"
    assert (classify(raised.value) is FailureKind.INFRASTRUCTURE) == ("does not answer" in said)


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"[" * 100_000, {}),
        (b"not gzip", {"Content-Encoding": "gzip"}),
        (b'data: {"choices": []}\n\n', {}),
        (b'{"choices": [{"message": {"role": "assistant", "content": [4]}}]}', {}),
        (b'{"choices": [{"message": {"role": "assistant"}}], "usage": "a-secret-key"}', {}),
    ],
)
def test_whatever_comes_back_is_an_answer_or_says_what_it_is_without_the_key(stub: ModelStub, body: bytes, headers: Any) -> None:
    stub.raw = (200, body, headers)
    try:
        assert run_once(llm(stub, api_key="a-secret-key"), "x").content is None and b"usage" in body
    except InvalidRequest as error:
        assert "answered" in error.message
    stub.raw = (401, b"x" * 295 + b"a-secret-key is wrong", {})
    with pytest.raises(InvalidRequest) as raised:
        run_once(llm(stub, api_key="a-secret-key"), "x")
    assert "a-se" not in raised.value.message


def test_10_no_cookie_tells_one_attempt_from_another(stub: ModelStub) -> None:
    stub.cookie = "session=1"

    async def main() -> None:
        async with connections():
            own = OpenAIChatCompletionsModel("m", AsyncOpenAI(base_url=stub.url, api_key="k"))
            for agent, model in ((llm(stub), None), (Agent(name="a"), llm(stub)), (Agent(name="a", model=own), None)):
                for _ in range(2):
                    await as_subject(agent).attempt(Task("x", id="t"), context(model))

    asyncio.run(main())
    assert [headers["Cookie"] for headers in stub.headers] == [None] * 6


@pytest.mark.parametrize("question", [{"q": 1}, 4, None, [], ["text"]])
def test_what_is_no_question_is_refused_when_the_environment_is_made(stub: ModelStub, question: Any) -> None:
    with pytest.raises(UsageError, match="the input of task 't1'"):
        Environment("e", [Task(question)], RewardScorer(), llm(stub))


@pytest.mark.parametrize("make", [lambda: Endpoint("http://x"), lambda: Endpoint(system=3)])
def test_wrong_use_of_an_endpoint_is_refused(make: Any) -> None:
    with pytest.raises(UsageError):
        make()


def test_an_answer_with_calls_that_nobody_makes_keeps_them_in_its_messages(stub: ModelStub) -> None:
    stub.answer = lambda request: call("add", {"a": 1})
    run = run_once(llm(stub), "x")
    assert run.content is None and run.messages[-1]["tool_calls"][0]["function"]["name"] == "add"


def test_the_connections_of_a_loop_are_closed_by_the_last_to_leave() -> None:
    async def main() -> None:
        async with connections():
            async with connections():
                client = http_client()
            assert http_client() is client and not client.is_closed
        assert client.is_closed and http_client() is not client

    asyncio.run(main())


def test_two_runs_one_after_the_other_leave_nothing_behind_to_complain(stub: ModelStub, recwarn: pytest.WarningsRecorder) -> None:
    async def main() -> None:
        async with connections():
            await asyncio.gather(*(as_subject(llm(stub)).attempt(Task("x", id="t"), context()) for _ in range(3)))

    gc.collect()  # what others left
    recwarn.clear()
    for _ in range(2):
        asyncio.run(main())
    gc.collect()
    assert not [warning for warning in recwarn if "unclosed" in str(warning.message)]
