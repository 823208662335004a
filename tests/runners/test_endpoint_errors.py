"""Whether an error says that the LLM's endpoint is gone."""

from __future__ import annotations

import asyncio
from contextlib import closing

import httpx
import openai
import pytest

from leyden.ports import reserve_port
from leyden.runners import endpoints
from leyden.runners.failures import classify
from leyden.types import LLM, FailureKind


def answered(url: str, status: int, code: str | None, kind: type[openai.APIStatusError] = openai.InternalServerError) -> BaseException:
    response = httpx.Response(status, request=httpx.Request("POST", url))
    return kind("refused", response=response, body={"code": code, "message": "refused"})


def broken(url: str, cause: BaseException | None = None) -> BaseException:
    try:
        raise openai.APIConnectionError(request=httpx.Request("POST", url)) from cause
    except openai.APIConnectionError as error:
        return error


def test_gone_is_what_the_proxy_calls_so_and_a_connection_to_it_that_broke() -> None:
    with closing(reserve_port("127.0.0.1", 0)) as socket:  # somebody listens there
        base = f"http://127.0.0.1:{socket.getsockname()[1]}"
        url, llm = f"{base}/v1/chat/completions", LLM(endpoint=f"{base}/v1", model="m")
        headers = {"x-leyden-code": "engine_gone"}
        plain = httpx.HTTPStatusError("503", request=httpx.Request("POST", url), response=httpx.Response(503, headers=headers))
        slow = openai.APITimeoutError(request=httpx.Request("POST", url))
        for error, gone in (
            (answered(url, 503, "engine_gone"), True),
            (answered(url, 409, "checkpoint_gone", openai.ConflictError), True),
            (openai.APIError("in a stream", httpx.Request("POST", url), body={"code": "proxy_stopped"}), True),
            (plain, True),
            (broken(url), True),
            (ExceptionGroup("several", [ValueError(), broken(url)]), True),
            (answered(url, 500, None), False),
            (answered(url, 502, "upstream_broken"), False),
            (answered(url, 429, None, openai.RateLimitError), False),
            (slow, False),
            (broken("http://127.0.0.1:9/a-tool"), False),
            (httpx.ConnectError("whom?"), False),
            (ValueError("no number"), False),
        ):
            assert asyncio.run(endpoints.is_gone(error, [llm])) is gone, repr(error)


def test_an_endpoint_that_refuses_connections_is_gone_whatever_the_agent_made_of_it() -> None:
    with closing(reserve_port("127.0.0.1", 0)) as socket:
        nowhere = f"http://127.0.0.1:{socket.getsockname()[1]}/v1"
    assert asyncio.run(endpoints.is_gone(ValueError("the model said nothing"), [LLM(endpoint=nowhere, model="m")]))
    assert not asyncio.run(endpoints.is_gone(ValueError("the model said nothing"), []))


@pytest.mark.parametrize("code", ["engine_gone", "upstream_broken", "internal_error"])
def test_an_error_event_in_a_stream_is_the_infrastructures_fault(code: str) -> None:
    error = openai.APIError("in a stream", httpx.Request("POST", "http://127.0.0.1/v1"), body={"code": code})
    assert classify(error) is FailureKind.INFRASTRUCTURE


def test_pauses_grow_and_are_bounded() -> None:
    assert max(endpoints.pause(0) for _ in range(100)) <= 0.5
    assert 1.0 < max(endpoints.pause(50) for _ in range(200)) <= 15.0
