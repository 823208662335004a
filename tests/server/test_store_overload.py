"""More than a store can do: what is refused, with when to come again, and what is taken all the same."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from storekit import Kit, hold_writer, make_span, run, task

from leyden.errors import Busy
from leyden.server import admission, sqlite
from leyden.server.operations import claims
from leyden.server.operations.claims import Claimed, ClaimRequest
from leyden.server.transaction import Transaction
from leyden.types import RolloutState, Verdict


def test_with_many_requests_under_way_new_work_is_refused_and_what_ends_work_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MOST_BEFORE_NEW_WORK", 2)
    monkeypatch.setattr(admission, "MOST_BEFORE_ALL_BUT_ENDINGS", 4)

    async def check(kit: Kit) -> None:
        assert kit.url is not None
        await kit.sql.enqueue([task(n) for n in range(4)])
        leases = await kit.sql.claim("w", 4)
        polling = asyncio.create_task(kit.store.claim("idle", wait=20))
        while not kit.sql._desk.waiting:
            await asyncio.sleep(0.001)
        gate, holding = await hold_writer(kit)
        async with httpx.AsyncClient(base_url=kit.url, trust_env=False, timeout=60) as http:
            beat = {"worker_id": "w", "leases": [lease.ref.model_dump() for lease in leases]}
            beats = []
            for n in range(1, 6):
                beats.append(asyncio.create_task(http.post("/v1/leases/heartbeat", json=beat)))
                while kit.sql.metrics.under_way < n:
                    await asyncio.sleep(0.001)
                if n == 1:
                    listed = await http.post("/v1/rollouts/query", json={})
                    assert listed.status_code == 200, "one request and a long poll are no crowd"
            for path in ("/v1/rollouts", "/v1/leases/claim", "/v1/spans", "/v1/rollouts/query"):
                refused = await http.post(path, json={})
                assert refused.status_code == 429 and 1 <= int(refused.headers["retry-after"]) <= 3
                assert refused.json()["error"]["code"] == "busy"
            exported = await http.post("/v1/traces", json={})
            assert exported.status_code == 429 and "message" in exported.json(), "in the form that exporters read"
            assert (await http.get("/health")).status_code == 200
            gate.set()
            await holding
            assert [answer.json() for answer in await asyncio.gather(*beats)] == [[Verdict.HELD] * 4] * 5
        assert kit.sql.metrics.under_way == 0
        assert (await kit.store.complete(leases[0].ref)).state is RolloutState.SUCCEEDED
        polling.cancel()

    run(check, "http-sqlite")


def test_spans_and_lists_are_taken_while_only_new_work_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MOST_BEFORE_NEW_WORK", 0)

    async def check(kit: Kit) -> None:
        kit.store.deadline = 0.0  # type: ignore[attr-defined]
        with pytest.raises(Busy):
            await kit.store.enqueue([task()])
        with pytest.raises(Busy):
            await kit.store.claim("w")
        await kit.sql.enqueue([task()])
        (lease,) = await kit.sql.claim("w")
        assert await kit.store.add_spans(lease.ref, [make_span()]) == 1
        assert len(await kit.store.list_rollouts()) == 1
        await kit.store.complete(lease.ref)

    run(check, "http-sqlite")


def test_news_of_one_queue_ask_for_nobody_who_waits_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(kit: Kit) -> None:
        asked: list[str] = []
        real = claims.claim

        def claim(tx: Transaction, requests: Sequence[ClaimRequest]) -> Claimed:
            asked.extend(request.worker_id for request in requests)
            return real(tx, requests)

        monkeypatch.setattr(claims, "claim", claim)
        idle = [asyncio.create_task(kit.store.claim(f"idle-{n}", wait=20, queues=("rare",))) for n in range(50)]
        while len(kit.sql._desk._waiters) < 50 or kit.sql._desk._serving:
            await asyncio.sleep(0.001)
        asked.clear()
        for n in range(5):
            await kit.store.enqueue([task(n)])
            (lease,) = await kit.store.claim("busy", wait=20)
            await kit.store.release(lease.ref)
        assert set(asked) == {"busy"}
        await kit.store.enqueue([task(queue="rare")])
        done, _ = await asyncio.wait(idle, return_when=asyncio.FIRST_COMPLETED)
        assert [len(one.result()) for one in done] == [1] and idle[0] in done, "the first that came"
        for one in idle:
            one.cancel()

    run(check)


def test_a_claim_whose_time_is_up_before_its_turn_still_has_its_turn() -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task(n) for n in range(2)])
        gate, holding = await hold_writer(kit)
        first = asyncio.create_task(kit.store.claim("first", wait=20))
        while not any(waiter.asked for waiter in kit.sql._desk._waiters):
            await asyncio.sleep(0)
        late = asyncio.create_task(kit.store.claim("late", wait=0.001))
        await asyncio.wait({late}, timeout=0.05)
        assert not late.done()
        gate.set()
        await holding
        assert len(await first) == len(await late) == 1

    run(check)


def test_a_snapshot_that_somebody_reads_for_long_stops_no_claim_and_the_log_is_folded_back_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "WAL_FOLD_BYTES", 256 << 10)
    monkeypatch.setattr(sqlite, "WAL_FOLD_EVERY", 0.0)
    monkeypatch.setattr(sqlite, "WAL_FOLD_WAIT_MS", 1)
    monkeypatch.setattr(sqlite, "WAL_MOST_BYTES", 1 << 20)
    path = tmp_path / "leyden.db"

    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task(n) for n in range(20)])
        (lease,) = await kit.store.claim("w")
        with closing(sqlite3.connect(path)) as reader:
            reader.execute("BEGIN")
            assert reader.execute("SELECT count(*) FROM rollouts").fetchone() == (20,)
            with pytest.raises(Busy, match="one snapshot of it for long"):
                for n in range(1, 10_000):
                    await kit.store.add_spans(lease.ref, [make_span(n, attributes={"own": str(n) * 500})])
            with pytest.raises(Busy):
                await kit.store.enqueue([task()])
            assert kit.sql._database.sizes().wal < 2 << 20  # type: ignore[union-attr]
            for other in await kit.store.claim("w", 19):
                assert await kit.store.heartbeat("w", [other.ref]) == [Verdict.HELD]
                await kit.store.complete(other.ref)
        await kit.store.heartbeat("w", [lease.ref])  # any commit
        await kit.store.heartbeat("w", [lease.ref])  # whose answer comes after that one's upkeep
        assert kit.sql._database.sizes().wal < 256 << 10  # type: ignore[union-attr]
        assert await kit.store.add_spans(lease.ref, [make_span(20_000)]) == 1

    run(check, path=path)
