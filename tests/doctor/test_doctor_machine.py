"""Orphans, disk, stores, runs and accelerators, as the doctor finds them."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from leyden.algorithm.sft.rundir import RunDir
from leyden.doctor import accelerators, orphans
from leyden.doctor.disk import check_disk
from leyden.doctor.finding import Finding, Outcome
from leyden.doctor.orphans import Orphan, end_orphans, find_orphans
from leyden.doctor.ports import check_port
from leyden.doctor.runs import check_runs
from leyden.doctor.stores import check_store
from leyden.errors import Unavailable
from leyden.models.accelerator import Gpu
from leyden.process import new_marker
from leyden.server.serving import listening
from leyden.server.sqlstore import SQLStore

DRIVER = """
import asyncio, sys
from leyden.process import new_marker, spawn

async def drive():
    # A program that knows nothing of us: it watches no pipe, and goes on when its driver is gone.
    child = await spawn([sys.executable, "-c", "import time; time.sleep(600)"], marker=new_marker())
    print(child.pid, flush=True)
    await child.wait()

asyncio.run(drive())
"""


@pytest.fixture
def driver() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A driver, and the id of the child it has started."""
    process = subprocess.Popen([sys.executable, "-c", DRIVER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    yield process, child
    process.kill()
    process.communicate()
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)


def ours(child: int) -> list[Orphan]:
    """Not those of whatever else goes on on this machine."""
    return [orphan for orphan in find_orphans() if orphan.process.pid == child]


def test_the_child_of_a_live_driver_is_no_orphan(driver: tuple[subprocess.Popen[str], int]) -> None:
    assert ours(driver[1]) == []


def test_the_child_of_a_killed_driver_is_found_and_ended(driver: tuple[subprocess.Popen[str], int]) -> None:
    process, child = driver
    process.kill()
    process.wait()
    (orphan,) = ours(child)
    assert (orphan.driver, orphan.process.pid) == (process.pid, child)
    assert orphan.marker.startswith(f"{process.pid}-") and "/" not in orphan.marker
    assert str(child) in str(orphan)
    assert end_orphans([orphan]) == 1
    assert ours(child) == []


def test_a_driver_that_nobody_has_reaped_is_gone_as_well(driver: tuple[subprocess.Popen[str], int]) -> None:
    process, child = driver
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie from here on
    assert len(ours(child)) == 1


def test_a_younger_process_with_the_driver_s_number_is_not_the_driver() -> None:
    import psutil

    me = psutil.Process()
    assert orphans._lives_since(me.pid, me.create_time() + 1) and not orphans._lives_since(me.pid, me.create_time() - 1)


def test_a_disk_without_room_for_a_version_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"x" * 1000)
    outcomes = {}
    for free in (500, 3_000, 100_000):
        usage = shutil._ntuple_diskusage(0, 0, free)  # type: ignore[attr-defined]
        monkeypatch.setattr(shutil, "disk_usage", lambda path, usage=usage: usage)
        outcomes[free] = check_disk(tmp_path / "not" / "there" / "yet", tmp_path).outcome
    assert list(outcomes.values()) == [Outcome.PROBLEM, Outcome.WARNING, Outcome.OK]


def test_a_store_is_known_by_its_url_and_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    async def look() -> tuple[Finding, Finding, Finding, Finding]:
        async with await SQLStore.open() as store, listening(store) as where:
            same, port = await asyncio.to_thread(check_store, where.url), await asyncio.to_thread(check_port, where.port, True)
            monkeypatch.setattr("leyden.doctor.stores._our_version", lambda: "0.0.1")
            other = await asyncio.to_thread(check_store, where.url)
        return same, port, other, await asyncio.to_thread(check_store, where.url)

    same, port, other, gone = asyncio.run(look())
    assert [same.outcome, port.outcome] == [Outcome.OK, Outcome.OK] and port.detail.startswith("a Leyden store")
    assert other.outcome is Outcome.PROBLEM and other.detail.endswith("this is 0.0.1")
    assert gone.outcome is Outcome.PROBLEM and gone.fix == "start one: store --port 4747"


def test_a_database_is_known_by_its_schema_and_who_has_it_open(tmp_path: Path) -> None:
    path = tmp_path / "s.db"

    async def look() -> Finding:
        async with await SQLStore.open(path):
            return check_store(str(path))

    opened, closed = asyncio.run(look()), check_store(str(path))
    assert opened.outcome is Outcome.OK and opened.detail.endswith(f"open in process {os.getpid()}")
    assert closed.outcome is Outcome.OK and closed.detail.endswith("not open anywhere")
    for version, words in ((99, "newer Leyden"), (0, "not one of Leyden's")):
        with sqlite3.connect(path) as conn:
            conn.execute(f"PRAGMA user_version = {version}")
        conn.close()
        found = check_store(str(path))
        assert found.outcome is Outcome.PROBLEM and words in found.detail
    path.write_text("no database at all, but long enough to be looked at" * 100)
    assert "cannot be read" in check_store(str(path)).detail
    assert check_store(str(tmp_path / "none.db")).outcome is Outcome.PROBLEM


def test_an_interrupted_run_comes_with_the_line_that_goes_on(tmp_path: Path) -> None:
    assert [finding.outcome for finding in check_runs(tmp_path / "runs")] == [Outcome.SKIPPED]
    run = RunDir.create(tmp_path / "runs", "20261101-120000-aaaa", {})
    with run.lock(new_marker()):
        (found,) = [finding for finding in check_runs(tmp_path / "runs") if run.id in finding.detail]
        assert found.outcome is Outcome.OK and found.detail.endswith(f"by process {os.getpid()}")
    (found,) = check_runs(tmp_path / "runs")
    assert found.outcome is Outcome.WARNING and f"--resume {run.id}" in str(found.fix)
    half = run.models / ".version_1.0011aabb.draft"
    half.mkdir(parents=True)
    assert len(list(check_runs(tmp_path / "runs"))) == 1  # it may go on with its half
    run.write_summary({})
    left, _ = check_runs(tmp_path / "runs")
    assert left.outcome is Outcome.WARNING and left.fix == f"rm -r {half}"


def test_who_holds_a_gpu_s_memory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    full = Gpu("u", "Some GPU", 16 << 30, 15 << 30, (8, 0), {os.getpid(): 14 << 30, 2**22 + 1: None})
    monkeypatch.setattr(accelerators, "read_gpus", lambda: [full])
    _, (found,) = accelerators.check_accelerators()
    assert found.outcome is Outcome.WARNING
    assert f"(pid {os.getpid()}, 14.0 GiB)" in found.detail and "another container" in found.detail
    assert str(os.getpid()) in str(found.fix)


def test_a_broken_driver_is_a_problem_and_no_gpu_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> list[Gpu]:
        raise Unavailable("the NVIDIA driver does not answer: x", "try nvidia-smi")

    monkeypatch.setattr(accelerators, "read_gpus", broken)
    gpus, (found,) = accelerators.check_accelerators()
    assert (gpus, found.outcome, found.fix) == ([], Outcome.PROBLEM, "try nvidia-smi")
    monkeypatch.setattr(accelerators, "read_gpus", list)
    monkeypatch.setattr(accelerators, "cpu_has_bf16", lambda: False)
    monkeypatch.setattr(sys, "platform", "linux")
    _, (found,) = accelerators.check_accelerators()
    assert found.detail.startswith("none: the CPU, dtype fp32 because")
