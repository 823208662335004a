"""Whatever an engine does, in whichever form it was asked: the agent gets that form's own error, the call its record, training nothing."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from proxy_room import Room, Sample, entry, in_room

from leyden.algorithm.triplets import GenerationsToTriplets
from leyden.audit import Finding
from leyden.proxy import passthrough
from leyden.proxy.apis import APIS
from leyden.types import Generation, Lease

MESSAGES = [{"role": "user", "content": "6 * 7?"}]
BODIES: dict[str, dict[str, Any]] = {
    "/chat/completions": {"messages": MESSAGES},
    "/completions": {"prompt": "6 * 7 ="},
    "/responses": {"input": "6 * 7?"},
    "/messages": {"messages": MESSAGES, "max_tokens": 16},
}
FORMS = [(api.path, stream) for api in APIS for stream in (False, True)]


def test_every_form_is_tried() -> None:
    assert {api.path for api in APIS} == set(BODIES)


async def ask(this: Room, lease: Lease, path: str, stream: bool) -> httpx.Response:
    body = {"model": "policy", "stream": stream, **BODIES[path]}
    return await this.client.post(f"{this.proxy.base_url}{path}", json=body, headers={"authorization": f"Bearer {lease.key}"})


def error_of(path: str, reply: httpx.Response) -> str:
    """What the agent is told, by its status or by the last event of its stream; its form is looked at."""
    if reply.headers["content-type"].startswith("text/event-stream"):
        last = json.loads([line for line in reply.text.splitlines() if line.startswith("data: ") and "[DONE]" not in line][-1][6:])
        if path == "/responses":
            assert last["type"] in ("response.failed", "error"), last
            return str((last.get("response") or {}).get("error") or last.get("message") or last)
    else:
        assert reply.status_code >= 400
        last = reply.json()
    assert last["error"]["message"]
    if path == "/messages":
        assert last["type"] == "error" and last["error"]["type"]
    return str(last["error"]["message"])


async def only_row(this: Room, lease: Lease) -> Generation:
    [row] = await this.rows(lease)
    assert not GenerationsToTriplets().adapt([row]), row
    return row


FAULTS = {  # what the engine does → what the agent is told; of the status, where no stream has begun
    "dies": ("broke off", 503),
    "cut": ("ended its stream before its last chunk", None),
    "error_event": ("out of memory", None),
    "garbage": ("", 502),
    "busy": ("slow down", 429),
    "status": ("too long", 400),
    "malformed": ("failed", 500),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_engine_is_told_in_the_agents_form_and_recorded_once(fault: str) -> None:
    said, status = FAULTS[fault]

    async def test(this: Room) -> None:
        this.engine.fault = fault
        for path, stream in FORMS:
            if (fault == "malformed" and (stream or path == "/completions")) or (not stream and fault in ("cut", "error_event")):
                continue  # the engine has no such fault
            lease = await this.claim(llm=this.proxy.as_resource())
            reply = await ask(this, lease, path, stream)
            assert said in error_of(path, reply), (path, stream, reply.text)
            if not reply.headers["content-type"].startswith("text/event-stream"):
                assert reply.status_code == status, (path, stream)
            row = await only_row(this, lease)
            assert row.status == "error" and row.error and row.model == "policy", (path, stream)

    in_room(test)


def test_a_storm_of_429_is_handed_on_with_its_pause_and_every_call_recorded() -> None:
    async def test(this: Room) -> None:
        this.engine.fault = "busy"
        replies = await asyncio.gather(*(ask(this, this.lease, *FORMS[n % len(FORMS)]) for n in range(48)))
        assert {(reply.status_code, reply.headers["retry-after"]) for reply in replies} == {(429, "3")}
        rows = await this.rows()
        assert len(rows) == 48 and {row.status for row in rows} == {"error"}
        this.engine.fault = None
        assert (await this.ask()).status_code == 200

    in_room(test)


@pytest.mark.parametrize("fault", ["slow", "hang"])
def test_an_engine_that_says_nothing_is_given_up_and_its_call_stopped(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passthrough, "FIRST_BYTE", 0.3)
    monkeypatch.setattr(passthrough, "IDLE", 0.3)

    async def test(this: Room) -> None:
        this.engine.fault = fault
        for path, stream in FORMS:
            this.engine.left.clear()
            lease = await this.claim(llm=this.proxy.as_resource())
            reply = await ask(this, lease, path, stream)
            assert "did not answer in time" in error_of(path, reply)
            row = await only_row(this, lease)
            assert row.status == "error" and "in time" in str(row.error)
            await this.engine.left.wait()

    in_room(test)


def test_a_whole_call_has_its_time_too() -> None:
    async def test(this: Room) -> None:
        this.proxy.update_model_list([entry(this.engine, params={"timeout": 1.0})])
        this.engine.fault = "hang"
        for stream in (False, True):
            this.engine.left.clear()
            assert "did not answer in time" in (await this.ask(stream=stream)).text
            await this.engine.left.wait()

    in_room(test)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("value", [float("nan"), float("-inf"), None])
def test_a_logprob_that_is_no_number_spoils_its_row_and_not_the_call(value: float | None, stream: bool) -> None:
    async def test(this: Room) -> None:
        this.engine.samples = [Sample(logprob=value)]
        reply = await this.ask(stream=stream, logprobs=True)
        assert reply.status_code == 200 and '"content"' in reply.text and "NaN" not in reply.text
        row = await only_row(this, this.lease)
        assert row.status == "ok" and row.response_token_ids == [40, 20, 99] and row.audit is not None
        assert Finding.LOGPROBS_NOT_FINITE in row.audit.findings

    in_room(test)


@pytest.mark.parametrize("stream", [False, True])
def test_ids_that_are_missing_or_not_as_many_as_counted_spoil_the_row(stream: bool) -> None:
    async def test(this: Room) -> None:
        this.engine.withholds = "return_token_ids"
        assert (await this.ask(stream=stream)).status_code == 200
        row = await only_row(this, this.lease)
        assert row.status == "ok" and row.audit is not None and Finding.NO_IDS in row.audit.findings
        this.engine.withholds, this.engine.completion_tokens = None, 7
        lease = await this.claim(llm=this.proxy.as_resource())
        assert (await this.ask(lease, stream=stream)).status_code == 200
        row = await only_row(this, lease)
        assert row.audit is not None and Finding.COUNT_MISMATCH in row.audit.findings

    in_room(test)


@pytest.mark.parametrize("path", BODIES)
def test_an_agent_that_goes_away_stops_the_engine_in_every_form(path: str) -> None:
    async def test(this: Room) -> None:
        this.engine.fault = "hang"
        for stream in (False, True):
            this.engine.entered.clear()
            this.engine.left.clear()
            this.store.written.clear()
            lease = await this.claim(llm=this.proxy.as_resource())
            asking = asyncio.create_task(ask(this, lease, path, stream))
            await this.engine.entered.wait()
            asking.cancel()
            await this.engine.left.wait()
            await this.store.written.wait()
            assert (await only_row(this, lease)).status == "disconnected"

    in_room(test)
