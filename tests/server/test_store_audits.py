"""What every ``Store`` promises of audits: kept whole, counted in the write that brings them, and never wrong after a prune."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import select
from storekit import Kit, make_generation, new_postgres_database, open_kit, run, task

from leyden.audit import Audit, AuditCounts, Continuity, Finding
from leyden.server import schema
from leyden.server.operations.audits import _what
from leyden.server.queries import Prune
from leyden.server.sqlstore import SQLStore
from leyden.server.transaction import Transaction
from leyden.types import Mode

REALIGNED = Audit(
    continuity=Continuity.REALIGNED, follows="g1", differs_at=7, expected="a «ab» \"vocabulary\" é", found="a «a»b", vocabulary=512
)  # fmt: skip
FORKED = Audit(
    findings=(Finding.COUNT_MISMATCH, Finding.LOGPROBS_NOT_FINITE), continuity=Continuity.FORKED, follows="g1", differs_at=0,
    changed="message 1 (user): content changed",
)  # fmt: skip
EXACT = Audit(continuity=Continuity.CLEAN, follows="g2", exact=True, vocabulary=512)


async def recount(kit: Kit) -> tuple[Counter[Any], Counter[Any]]:
    """The counts as they are kept, and as they should be."""

    def both(tx: Transaction) -> tuple[Counter[Any], Counter[Any]]:
        kept = Counter({tuple(row)[:-1]: row.n for row in tx.conn.execute(select(schema.audit_counts)) if row.n})
        rollouts = {row.id: row for row in tx.conn.execute(select(schema.rollouts))}
        real: Counter[Any] = Counter()
        for row in tx.conn.execute(select(schema.generations)):
            of = rollouts[row.rollout_id]
            real.update((of.run_id or "", -1 if of.iteration is None else of.iteration, of.mode, what) for what in _what(row._mapping))
        return kept, real

    return await kit.sql._executor.read(both)


def test_an_audit_reads_back_exactly(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task()])
        (lease,) = await kit.store.claim("w")
        audits = [None, Audit(), REALIGNED, FORKED, EXACT]
        rows = [make_generation(lease.ref, f"g{n}", started_at=n, audit=audit) for n, audit in enumerate(audits)]
        await kit.store.add_generations(lease.ref, rows)
        assert [row.audit for row in await kit.store.list_generations([lease.ref.rollout_id])] == audits
        found = await kit.store.list_audits([lease.ref.rollout_id])
        assert [call.audit for call in found] == audits and [call.turn for call in found] == [1, 2, 3, 4, 5]

    run(check, kind)


def test_calls_are_counted_once_by_run_iteration_and_mode_with_late_and_failed_ones_apart(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task(run_id="r", iteration=1), task(run_id="r", iteration=2, mode=Mode.VAL)])
        one, two = await kit.store.claim("w", 2)
        rows = [
            make_generation(one.ref, "g1", audit=Audit(continuity=Continuity.NEW, vocabulary=512)),
            make_generation(one.ref, "g2", audit=REALIGNED),
            make_generation(one.ref, "g3", audit=FORKED),
            make_generation(one.ref, "g4", status="error", error="no"),
            make_generation(one.ref, "g5"),
        ]
        await kit.store.add_generations(one.ref, rows)
        await kit.store.add_generations(one.ref, rows)
        await kit.store.add_generations(two.ref, [make_generation(two.ref, "g6", audit=EXACT)])
        await kit.store.complete(one.ref)
        await kit.store.add_generations(one.ref, [make_generation(one.ref, "g7", audit=FORKED)])
        expected = AuditCounts(
            calls=3, flagged=1, vocabulary_unknown=1, unaudited=1, failed=1, late=1,
            continuity={Continuity.NEW: 1, Continuity.REALIGNED: 1, Continuity.FORKED: 1},
            findings={Finding.COUNT_MISMATCH: 1, Finding.LOGPROBS_NOT_FINITE: 1},
        )  # fmt: skip
        assert await kit.store.count_audits("r", 1) == expected
        assert await kit.store.count_audits(mode=Mode.VAL) == AuditCounts(calls=1, exact=1, continuity={Continuity.CLEAN: 1})
        assert (await kit.store.count_audits("r")).calls == 4 and (await kit.store.count_audits("other")).calls == 0
        kept, real = await recount(kit)
        assert kept == real

    run(check, kind)


def test_pruning_takes_away_what_it_deletes(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task(run_id="r", iteration=n) for n in range(3)])
        for lease in await kit.store.claim("w", 3):
            await kit.store.add_generations(
                lease.ref,
                [make_generation(lease.ref, f"{n}-{lease.ref.rollout_id}", audit=audit) for n, audit in enumerate((FORKED, EXACT))],
            )
            if lease.rollout.iteration:
                await kit.store.complete(lease.ref)
        kit.clock.advance(10)
        while (await kit.store.prune(Prune(older_than=5))).more:
            pass
        kept, real = await recount(kit)
        assert kept == real
        assert (await kit.store.count_audits("r")).calls == 2

    run(check, kind)


def test_choices_of_one_call_share_its_turn_and_attempts_are_told_apart(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task()])
        (first,) = await kit.store.claim("w")
        await kit.store.add_generations(
            first.ref,
            [make_generation(first.ref, f"g{n}", choice=n, prompt_tokens=5).model_copy(update={"call_id": "call"}) for n in range(2)],
        )
        await kit.store.release(first.ref)
        (second,) = await kit.store.claim("w")
        await kit.store.add_generations(second.ref, [make_generation(second.ref, "g9")])
        found = await kit.store.list_audits([first.ref.rollout_id])
        places = [(call.attempt, call.turn, call.choice, call.prompt_tokens) for call in found]
        assert places == [
            (1, 1, 0, 5),
            (1, 1, 1, 5),
            (2, 1, 0, None),
        ]
        assert [call.generation_id for call in await kit.store.list_audits([first.ref.rollout_id], 2)] == ["g9"]

    run(check, kind)


def test_texts_of_an_audit_lose_their_secrets(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task()])
        (lease,) = await kit.store.claim("w")
        secret = "sk-" + "a1b2c3d4e5f6g7h8i9j0k1"
        await kit.store.add_generations(lease.ref, [make_generation(lease.ref, "g1", audit=Audit(changed=f"it was {secret}"))])
        (call,) = await kit.store.list_audits([lease.ref.rollout_id])
        assert call.audit and call.audit.changed == "it was [redacted]"

    run(check, kind)


def as_version_2(url: str) -> None:
    """A PostgreSQL store as version 2 left it."""
    with psycopg.connect(url) as conn:
        for (view,) in conn.execute("SELECT viewname FROM pg_views WHERE schemaname = current_schema()").fetchall():
            conn.execute(f"DROP VIEW {view} CASCADE")
        for column in ("findings", "continuity", "follows", "differs_at", "exact", "audit"):
            conn.execute(f"ALTER TABLE generations DROP COLUMN {column}")
        conn.execute("DROP TABLE audit_counts")
        conn.execute("ALTER TABLE attempts ADD COLUMN key_hash text UNIQUE")
        conn.execute("DELETE FROM meta WHERE key = 'views'")
        conn.execute("UPDATE meta SET value = %s WHERE key = 'schema_version'", [b"2"])


def test_a_postgres_store_of_version_2_comes_up_with_its_calls_counted() -> None:
    url = new_postgres_database()

    async def check() -> None:
        async with await SQLStore.open(url) as store:
            await store.enqueue([task(run_id="r")])
            (lease,) = await store.claim("w")
            await store.add_generations(lease.ref, [make_generation(lease.ref, "g1"), make_generation(lease.ref, "g2", status="error")])
        await asyncio.to_thread(as_version_2, url)
        async with await SQLStore.open(url) as store:
            assert await store.count_audits("r") == AuditCounts(unaudited=1, failed=1)
            await store.add_generations(lease.ref, [make_generation(lease.ref, "g3", audit=EXACT)])
            assert (await store.count_audits("r")).exact == 1

    asyncio.run(check())


def test_a_file_of_version_2_comes_up_with_its_calls_counted(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    with sqlite3.connect(path) as conn:
        conn.executescript((Path(__file__).parent / "schemas" / "v2.sql").read_text())
    conn.close()

    async def check() -> None:
        async with open_kit("sqlite", path) as kit:
            assert await kit.store.count_audits("run-1", 2) == AuditCounts(unaudited=1, failed=1, late=1)
            assert (await kit.store.count_audits()).unaudited == 2
            kept, real = await recount(kit)
            assert kept == real
            (first, *_) = await kit.store.list_generations([(await kit.store.list_rollouts(run_id="run-1"))[0].id])
            assert first.audit is None and first.prompt_token_ids == [1, 2, 3]

    asyncio.run(check())


@pytest.mark.parametrize("audit", [REALIGNED, FORKED])
def test_views_show_what_was_found(audit: Audit, tmp_path: Path) -> None:
    from leyden.server.adhoc import ask

    path = tmp_path / "leyden.db"

    async def fill() -> None:
        async with open_kit("sqlite", path) as kit:
            await kit.store.enqueue([task(run_id="r")])
            (lease,) = await kit.store.claim("w")
            await kit.store.add_generations(lease.ref, [make_generation(lease.ref, "g", audit=audit)])

    asyncio.run(fill())
    rows = ask(str(path), "SELECT continuity, findings, follows, differs_at FROM v_generations", limit=5).rows
    assert rows == [(audit.continuity, " ".join(audit.findings), audit.follows, audit.differs_at)]
    assert (str(audit.continuity), 1, "r") in ask(str(path), "SELECT what, n, run_id FROM v_audit_counts", limit=50).rows
