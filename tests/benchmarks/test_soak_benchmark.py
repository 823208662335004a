"""The soak's plan and its checks: what they must see, they see. (The soak itself takes an hour: ``make soak``.)"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest
from soak import FAULTS, RESTARTS_UNTIL, STORE_FAULTS, plan
from soak_checks import Life, check_database, judge_lives

from leyden.server.sqlstore import SQLStore
from leyden.types import NewRollout, Reward, Span

Made = Mapping[str, Mapping[str, int]]


@pytest.mark.parametrize("seconds", [60.0, 3600.0])
def test_every_fault_comes_and_the_stores_only_early(seconds: float) -> None:
    faults = plan(seconds, seed=1)
    assert {fault for _, fault in faults} == {*STORE_FAULTS, *FAULTS}
    gap = faults[0][0]
    assert all(at < seconds * RESTARTS_UNTIL + 2 * gap for at, fault in faults if fault in STORE_FAULTS)
    assert faults == sorted(faults) == plan(seconds, seed=1) != plan(seconds, seed=2)


def life(megabytes_an_hour: float, descriptors_an_hour: float = 0.0, seconds: int = 3600) -> Life:
    found = Life("store", 1, 0.0)
    for at in range(0, seconds, 10):
        noise = 300_000 * (at // 10 % 3 - 1)
        found.samples.append((at, int(80e6 + megabytes_an_hour * 1e6 * at / 3600) + noise, 20 + int(descriptors_an_hour * at / 3600), 8))
    return found


@pytest.mark.parametrize(
    ("lived", "broken"),
    [
        (life(0.0), set()),
        (life(0.8), set()),
        (life(1.3), {"memory of store"}),
        (life(-5.0), set()),
        (life(0.0, descriptors_an_hour=12), {"descriptors of store"}),
    ],
)
def test_growth_is_told_from_noise(lived: Life, broken: set[str]) -> None:
    verdicts = judge_lives([lived.sum_up(600.0)])
    assert {promise for promise, kept, _ in verdicts if not kept} == broken and len(verdicts) == 3


def test_a_life_that_is_too_short_is_not_judged_and_hides_none_that_is_not() -> None:
    short, leaking = life(50.0, seconds=900).sum_up(600.0), life(50.0).sum_up(600.0)
    assert [kept for _, kept, _ in judge_lives([short])] == [None]
    assert judge_lives([short, leaking])[0][1] is False


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Made]:
    """A store in which four rollouts have been done, and what it was asked for."""
    path = tmp_path_factory.mktemp("soak") / "soak.db"
    made: dict[str, dict[str, int]] = {"kept": {}, "brief": {}}

    async def work() -> None:
        async with await SQLStore.open(path) as store:
            queued = await store.enqueue([NewRollout(input={"n": n}, run_id="brief" if n == 3 else "kept") for n in range(4)])
            for n, rollout in enumerate(queued):
                made[rollout.run_id or ""][rollout.id] = n
            for lease in await store.claim("w", 4):
                n = lease.rollout.input["n"]
                span = Span(trace_id=f"{n + 1:032x}", span_id=f"{n + 1:016x}", name="step", start_ns=1, end_ns=2)
                await store.add_spans(lease.ref, [span])
                await store.complete(lease.ref, [Reward(value=n), Reward(name="steps", value=3)])

    asyncio.run(work())
    return path, made


def broken_by(change: str, done: tuple[Path, Made], tmp_path: Path, pruned: int = 0) -> set[str]:
    """The promises that are seen to be broken after ``change``, in SQL, to a copy."""
    source, made = done
    copy = tmp_path / "copy.db"
    copy.write_bytes(source.read_bytes())
    with closing(sqlite3.connect(copy)) as db:
        db.executescript(change)
    return {promise for promise, kept, _ in check_database(copy, made, {"rollouts": pruned}, "brief") if not kept}


def test_a_store_that_kept_its_promises_passes(done: tuple[Path, Made], tmp_path: Path) -> None:
    assert broken_by("", done, tmp_path) == set()


REWARDS, SPANS = "no reward is lost, doubled or another's", "no span of an attempt that counts is lost"
FIRST = "(SELECT id FROM rollouts WHERE seq = 1)"


@pytest.mark.parametrize(
    ("change", "promise"),
    [
        ("DELETE FROM rollouts WHERE seq = 1", "no rollout of kept is lost or doubled"),
        ("DELETE FROM rollouts WHERE seq = 4", "no rollout of brief is lost or doubled"),  # though nothing was pruned
        ("UPDATE rollouts SET run_id = 'kept' WHERE seq = 4", "no rollout of kept is lost or doubled"),
        ("UPDATE rollouts SET state = 'failed' WHERE seq = 1", "every rollout has ended well"),
        (f"UPDATE attempts SET state = 'lost' WHERE rollout_id = {FIRST}", "each by exactly one attempt, its last"),
        ("UPDATE rollouts SET attempt = 2 WHERE seq = 1", "each by exactly one attempt, its last"),
        (f"UPDATE attempts SET state = 'running' WHERE rollout_id = {FIRST}", "no attempt and no lease is left over"),
        ("UPDATE counters SET n = n + 1 WHERE state = 'succeeded'", "the store's own counts agree"),
        (f"UPDATE rewards SET value = 2 WHERE name = 'reward' AND rollout_id = {FIRST}", REWARDS),
        (f"DELETE FROM rewards WHERE name = 'steps' AND rollout_id = {FIRST}", REWARDS),
        (f"UPDATE rewards SET rollout_id = {FIRST}, source = 'x' WHERE rollout_id = (SELECT id FROM rollouts WHERE seq = 2)", REWARDS),
        ("DELETE FROM spans WHERE seq = 1", SPANS),
    ],
)
def test_whatever_is_lost_or_doubled_is_seen(change: str, promise: str, done: tuple[Path, Made], tmp_path: Path) -> None:
    assert promise in broken_by(change, done, tmp_path)


def test_what_was_pruned_is_not_lost(done: tuple[Path, Made], tmp_path: Path) -> None:
    gone = "DELETE FROM {} WHERE {} = (SELECT id FROM rollouts WHERE seq = 4);"
    change = "".join(gone.format(table, "rollout_id") for table in ("rewards", "spans", "attempts")) + gone.format("rollouts", "id")
    assert "no rollout of brief is lost or doubled" not in broken_by(change, done, tmp_path, pruned=1)
