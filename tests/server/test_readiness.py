"""``/ready``: 503 with the reason while the store cannot do its work, however many ask; ``/health`` says only that it is there."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx
import pytest
from sqlalchemy import text
from storekit import Kit, hold_writer, run

from leyden.errors import Unavailable
from leyden.server import backlog, readiness
from leyden.server.readiness import Readiness
from leyden.server.transaction import Transaction


async def get(kit: Kit, path: str = "/ready") -> tuple[int, Any]:
    async with httpx.AsyncClient(base_url=str(kit.url), trust_env=False, verify=False, timeout=60) as http:
        answer = await http.get(path)
        return answer.status_code, answer.json()


def renamed(table: str, name: str) -> Any:
    def rename(tx: Transaction) -> None:
        tx.conn.execute(text(f"ALTER TABLE {table} RENAME TO {name}"))

    return rename


@pytest.mark.parametrize("kind", ["http-sqlite", "http-postgres"])
def test_it_is_ready_again_when_the_database_can_be_written_again(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(readiness, "FRESH", 0.0)

    async def check(kit: Kit) -> None:
        assert await get(kit) == (200, {"status": "ready"})
        assert await get(kit) == (200, {"status": "ready"}), "its row is there by now"
        await kit.sql._executor.write(renamed("meta", "away"))
        with caplog.at_level(logging.WARNING, readiness.__name__):
            for _ in range(3):
                status, said = await get(kit)
                assert status == 503 and said["error"]["code"] == "unavailable"
                assert said["error"]["message"] == "the database cannot be written" and kit.sql.label not in str(said)
            assert (await get(kit, "/health"))[0] == 200
            await kit.sql._executor.write(renamed("away", "meta"))
            assert await get(kit) == (200, {"status": "ready"})
        said_to_log = [record.message for record in caplog.records if record.name == readiness.__name__]
        assert said_to_log == ["not ready: the database cannot be written", "ready again"], "each change is said once"

    run(check, kind)


def test_a_full_backlog_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(kit: Kit) -> None:
        gate, holding = await hold_writer(kit)
        monkeypatch.setattr(backlog, "MAX_URGENT", 2)
        waiting = [asyncio.create_task(kit.sql.heartbeat("w", [])) for _ in range(2)]
        while not kit.sql.backlog_is_full:
            await asyncio.sleep(0.001)
        status, said = await get(kit)
        assert (status, said["error"]["message"]) == (503, "the backlog is full")
        gate.set()
        await asyncio.gather(holding, *waiting)
        assert (await get(kit))[0] == 200

    run(check, "http-sqlite")


def test_a_database_that_does_not_answer_is_asked_once_however_many_want_to_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "PATIENCE", 0.01)

    async def check(kit: Kit) -> None:
        gate, holding = await hold_writer(kit)
        answers = await asyncio.gather(*(get(kit) for _ in range(20)))
        assert {status for status, _ in answers} == {503}
        assert {said["error"]["message"] for _, said in answers} == {"the database has not answered within 0.01 s"}
        assert kit.sql._executor.waiting().urgent == 1
        monkeypatch.setattr(readiness, "PATIENCE", 30.0)
        gate.set()
        await holding
        assert (await get(kit))[0] == 200

    run(check, "http-sqlite")


class Probed:
    backlog_is_full = False

    def __init__(self) -> None:
        self.tries = 0
        self.readable = False

    async def try_write(self) -> None:
        self.tries += 1

    async def try_read(self) -> None:
        if not self.readable:
            raise Unavailable("the disk at 10.0.0.5 is gone")


def test_a_database_that_cannot_be_read_is_not_ready_and_an_answer_lasts_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        probed = Probed()
        ready = Readiness(probed)
        for _ in range(5):
            with pytest.raises(Unavailable, match=r"^the database cannot be read$"):
                await ready.check()
        assert probed.tries == 1
        probed.readable = True
        monkeypatch.setattr(readiness, "FRESH", 0.0)
        await ready.check()
        assert probed.tries == 2

    asyncio.run(check())
