"""What breaks, and what agent and store are told of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import httpx
import pytest
from proxy_room import PROMPT_IDS, Room, events, in_room

from leyden.errors import Unavailable
from leyden.ports import reserve_port


def code(reply: httpx.Response) -> str:
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "code", "param"} and error["message"]
    return error["code"]


@pytest.mark.parametrize("stream", [False, True])
def test_an_upstream_error_passes_through_and_is_recorded(stream: bool) -> None:
    async def test(this: Room) -> None:
        this.engine.fault = "status"
        reply = await this.ask(stream=stream)
        assert reply.status_code == 400 and reply.headers["retry-after"] == "7"
        assert reply.json() == {"error": {"message": "too long", "type": "BadRequestError", "code": 400}}
        [row] = await this.rows()
        assert row.status == "error" and "400" in str(row.error) and "too long" in str(row.error)
        assert row.response is None and row.checkpoint == "version_0" and row.request["messages"]

    in_room(test)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fault", "status", "expected"), [("redirect", 502, "upstream_broken"), ("garbage", 502, "upstream_broken")])
def test_an_answer_that_is_none_is_refused_and_recorded(fault: str, status: int, expected: str, stream: bool) -> None:
    async def test(this: Room) -> None:
        this.engine.fault = fault
        reply = await this.ask(stream=stream)
        assert (reply.status_code, code(reply)) == (status, expected)
        [row] = await this.rows()
        assert row.status == "error" and row.error

    in_room(test)


def test_an_answer_the_proxy_cannot_read_is_refused_and_recorded() -> None:
    async def test(this: Room) -> None:
        this.engine.fault = "malformed"
        reply = await this.ask()
        assert (reply.status_code, code(reply)) == (500, "internal_error")
        [row] = await this.rows()
        assert row.status == "error" and row.response_token_ids is None

    in_room(test)


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_is_not_there_is_gone(stream: bool) -> None:
    async def test(this: Room) -> None:
        with contextlib.closing(reserve_port("127.0.0.1", 0)) as socket:
            dead = f"http://127.0.0.1:{socket.getsockname()[1]}/v1"
        model_info = {"checkpoint": "version_0", "id": "dead"}
        this.proxy.update_model_list(
            [{"model_name": "dead", "litellm_params": {"model": "hosted_vllm/x", "api_base": dead}, "model_info": model_info}]
        )
        lease = await this.claim(llm=this.proxy.as_resource())
        reply = await this.ask(lease, model="dead", stream=stream)
        assert (reply.status_code, code(reply)) == (503, "engine_gone")
        assert reply.headers["x-leyden-code"] == "engine_gone"
        assert dead in reply.json()["error"]["message"]
        [row] = await this.rows(lease)
        assert row.status == "error" and dead in str(row.error) and row.deployment == "dead"

    in_room(test)


@pytest.mark.parametrize(("fault", "word"), [("cut", "ended its stream"), ("error_event", "out of memory")])
def test_a_stream_that_breaks_ends_in_an_error_event_and_keeps_what_was_sampled(fault: str, word: str) -> None:
    async def test(this: Room) -> None:
        this.engine.fault = fault
        reply = await this.ask(stream=True)
        last = events(reply.text)[-1]
        assert word in last["error"]["message"]
        [row] = await this.rows()
        assert row.status == "error" and word in str(row.error) and row.finish_reason is None
        assert row.response_token_ids == [40] and row.prompt_token_ids == PROMPT_IDS

    in_room(test)


@pytest.mark.parametrize("error", [Unavailable("the store is away"), OSError("disk full")])
def test_a_sample_that_cannot_be_recorded_is_not_given_out(error: Exception) -> None:
    async def test(this: Room) -> None:
        this.store.error = error
        reply = await this.ask()
        assert (reply.status_code, code(reply)) == (503, "upstream_not_recorded")
        assert "42" not in reply.text
        stream = events((await this.ask(stream=True)).text)
        assert stream[-1]["error"]["code"] == "upstream_not_recorded"
        assert not any(choice["finish_reason"] for chunk in stream[:-1] for choice in chunk["choices"])
        assert this.proxy.counters["not_recorded"] == 2 and not await this.rows()
        this.store.error = None
        retried = await this.ask(headers={"x-stainless-retry-count": "1"})
        assert retried.status_code == 200 and len(await this.rows()) == 1

    in_room(test)


@pytest.mark.parametrize("stream", [False, True])
def test_the_last_byte_waits_for_the_commit(stream: bool) -> None:
    async def test(this: Room) -> None:
        this.store.open.clear()
        asking = asyncio.create_task(this.ask(stream=stream))
        await this.store.writing.wait()  # the engine is done, the record is not
        for _ in range(20):
            await asyncio.wait({asking}, timeout=0.005)
            assert not asking.done() and not await this.rows()
        this.store.open.set()
        assert (await asking).status_code == 200 and len(await this.rows()) == 1

    in_room(test)


def test_a_stream_flows_while_the_engine_samples_but_its_end_waits_for_the_commit() -> None:
    async def test(this: Room) -> None:
        this.engine.fault = "hang"
        this.store.open.clear()
        body = {"model": "policy", "messages": [], "stream": True}
        headers = {"authorization": f"Bearer {this.lease.key}"}
        async with this.client.stream("POST", f"{this.proxy.base_url}/chat/completions", json=body, headers=headers) as reply:
            lines = reply.aiter_lines()
            async for line in lines:
                if '"content":"4"' in line:
                    break  # the first token is here, and the engine has not sampled the second
            this.engine.resume.set()
            await this.store.writing.wait()
            rest = asyncio.create_task(_gather(lines))
            await asyncio.wait({rest}, timeout=0.05)
            assert not rest.done() and not await this.rows()
            this.store.open.set()
            text = await rest
        assert '"finish_reason":"stop"' in text and text.rstrip().endswith("[DONE]")
        [row] = await this.rows()
        assert row.response_token_ids == [40, 20, 99]

    in_room(test)


async def _gather(lines: AsyncIterator[str]) -> str:
    return "\n".join([line async for line in lines])


@pytest.mark.parametrize("stream", [False, True])
def test_an_agent_that_goes_away_stops_the_engine_and_leaves_a_record(stream: bool) -> None:
    async def test(this: Room) -> None:
        this.engine.fault = "hang"
        if stream:
            body = {"model": "policy", "messages": [], "stream": True}
            headers = {"authorization": f"Bearer {this.lease.key}"}
            async with this.client.stream("POST", f"{this.proxy.base_url}/chat/completions", json=body, headers=headers) as reply:
                await anext(reply.aiter_lines())
        else:
            asking = asyncio.create_task(this.ask())
            await this.engine.entered.wait()
            asking.cancel()
        await this.engine.left.wait()
        await this.store.written.wait()
        [row] = await this.rows()
        assert row.status == "disconnected" and row.finish_reason is None
        assert row.prompt_token_ids == (PROMPT_IDS if stream else None)

    in_room(test)


def test_an_agent_that_leaves_during_the_commit_loses_nothing() -> None:
    async def test(this: Room) -> None:
        this.store.open.clear()
        asking = asyncio.create_task(this.ask())
        await this.store.writing.wait()
        asking.cancel()
        await asyncio.wait({asking})
        this.store.open.set()
        again = await this.ask(headers={"x-stainless-retry-count": "1"})
        assert again.status_code == 200 and len(this.engine.bodies) == 1
        [row] = await this.rows()
        assert row.status == "ok"

    in_room(test)


def test_stopping_the_proxy_records_what_it_breaks_off() -> None:
    async def test(this: Room) -> None:
        this.engine.fault = "hang"
        asking = asyncio.create_task(this.ask())
        await this.engine.entered.wait()
        await this.proxy.stop()
        reply = await asking
        assert (reply.status_code, code(reply)) == (503, "proxy_stopped")
        [row] = await this.rows()
        assert row.status == "error" and "stopped" in str(row.error)
        assert this.proxy.base_url == ""

    in_room(test)


@pytest.mark.parametrize(
    ("raw", "status", "expected"),
    [
        (b"{not json", 400, "invalid_json"),
        (b"[1]", 400, "invalid_json"),
        (b'{"messages": []}', 400, "missing_model"),
        (b'{"model": "policy", "n": "two"}', 400, "invalid_n"),
        (b'{"model": "policy", "stream_options": "usage"}', 400, "invalid_stream_options"),
        (b" " * (16 * 2**20 + 1), 413, "body_too_large"),
    ],
)
def test_a_body_that_is_no_request_is_refused_before_the_engine_sees_it(raw: bytes, status: int, expected: str) -> None:
    async def test(this: Room) -> None:
        headers = {"authorization": f"Bearer {this.lease.key}"}
        reply = await this.client.post(f"{this.proxy.base_url}/chat/completions", content=raw, headers=headers)
        assert (reply.status_code, code(reply)) == (status, expected)
        assert not this.engine.bodies and not await this.rows()

    in_room(test)
