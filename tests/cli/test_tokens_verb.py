"""``leyden tokens`` as a person and a script meet it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from reading_room import Room
from storekit import Kit, make_generation, task

from leyden.audit import Audit, CallAudit, Continuity, Finding
from leyden.cli.tokens import visible
from leyden.server.client import StoreClient
from leyden.server.sqlstore import SQLStore

CLEAN = Audit(continuity=Continuity.CLEAN, follows="g1", vocabulary=512)
REALIGNED = Audit(
    continuity=Continuity.REALIGNED, follows="g2", differs_at=108, expected="34?<|im_end|>\n«oper»ties", found="34?<|im_end|>\n«op»erties"
)
FORKED = Audit(
    findings=(Finding.COUNT_MISMATCH,), continuity=Continuity.FORKED, follows="g3", differs_at=4, changed="message 3 (assistant): it"
)


async def fill(store: object, run_id: str = "run-a") -> str:
    kit_store: SQLStore = store  # type: ignore[assignment]
    await kit_store.enqueue([task(run_id=run_id), task()])
    one, two = await kit_store.claim("w", 2)
    audits = [Audit(continuity=Continuity.NEW, vocabulary=512), CLEAN, REALIGNED, FORKED]
    rows = [
        make_generation(one.ref, f"g{n}", started_at=n, audit=audit, prompt_tokens=10 * n, completion_tokens=5, finish_reason="stop")
        for n, audit in enumerate(audits, 1)
    ]
    await kit_store.add_generations(one.ref, rows)
    await kit_store.add_generations(two.ref, [make_generation(two.ref, "other", audit=Audit(continuity=Continuity.NEW, vocabulary=9))])
    return one.ref.rollout_id


def filled(room: Room) -> str:
    async def work(kit: Kit) -> str:
        return await fill(kit.store)

    return room.do(work)


def test_a_run_is_shown_call_by_call_with_both_texts(room: Room) -> None:
    rollout = filled(room)
    lines = room.about_store("tokens", "run-a").splitlines()
    assert [line.split("\t")[:7] for line in lines] == [
        [rollout, "1", "1", "10", "5", "stop", "new"],
        [rollout, "1", "2", "20", "5", "stop", "clean"],
        [rollout, "1", "3", "30", "5", "stop", "realigned"],
        [rollout, "1", "4", "40", "5", "stop", "forked"],
    ]
    assert lines[2].split("\t")[8:] == ["108", "34?<|im_end|>\\n«oper»ties", "34?<|im_end|>\\n«op»erties"]
    assert lines[3].split("\t")[7:10] == ["count_mismatch", "4", "message 3 (assistant): it"]
    assert "4 calls, 1 new, 1 clean, 1 realigned, 1 forked, 1 with findings (count_mismatch 1)" in room.said


def test_a_call_under_a_lost_lease_is_marked(room: Room) -> None:
    async def work(kit: Kit) -> None:
        await kit.store.enqueue([task(run_id="run-a")])
        (lease,) = await kit.store.claim("w")
        await kit.store.complete(lease.ref)
        exact = CLEAN.model_copy(update={"exact": True})
        await kit.store.add_generations(lease.ref, [make_generation(lease.ref, "after", audit=exact)])

    room.do(work)
    assert room.about_store("tokens", "run-a").split("\t")[6] == "clean (exact, late)"
    assert "0 calls" in room.said and "1 late" in room.said


def test_only_what_is_asked_for_is_shown(room: Room) -> None:
    filled(room)
    assert [line.split("\t")[2] for line in room.about_store("tokens", "run-a", "--realigned").splitlines()] == ["3"]
    assert [line.split("\t")[2] for line in room.about_store("tokens", "run-a", "--realigned", "--forked").splitlines()] == ["3", "4"]
    assert [line.split("\t")[2] for line in room.about_store("tokens", "run-a", "--finding", "count_mismatch").splitlines()] == ["4"]
    assert len(room.about_store("tokens", "run-a", "--limit", "2").splitlines()) == 2 and "the first 2" in room.said


def test_one_rollout_is_found_by_the_beginning_of_its_id_and_checked(room: Room) -> None:
    rollout = filled(room)
    found = json.loads(room.about_store("tokens", rollout[:-4], "--json", "--check", status=1))
    assert found["counts"]["continuity"] == {"new": 1, "clean": 1, "realigned": 1, "forked": 1} and found["clean"] is False
    assert found["calls"][2]["audit"]["differs_at"] == 108 and len(found["calls"]) == 4
    latest = json.loads(room.about_store("tokens", "--json", "--check"))
    assert [call["generation_id"] for call in latest["calls"]] == ["other"] and latest["clean"] is True


def test_a_run_with_a_store_of_its_own_is_read_from_its_directory(room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "runs" / "20260101-run"
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")

    async def make() -> None:
        async with await SQLStore.open(directory / "store.db") as store:
            await fill(store, "20260101-run")

    asyncio.run(make())
    monkeypatch.chdir(tmp_path)
    assert len(room.leyden("tokens", "20260101").splitlines()) == 4
    assert len(room.leyden("tokens", str(directory)).splitlines()) == 4
    # The latest here is the run's, unless a store is named.
    (tmp_path / "runs" / "latest").symlink_to(directory.name)
    filled(room)
    assert len(room.leyden("tokens").splitlines()) == 4
    assert len(room.about_store("tokens").splitlines()) == 1
    (directory / "config.json").unlink()  # an eval's directory: all that its store holds
    assert len(room.leyden("tokens", str(directory)).splitlines()) == 5


def test_no_more_is_read_than_is_shown(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(kit: Kit) -> None:
        await kit.store.enqueue([task(run_id="run-b") for _ in range(6)])
        for lease in await kit.store.claim("w", 6):
            await kit.store.add_generations(lease.ref, [make_generation(lease.ref, lease.ref.rollout_id, audit=CLEAN)])

    asked = []
    real = StoreClient.list_audits

    async def counted(self: StoreClient, ids: list[str], attempt: int | None = None) -> list[CallAudit]:
        asked.extend(ids)
        return await real(self, ids, attempt)

    room.do(work)
    monkeypatch.setattr("leyden.cli.tokens.PAGE", 1)
    monkeypatch.setattr(StoreClient, "list_audits", counted)
    assert len(room.about_store("tokens", "run-b", "--limit", "2").splitlines()) == 2
    assert len(asked) == 3 and "the first 2" in room.said and "6 calls, 0 new, 6 clean" in room.said


def test_a_store_that_is_named_is_asked_of_a_run_too_and_one_that_is_gone_is_said(
    room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(room)
    directory = tmp_path / "runs" / "run-a"
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert len(room.about_store("tokens", "run-a").splitlines()) == 4
    room.leyden("tokens", "run-a", status=2)
    assert "run run-a has no store any more" in room.said and "--store URL" in room.said


def test_what_is_not_there_is_said(room: Room) -> None:
    room.about_store("tokens", "nothing", status=2)
    assert "no rollout nothing" in room.said
    filled(room)
    room.about_store("tokens", "run-a", "--attempt", "2", status=2)
    assert "run-a is no rollout" in room.said


def test_a_text_is_one_line_with_its_mark_in_sight() -> None:
    assert visible("a\n\tb\x00") == "a\\n\\tb\\x00"
    long = visible("x" * 200 + "«y»" + "z" * 200)
    assert long.startswith("…") and "«y»" in long and len(long) == 102
