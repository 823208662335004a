"""Which run a command goes on with, and who may drive it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from leyden.algorithm.sft.rundir import RunDir
from leyden.errors import NotFound, UsageError
from leyden.process import MARKER, find_by_marker, new_marker

CONFIG = {"agent": "a:b", "runners": 2, "sft": {"max_tokens": 8, "seed": 0}, "tasks": ["x", "y"]}

HOLD = """
import pathlib, sys, time
from leyden.algorithm.sft.rundir import RunDir
lock = RunDir(pathlib.Path(sys.argv[1])).lock(sys.argv[2])
print("held", flush=True)
time.sleep(600)
"""


def hold(run, marker=""):
    """Another process that drives the run."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(run.path), marker], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


@pytest.fixture
def runs(tmp_path):
    return tmp_path / "runs"


def test_the_same_command_goes_on_with_its_latest_unfinished_run(runs):
    for name in ("1", "2", "3"):
        RunDir.create(runs, name, CONFIG)
    RunDir.create(runs, "4", CONFIG | {"tasks": ["x"]})
    RunDir(runs / "3").write_summary({})
    found = RunDir.find_unfinished(runs, CONFIG)
    assert (found.id, found.resumed) == ("2", True)
    assert RunDir.find_unfinished(runs, CONFIG | {"sft": {"max_tokens": 9, "seed": 0}}) is None


def test_how_a_run_is_carried_out_may_change(runs):
    RunDir.create(runs, "1", CONFIG)
    assert RunDir.find_unfinished(runs, CONFIG | {"runners": 8}).id == "1"
    assert RunDir.resume(runs, "1", CONFIG | {"runners": 8}).resumed


def test_a_run_that_was_given_up_is_not_gone_on_with(runs):
    RunDir.create(runs, "1", CONFIG).end("failed", "9 of 10 rollouts failed")
    assert RunDir.find_unfinished(runs, CONFIG) is None
    with pytest.raises(UsageError, match="has failed: 9 of 10 rollouts failed") as caught:
        RunDir.resume(runs, "1")
    assert "--new" in caught.value.hint


def test_a_directory_that_its_maker_could_not_finish_is_no_run(runs):
    (runs / "1").mkdir(parents=True)
    assert RunDir.in_directory(runs) == []
    assert RunDir.find_unfinished(runs, CONFIG) is None


def test_a_run_is_found_by_its_beginning_and_a_typo_is_met_with_the_nearest(runs):
    for name in ("20261129-1", "20261129-2", "20261130-1"):
        RunDir.create(runs, name, CONFIG)
    assert RunDir.find(runs, "20261130").id == "20261130-1"
    assert RunDir.find(runs, "20261129-1").id == "20261129-1"
    assert RunDir.find(runs, "@latest").id == "20261130-1"
    with pytest.raises(UsageError, match="could be 20261129-1, 20261129-2"):
        RunDir.find(runs, "20261129")
    with pytest.raises(NotFound) as caught:
        RunDir.find(runs, "20261230-1")
    assert caught.value.hint == "did you mean 20261130-1?"


def test_going_on_with_other_settings_is_refused_by_their_names(runs):
    RunDir.create(runs, "1", CONFIG)
    with pytest.raises(UsageError, match=r"sft.max_tokens was 8, is 16; tasks") as caught:
        RunDir.resume(runs, "1", CONFIG | {"sft": {"max_tokens": 16, "seed": 0}, "tasks": ["x"]})
    assert "--fork 1" in caught.value.hint


def test_a_finished_run_is_refused_with_what_to_type_instead(runs):
    RunDir.create(runs, "1", CONFIG).write_summary({})
    with pytest.raises(UsageError, match="run 1 is finished") as caught:
        RunDir.resume(runs, "1")
    assert "--fork 1" in caught.value.hint


def test_one_process_drives_a_run_and_sigkill_lets_go_of_it(runs):
    run = RunDir.create(runs, "1", CONFIG)
    other = hold(run)
    assert run.driver == other.pid
    assert RunDir.find_unfinished(runs, CONFIG) is None
    with pytest.raises(UsageError, match=f"run 1 is being driven by process {other.pid}"):
        run.lock()
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert run.driver is None
    assert RunDir.find_unfinished(runs, CONFIG).id == "1"
    with run.lock():
        assert run.driver == os.getpid()
    assert run.driver is None


def test_what_a_former_driver_left_running_is_ended_first(runs):
    run = RunDir.create(runs, "1", CONFIG)
    marker = new_marker()
    other = hold(run, marker)
    orphan = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=os.environ | {MARKER: f"{marker}/child"})
    other.send_signal(signal.SIGKILL)
    other.wait()
    with run.lock():
        assert orphan.wait(10) == -signal.SIGTERM
        assert find_by_marker(marker) == []


def test_the_champion_a_run_set_out_from_stays_what_it_was(runs):
    run = RunDir.create(runs, "1", CONFIG)
    assert run.begin_with("version_0") == "version_0"
    assert RunDir(run.path).begin_with("version_1") == "version_0"


def test_a_torn_line_costs_no_other_measurement(runs):
    run = RunDir.create(runs, "1", CONFIG)
    run.metric(step="collect", passed=3)
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"time": 12, "st')
    run.metric(step="train", loss=0.5)
    assert [line["step"] for line in run.metrics()] == ["collect", "train"]
