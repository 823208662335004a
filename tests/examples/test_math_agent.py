"""The math agent with the real Agents SDK, the real calculator and a scripted model."""

import asyncio
import os
import signal
from typing import Any

import calculator as calculator_module
import math_agent as math_agent_module
import psutil
import pytest
from calculator import calculator
from math_agent import math_agent
from scripted_llm import ScriptedLLM, call, say, solve
from tasks import make_tasks

from leyden.runners.dry_run import DevResult, adev, dev
from leyden.types import LLM, FailureKind

TASK = {"input": "What is 52 + 71?", "target": 123}


def _run(server: ScriptedLLM, tasks: list[Any], **sampling: Any) -> list[DevResult]:
    return dev(math_agent, tasks, llm=LLM(endpoint=server.url, model="m", api_key="the-key", sampling_parameters=sampling), concurrency=16)


def test_a_model_that_uses_the_calculator_and_the_mark_is_rewarded() -> None:
    with ScriptedLLM() as server:
        results = _run(server, make_tasks("three-ops", 12, 0, "test"), temperature=0.7, max_tokens=64)
    assert [result.reward for result in results] == [1.0] * 12
    assert not _calculators()  # it ended with the loop


def test_the_prompt_shows_tool_calls_in_the_very_form_the_model_meets_them() -> None:
    with ScriptedLLM() as server:
        _run(server, [TASK], temperature=0.7, top_p=0.9, max_tokens=64)
    first, second = server.requests
    assert (first["temperature"], first["top_p"], first["max_tokens"], first["authorization"]) == (0.7, 0.9, 64, "Bearer the-key")
    roles = [message["role"] for message in first["messages"]]
    assert roles == ["system", *["user", "assistant", "tool", "assistant"] * 3, "user"]
    assert second["messages"][: len(roles)] == first["messages"]
    example_call, example_result, example_answer = second["messages"][2:5]
    real_call, real_result = second["messages"][-2:]
    assert [example_call.keys(), example_result.keys()] == [real_call.keys(), real_result.keys()]
    assert real_result["content"] == [{"type": "text", "text": "123"}]
    assert example_result["content"] == [{"type": "text", "text": "69"}] and example_answer["content"] == "### 69 ###"


def test_all_rollouts_of_a_process_share_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    real = math_agent_module.AsyncOpenAI
    monkeypatch.setattr(math_agent_module, "AsyncOpenAI", lambda **options: made.append(real(**options)) or made[-1])
    with ScriptedLLM() as server:
        _run(server, make_tasks("three-ops", 4, 0, "test"))
    assert len(made) == 1


WRONG: dict[str, dict[str, Any]] = {
    "no mark": say("123"),
    "another number": say("### 124 ###"),
    "calls for ever": call("1 + 1"),
    "calls a tool that is not there": call("1 + 1", name="abacus"),
    "calls with broken arguments": call("{broken"),
    "calls without the argument": call("{}"),
    "says nothing": say(""),
}


def test_what_the_model_does_wrong_is_a_reward_of_zero() -> None:
    def answer(messages: list[dict[str, Any]]) -> dict[str, Any]:
        return next(WRONG[message["content"]] for message in messages if message["role"] == "user" and message["content"] in WRONG)

    with ScriptedLLM(answer) as server:
        results = _run(server, [{"input": kind, "target": 123} for kind in WRONG])
    assert [(result.reward, result.failure) for result in results] == [(0.0, None)] * len(WRONG)
    told = [str(request["messages"][-1]["content"]) for request in server.requests]
    assert any("MCP server 'calculator': missing required parameters: expression" in text for text in told)


def test_an_endpoint_that_fails_or_is_gone_is_no_reward_of_zero() -> None:
    async def scenario() -> list[DevResult]:
        with ScriptedLLM() as gone:
            pass
        with ScriptedLLM(lambda messages: 503) as failing, ScriptedLLM(lambda messages: 429) as limiting:
            urls = [failing.url, limiting.url, gone.url]
            found = await asyncio.gather(*(adev(math_agent, [TASK], llm=LLM(endpoint=url, model="m")) for url in urls))
            return [result for results in found for result in results]

    assert [(result.reward, result.failure) for result in asyncio.run(scenario())] == [(None, FailureKind.INFRASTRUCTURE)] * 3


def _calculators() -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if "mcp_server_calculator" in " ".join(child.cmdline())]


def test_concurrent_rollouts_share_one_server_and_a_hung_call_does_not_fail_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calculator_module, "DEADLINE", 1.0)
    seen: list[int] = []

    def answer(messages: list[dict[str, Any]]) -> dict[str, Any]:
        seen.append(len(_calculators()))
        if messages[-1]["role"] == "user" and "999" in messages[-1]["content"]:
            return call("9**9**9")
        return solve(messages)

    async def scenario(url: str) -> tuple[list[DevResult], int]:
        hung = {"input": "What is 999 + 1?", "target": 1000}
        tasks = [*make_tasks("three-ops", 6, 0, "test"), hung, *make_tasks("three-ops", 6, 1, "test")]
        results = await adev(math_agent, tasks, llm=LLM(endpoint=url, model="m"), concurrency=13)
        await calculator().call_tool("calculate", {"expression": "1 + 1"})  # it is replaced for the next call, and the hung one may be last
        return results, calculator().starts

    with ScriptedLLM(answer) as server:
        results, starts = asyncio.run(scenario(server.url))
    rewards = [result.reward for result in results]
    assert rewards == [1.0] * 6 + [0.0] + [1.0] * 6
    assert starts == 2 and max(seen) == 1
    assert any("no answer within 1 s" in str(request["messages"][-1]["content"]) for request in server.requests)


def test_a_calculator_that_dies_is_replaced_and_its_call_sent_again() -> None:
    async def scenario() -> list[str]:
        shared = calculator()
        results = [await shared.call_tool("calculate", {"expression": "1 + 1"})]
        os.kill(_calculators()[0].pid, signal.SIGKILL)
        results += await asyncio.gather(*(shared.call_tool("calculate", {"expression": f"{i} + 1"}) for i in range(4)))
        assert shared.starts == 2
        results.append(await shared.call_tool("calculate", {"expression": "9**4000"}))
        return [result.content[0].text for result in results]

    *texts, long_text = asyncio.run(scenario())
    assert texts == ["2", "1", "2", "3", "4"]
    assert len(long_text) == calculator_module.MAX_RESULT + 1  # cut: each digit would cost the model a token
