"""Whose call it is: attempt keys, attempt URLs, lost leases, and retries of one attempt."""

from __future__ import annotations

import asyncio
import logging

import httpx
import openai
import pytest
from proxy_room import Room, in_room

from leyden.errors import Unavailable, UsageError
from leyden.ports import reserve_port
from leyden.proxy import LLMProxy, bindings
from leyden.types import FailureKind

RETRY = {"x-stainless-retry-count": "1"}


def code(reply: httpx.Response) -> tuple[int, str]:
    return reply.status_code, reply.json()["error"]["code"]


def test_an_unknown_or_missing_key_is_refused() -> None:
    async def test(this: Room) -> None:
        assert code(await this.ask(headers={"authorization": "Bearer nobody"})) == (401, "invalid_api_key")
        assert code(await this.ask(headers={"authorization": "Basic abc"})) == (401, "missing_api_key")
        assert not this.engine.bodies

    in_room(test)


def test_an_attempt_url_binds_as_its_key_does() -> None:
    async def test(this: Room) -> None:
        root = this.proxy.base_url.removesuffix("/v1")
        url = f"{root}/a/{this.lease.key}/v1"
        body = {"model": "policy", "messages": []}
        assert (await this.client.post(f"{url}/chat/completions", json=body)).status_code == 200
        assert (await this.client.get(f"{url}/models")).status_code == 200
        assert len(await this.rows()) == 1
        assert code(await this.client.post(f"{root}/a/nobody/v1/chat/completions", json=body)) == (401, "invalid_api_key")
        unknown = await this.client.post(f"{url}/embeddings", json=body)
        assert code(unknown) == (404, "unknown_url") and this.lease.key not in unknown.text

    in_room(test)


def test_a_url_that_names_the_attempt_binds_to_it_while_it_is_leased(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(this: Room) -> None:
        root, ref = this.proxy.base_url.removesuffix("/v1"), this.lease.ref
        body = {"model": "policy", "messages": []}

        def url(attempt: int | str, rollout_id: str = ref.rollout_id) -> str:
            return f"{root}/rollout/{rollout_id}/attempt/{attempt}/v1"

        client = openai.AsyncOpenAI(base_url=url(1), api_key="anything", max_retries=0)
        answer = await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "6 * 7?"}])
        assert answer.choices[0].message.content == "42"
        assert [(row.rollout_id, row.attempt) for row in await this.rows()] == [(ref.rollout_id, 1)]
        assert (await this.client.get(f"{url(1)}/models")).status_code == 200
        for wrong in (url(2), url(10**30), url(1, "nobody")):
            assert code(await this.client.post(f"{wrong}/chat/completions", json=body)) == (404, "unknown_attempt")
        assert code(await this.client.post(f"{url('x')}/chat/completions", json=body)) == (404, "unknown_url")
        monkeypatch.setattr(bindings, "MEMORY_SECONDS", -1.0)
        await this.store.release(ref)
        assert code(await this.client.post(f"{url(1)}/chat/completions", json=body)) == (409, "lease_lost")

    in_room(test)


def test_the_store_is_asked_once_for_many_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(this: Room) -> None:
        replies = await asyncio.gather(*(this.ask() for _ in range(8)))
        assert {reply.status_code for reply in replies} == {200}
        assert this.store.resolved == 1 and len(await this.rows()) == 8
        monkeypatch.setattr(bindings, "MEMORY_SECONDS", -1.0)
        await this.ask()
        assert this.store.resolved == 2

    in_room(test)


def test_a_lost_lease_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bindings, "MEMORY_SECONDS", -1.0)

    async def test(this: Room) -> None:
        assert (await this.ask()).status_code == 200
        await this.store.fail(this.lease.ref, FailureKind.AGENT, "gave up")
        reply = await this.ask()
        assert code(reply) == (409, "lease_lost") and reply.headers["x-should-retry"] == "false"
        assert len(this.engine.bodies) == 1

    in_room(test)


def test_a_lease_lost_during_the_call_leaves_a_late_record() -> None:
    async def test(this: Room) -> None:
        this.engine.fault = "hang"
        asking = asyncio.create_task(this.ask())
        await this.engine.entered.wait()
        await this.store.fail(this.lease.ref, FailureKind.AGENT, "gave up")
        this.engine.resume.set()
        await asking
        [row] = await this.rows()
        assert row.late and row.status == "ok"

    in_room(test)


def test_a_store_that_is_away_is_a_503() -> None:
    async def test(this: Room) -> None:
        async def away(key: str) -> None:
            raise Unavailable("no store at 127.0.0.1:4747", "start it")

        this.store.resolve_key = away  # type: ignore[method-assign, assignment]
        assert code(await this.ask()) == (503, "store_unavailable")

    in_room(test)


@pytest.mark.parametrize("stream", [False, True])
def test_a_marked_retry_gets_the_first_answer_and_an_unmarked_repeat_a_new_sample(stream: bool) -> None:
    async def test(this: Room) -> None:
        first = await this.ask(stream=stream)
        retry = await this.ask(stream=stream, headers=RETRY)
        assert retry.content == first.content and len(this.engine.bodies) == 1
        await this.ask(stream=stream, headers={"x-stainless-retry-count": "0"})
        assert len(this.engine.bodies) == 2 and len(await this.rows()) == 2
        await this.ask(stream=stream, temperature=0.1, headers=RETRY)
        assert len(this.engine.bodies) == 3, "another body is another call"
        other = await this.claim(llm=this.proxy.as_resource())
        await this.ask(other, stream=stream, headers=RETRY)
        assert len(this.engine.bodies) == 4 and len(await this.rows(other)) == 1, "another attempt is another call"

    in_room(test)


@pytest.mark.parametrize("stream", [False, True])
def test_a_marked_retry_joins_an_answer_in_flight_which_then_outlives_its_first_client(stream: bool) -> None:
    async def test(this: Room) -> None:
        this.engine.fault = "hang"
        first = asyncio.create_task(this.ask(stream=stream))
        await this.engine.entered.wait()
        retry = asyncio.create_task(this.ask(stream=stream, headers=RETRY))
        while not this.proxy.counters["retries_joined"]:
            await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait({first})
        this.engine.resume.set()
        assert (await retry).status_code == 200 and len(this.engine.bodies) == 1
        [row] = await this.rows()
        assert row.status == "ok" and row.response_token_ids == [40, 20, 99]

    in_room(test)


def test_the_retry_of_a_failed_call_is_a_new_call() -> None:
    async def test(this: Room) -> None:
        this.engine.fault = "status"
        await this.ask()
        this.engine.fault = None
        assert (await this.ask(headers=RETRY)).status_code == 200
        assert [row.status for row in await this.rows()] == ["error", "ok"]

    in_room(test)


def test_the_memory_for_retries_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leyden.proxy.answers.REMEMBER_ANSWERS", 2)

    async def test(this: Room) -> None:
        for number in range(4):
            await this.ask(seed=number)
        await this.ask(seed=3, headers=RETRY)
        assert len(this.engine.bodies) == 4
        await this.ask(seed=0, headers=RETRY)
        assert len(this.engine.bodies) == 5

    in_room(test)


def test_no_key_is_ever_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def test(this: Room) -> None:
        caplog.set_level(logging.DEBUG)
        for fault in (None, "status", "malformed"):
            this.engine.fault = fault
            await this.ask()
        this.store.error = OSError("disk full")
        attempt_url = f"{this.proxy.base_url.removesuffix('/v1')}/a/{this.lease.key}/v1"
        await this.client.post(f"{attempt_url}/chat/completions", json={"model": "policy"})
        ours = "\n".join(r.getMessage() + str(r.exc_text) for r in caplog.records if r.name.startswith(("leyden", "uvicorn")))
        assert "disk full" in ours and this.lease.key not in ours and "engine-secret" not in ours

    in_room(test)


def test_the_proxy_listens_on_loopback_only_and_says_when_it_cannot_start() -> None:
    with pytest.raises(UsageError, match=r"0\.0\.0\.0"):
        LLMProxy(host="0.0.0.0")
    with pytest.raises(UsageError, match="no store"):
        asyncio.run(LLMProxy().start())

    async def test(this: Room) -> None:
        socket = reserve_port("127.0.0.1", 0)
        with socket, pytest.raises(UsageError, match="is taken") as caught:
            await LLMProxy(this.store, port=socket.getsockname()[1]).start()
        assert caught.value.hint

    in_room(test)
