"""The service as a stranger meets it: raw requests over a real port."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest
from storekit import Kit, run, task

from leyden.errors import LeydenError, TooLarge, Unavailable, UsageError
from leyden.server import client as client_module
from leyden.server import wire
from leyden.server.client import StoreClient
from leyden.server.serving import listening, serve
from leyden.server.sqlstore import SQLStore
from leyden.server.transaction import Transaction
from leyden.types import NewRollout


def over_http(check: Callable[[Kit, httpx.AsyncClient], Coroutine[Any, Any, None]]) -> None:
    async def go(kit: Kit) -> None:
        assert kit.url is not None
        async with httpx.AsyncClient(base_url=kit.url, trust_env=False, timeout=60) as http:
            await check(kit, http)

    run(go, "http")


def test_health_names_the_store() -> None:
    async def check(kit: Kit, http: httpx.AsyncClient) -> None:
        said = (await http.get("/health")).json()
        assert (said["status"], said["name"]) == ("ok", "leyden-store") and said["version"] and said["nonce"]

    over_http(check)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"rollouts": [{"input": 1, "priority": "x"}]}', "rollouts.0.priority"),
        (b'{"rollouts": [{"input": 1, "colour": "red"}]}', "rollouts.0.colour"),
        (b'{"rollouts": [{}]}', "rollouts.0.input"),
        (b"{}", "rollouts"),
        (b"[1", "not JSON"),
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_a_bad_body_is_422_and_names_the_field(body: bytes, field: str) -> None:
    async def check(kit: Kit, http: httpx.AsyncClient) -> None:
        answer = await http.post("/v1/rollouts", content=body)
        assert answer.status_code == 422
        error = answer.json()["error"]
        assert set(error) == {"code", "message", "hint"} and error["code"] == "invalid" and field in error["message"]

    over_http(check)


def test_a_reward_that_is_no_number_is_refused() -> None:
    async def check(kit: Kit, http: httpx.AsyncClient) -> None:
        await kit.store.enqueue([task()])
        (lease,) = await kit.store.claim("w")
        for value in ("NaN", "Infinity", "null", '"x"'):
            body = f'{{"ref": {lease.ref.model_dump_json()}, "rewards": [{{"value": {value}}}]}}'
            answer = await http.post("/v1/rewards", content=body)
            assert answer.status_code == 422 and "rewards.0.value" in answer.json()["error"]["message"]

    over_http(check)


def test_escaped_lone_surrogates_and_nul_are_stored() -> None:
    async def check(kit: Kit, http: httpx.AsyncClient) -> None:
        body = rb'{"rollouts": [{"input": "a\ud800b\u0000c", "group": "\udc00\u0000", "idempotency_key": "\ud800"}]}'
        for _ in range(2):
            answer = await http.post("/v1/rollouts", content=body)
            assert answer.status_code == 200
        (stored,) = await kit.store.list_rollouts()
        assert (stored.input, stored.group) == ("a\ufffdb\0c", "\ufffd\ufffd")

    over_http(check)


def test_unknown_things_are_404_in_the_same_shape() -> None:
    async def check(kit: Kit, http: httpx.AsyncClient) -> None:
        for path in ("/v1/rollouts/nobody", "/v1/nothing", "/v1/rollouts/%ff%00", "/v1/runs/" + "x" * 5000):
            answer = await http.get(path)
            assert answer.status_code == 404 and answer.json()["error"]["code"] == "not_found"
        assert (await http.get("/v1/leases/claim")).json()["error"]["code"] == "http"

    over_http(check)


def test_a_stale_fence_is_409_lease_lost() -> None:
    async def check(kit: Kit, http: httpx.AsyncClient) -> None:
        await kit.store.enqueue([task()])
        (lease,) = await kit.store.claim("w")
        await kit.store.release(lease.ref)
        answer = await http.post("/v1/leases/complete", json={"ref": lease.ref.model_dump()})
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "lease_lost")

    over_http(check)


def test_a_body_over_the_limit_is_413(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_BODY", 100_000)

    async def chunks() -> Any:
        for _ in range(300):
            yield b"x" * 1000

    async def check(kit: Kit, http: httpx.AsyncClient) -> None:
        assert (await http.post("/v1/rollouts", content=chunks())).status_code == 413
        with pytest.raises(TooLarge):
            await kit.store.enqueue([NewRollout(input="x" * 200_000)])
        assert await kit.store.enqueue([NewRollout(input="x" * 50_000)])

    over_http(check)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "localhost:99"}, 200),
        ({"host": "[::1]:4747"}, 200),
        ({"host": "evil.example"}, 403),
        ({"host": "127.0.0.1.evil.example:4747"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://localhost:3000"}, 403),
        ({"host": "localhost:3000", "origin": "http://localhost:3000"}, 200),
    ],
)
def test_only_this_machine_s_names_are_served(headers: dict[str, str], status: int) -> None:
    async def check(kit: Kit, http: httpx.AsyncClient) -> None:
        assert (await http.get("/v1/runs", headers=headers)).status_code == status

    over_http(check)


def test_a_bug_is_500_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(tx: Transaction, limit: int) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("leyden.server.operations.runs.listing", broken)

    async def check(kit: Kit, http: httpx.AsyncClient) -> None:
        answer = await http.get("/v1/runs")
        assert answer.status_code == 500 and answer.json()["error"]["code"] == "internal"
        assert "secret" not in answer.text and "Traceback" not in answer.text

    over_http(check)


def test_a_store_that_is_not_there_is_said_with_the_command_that_starts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "FIRST_CONTACT", 0.1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: refuses, and nobody else can take it
        port = taken.getsockname()[1]

        async def check() -> None:
            async with StoreClient(f"http://127.0.0.1:{port}") as store:
                await store.list_runs()

        with pytest.raises(Unavailable, match=f"the store at http://127.0.0.1:{port} does not answer") as caught:
            asyncio.run(check())
        assert caught.value.hint == f"start it with: store --port {port}"


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [(b"418 Teapot", Unavailable, "not a store's answer"), (b"200 OK", UsageError, "not a store of this version")],
)
def test_something_else_on_the_port_is_not_taken_for_a_store(status: bytes, error: type[LeydenError], message: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 " + status + b"\r\ncontent-length: 4\r\nconnection: close\r\n\r\n<ht>")
        writer.close()

    async def check() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, StoreClient(f"http://127.0.0.1:{port}") as store:
            with pytest.raises(error, match=message):
                await store.list_runs()

    asyncio.run(check())


def test_a_lost_answer_is_asked_for_again_and_counts_once() -> None:
    """A proxy that swallows the first answer of each kind of call: the retry must find the same thing done."""

    async def check(kit: Kit) -> None:
        assert kit.url is not None
        upstream = httpx.URL(kit.url)
        seen: set[bytes] = set()

        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next((int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")), 0)
            body = await reader.readexactly(length)
            up_reader, up_writer = await asyncio.open_connection(upstream.host, upstream.port)
            up_writer.write(head.removesuffix(b"\r\n") + b"connection: close\r\n\r\n" + body)
            answer = await up_reader.read(-1)
            up_writer.close()
            path = head.split()[1]
            if path in seen:
                writer.write(answer)
            seen.add(path)
            writer.close()

        server = await asyncio.start_server(forward, "127.0.0.1", 0)
        async with server, StoreClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as store:
            await store.enqueue([task(1), task(2)])
            leases = await store.claim("w")
            assert [lease.rollout.input for lease in leases] == [1]
            await store.add_resources({})
            assert (await store.start_run("run", {})).epoch == 1
            await store.complete(leases[0].ref)
        assert len(await kit.store.list_rollouts()) == 2
        assert (await kit.store.get_resources()).version == 1
        assert [lease.rollout.input for lease in await kit.store.claim("w", 5)] == [2]

    run(check, "http")


def test_a_taken_port_and_a_public_address_are_refused(tmp_path: Path) -> None:
    async def check() -> None:
        async with await SQLStore.open() as store, listening(store) as where:
            with pytest.raises(UsageError, match=f"port {where.port} is taken"):
                async with listening(store, port=where.port):
                    pass
            with pytest.raises(UsageError, match=f"port {where.port} is taken"):
                await serve("127.0.0.1", where.port, tmp_path / "fresh.db")
        for host in ("0.0.0.0", "::", "10.0.0.1", "example.com"):
            with pytest.raises(UsageError, match="this machine only"):
                await serve(host, 0, None)

    asyncio.run(check())
    assert not list(tmp_path.iterdir()), "a store that cannot listen leaves no database behind"


def test_wire_answers_are_plain_json() -> None:
    async def check(kit: Kit, http: httpx.AsyncClient) -> None:
        answer = await http.post("/v1/rollouts", json={"rollouts": [{"input": {"q": 1}}]})
        assert answer.headers["content-type"] == "application/json"
        (rollout,) = json.loads(answer.content)
        assert (rollout["state"], rollout["input"]) == ("queued", {"q": 1})

    over_http(check)


def test_a_url_with_a_password_is_refused_without_saying_it() -> None:
    async def check() -> None:
        async with StoreClient("http://me:hunter2@127.0.0.1:1") as store:
            with pytest.raises(UsageError, match="names and passwords in a URL are not sent") as caught:
                await store.list_runs()
        assert "hunter2" not in str(caught.value) and "127.0.0.1:1" in str(caught.value)

    asyncio.run(check())
