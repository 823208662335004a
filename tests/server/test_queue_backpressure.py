"""A store that is behind: who would bring more work is refused before who ends some."""

from __future__ import annotations

import asyncio

import pytest
from storekit import Kit, hold_writer, run, task

from leyden.errors import Busy
from leyden.server import backlog
from leyden.server.transaction import Transaction
from leyden.types import RolloutState, Verdict


def nothing(tx: Transaction) -> None:
    pass


@pytest.mark.parametrize("kind", ["sqlite", "http-sqlite"])
def test_claims_are_refused_while_endings_and_beats_are_taken(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task(i) for i in range(3)])
        first, second = await kit.store.claim("w", 2)
        gate, holding = await hold_writer(kit)
        behind = [asyncio.create_task(kit.sql._executor.write_bulk(backlog.MAX_BULK_BYTES // 4, nothing)) for _ in range(2)]
        await asyncio.sleep(0)
        if kind == "http-sqlite":
            kit.store.deadline = 0.0  # type: ignore[attr-defined]
        with pytest.raises(Busy) as refused:
            await kit.store.claim("w")
        assert 1 <= refused.value.retry_after <= 3
        if kind == "http-sqlite":
            kit.store.deadline = 30.0  # type: ignore[attr-defined]
        ending = asyncio.create_task(kit.store.complete(first.ref))
        beating = asyncio.create_task(kit.store.heartbeat("w", [second.ref]))
        while len(kit.sql._executor._backlog._urgent) < 2:
            await asyncio.sleep(0.001)
        gate.set()
        assert (await ending).state is RolloutState.SUCCEEDED and await beating == [Verdict.HELD]
        await asyncio.gather(holding, *behind)
        assert len(await kit.store.claim("w")) == 1, "it has caught up"

    run(check, kind)


def test_claims_are_refused_when_half_of_the_writes_that_may_wait_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "MAX_URGENT", 8)

    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task()])
        gate, holding = await hold_writer(kit)
        waiting = [asyncio.create_task(kit.store.heartbeat("w", [])) for _ in range(4)]
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            await kit.store.claim("w")
        waiting.append(asyncio.create_task(kit.store.heartbeat("w", [])))
        gate.set()
        await asyncio.gather(holding, *waiting)
        assert len(await kit.store.claim("w")) == 1

    run(check)
