"""Clients that go away in the middle of a request: in its body, right behind it, in the wait for its answer. The store is at rest
afterwards: nobody waits, nothing is queued, and its connections are back."""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import struct
from typing import Any

import psutil
import pytest
from store_invariants import check_sound
from store_process import until
from store_room import SCALE, Room

from leyden.server.client import StoreClient
from leyden.server.serving import listening
from leyden.server.sqlstore import SQLStore
from leyden.types import NewRollout, RolloutState

GOING_AWAY = {"sqlite": 300, "postgres": 300}  # clients
AT_ONCE = 10


def test_the_store_is_at_rest_when_they_are_gone(room: Room, kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> None:
        async with await SQLStore.open(room.database) as store, listening(store) as where:
            async with StoreClient(where.url) as client:
                first = await client.enqueue([NewRollout(input=i, idempotency_key=f"first{i}") for i in range(5)])
                await asyncio.gather(*(client.count() for _ in range(32)))  # every reader has opened its connection
            before = open_files()
            for _ in range(GOING_AWAY[kind] * SCALE // AT_ONCE):
                await asyncio.gather(*(go_away(where.port, first[0].id) for _ in range(AT_ONCE)))
            await until(lambda: is_at_rest(store), "nobody waits and nothing is queued")
            await until(lambda: not connections_to(where.port), "the clients' connections are closed")
            async with StoreClient(where.url) as client:  # and it serves
                while (await client.count()).running:
                    await asyncio.sleep(0.02)  # what was answered into the void runs out
                leases = await client.claim("w", limit=512)
                assert [lease.rollout.state for lease in leases] == [RolloutState.RUNNING] * len(leases)
                assert len(leases) >= 5
                for lease in leases:
                    await client.complete(lease.ref)
            await until(lambda: not connections_to(where.port), "the last client's connections are closed")
            await until(lambda: open_files() <= before, f"no more files are open than the {before} before")
            if room.postgres is not None:
                states = room.postgres.connections(room.database)
                assert set(states) == {"idle"} and len(states) <= 16, states
        found = check_sound(room.database)
        assert {row.state for row in found.rollouts.values()} == {RolloutState.SUCCEEDED}
        assert capfd.readouterr().err == "", "a client that goes away is no error of the store"

    room.run(scenario())


def is_at_rest(store: SQLStore) -> bool:
    backlog, desk = store._executor._backlog, store._desk
    waiting = backlog._urgent or backlog._bulk or backlog._bulk_bytes or desk._waiters or desk._by_request or desk._tasks
    return not waiting and not store._watch._watchers


def connections_to(port: int) -> list[Any]:
    """Ours as a server: those that a client has left and we have not are among them."""
    mine = psutil.Process().net_connections(kind="tcp")
    return [one for one in mine if one.laddr.port == port and one.status != psutil.CONN_LISTEN]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


# -- the clients ---------------------------------------------------------------------------------------------------------------


async def go_away(port: int, rollout_id: str) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    path, body = random.choice((enqueue(), claim(), wait(rollout_id), beat(), register()))
    await random.choice((in_the_body, in_the_head, behind_the_request, in_the_wait))(writer, request(path, body))
    if random.random() < 0.5:  # not even a farewell: the other side gets a reset
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()


async def in_the_head(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data[: data.index(b"\r\n\r\n") - random.randrange(20)])
    await writer.drain()


async def in_the_body(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data[: -random.randrange(1, 10)])
    await writer.drain()


async def behind_the_request(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


async def in_the_wait(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()
    await asyncio.sleep(random.uniform(0.0, 0.05))


def request(path: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    return head.encode() + content


def enqueue() -> tuple[str, dict[str, Any]]:
    return "/v1/rollouts", {"rollouts": [{"input": 1, "idempotency_key": f"k{random.getrandbits(60)}"}]}


def claim() -> tuple[str, dict[str, Any]]:
    body = {"worker_id": "gone", "limit": random.randint(1, 3), "wait": 20.0, "lease_seconds": 1.0}
    return "/v1/leases/claim", body | {"request_id": f"c{random.getrandbits(60)}"}


def wait(rollout_id: str) -> tuple[str, dict[str, Any]]:
    return "/v1/rollouts/wait", {"ids": [rollout_id], "wait": 3.0}


def beat() -> tuple[str, dict[str, Any]]:
    return "/v1/leases/heartbeat", {"worker_id": "gone", "leases": []}


def register() -> tuple[str, dict[str, Any]]:
    return "/v1/workers", {"worker_id": "gone", "name": "gone", "capacity": 1}
