"""``leyden runs``: how a run stands, as its directory tells, and giving one up."""

from __future__ import annotations

import asyncio
import json
import os

import pytest

import leyden.cli
from leyden.algorithm.sft.rundir import RunDir
from leyden.server.serving import listening
from leyden.server.sqlstore import SQLStore
from leyden.types import NewRollout, RolloutState, RunState

MANIFEST = {"iteration": 0, "started_at": 1, "seconds": 2.5, "inputs": {}, "fingerprint": "", "epoch": 1, "title": "t"}


@pytest.fixture
def runs(tmp_path):
    return tmp_path / "runs"


@pytest.fixture
def run(runs):
    """It has measured its first version, and begun to collect."""
    run = RunDir.create(runs, "20261129-1", {"store": None, "forked_from": "20261128-7"})
    run.metric(iteration=0, step="evaluate-version_0", started=True)
    outputs = {"version": "version_0", "pass_rate": 0.25}
    run.write_manifest(0, "evaluate-version_0", MANIFEST | {"step": "evaluate-version_0", "outputs": outputs, "note": "T=1 0.25"})
    run.metric(iteration=1, step="collect", started=True)
    return run


def leyden_runs(runs, capsys, verb, *args):
    status = leyden.cli.run(["runs", verb, *args, "--runs", str(runs)])
    return status, *capsys.readouterr()


def test_an_interrupted_run_says_where_and_how_to_go_on(runs, run, capsys):
    status, out, err = leyden_runs(runs, capsys, "show")
    assert status == 0
    assert "run 20261129-1: interrupted in collect of iteration 1, forked from 20261128-7" in out
    assert "evaluate-version_0" in out
    assert "T=1 0.25" in out
    assert "--resume 20261129-1" in err
    assert leyden_runs(runs, capsys, "list")[1] == "20261129-1  interrupted in collect of iteration 1, pass rate 0.25\n"


def test_a_run_that_is_being_driven_says_by_whom(runs, run, capsys):
    with run.lock():
        assert f"running (process {os.getpid()}), in collect of iteration 1" in leyden_runs(runs, capsys, "list")[1]
        status, _, err = leyden_runs(runs, capsys, "cancel", "20261129", "--yes")
    assert status == 2
    assert "hint: stop it first" in err
    assert not run.has_ended


def test_the_same_as_json(runs, run, capsys):
    shown = json.loads(leyden_runs(runs, capsys, "show", "@latest", "--json")[1])
    assert (shown["format"], shown["state"], shown["step"], shown["iteration"]) == (2, "interrupted", "collect", 1)
    assert shown["pass_rates"] == {"version_0": 0.25}
    assert shown["steps"] == [{"iteration": 0, "step": "evaluate-version_0", "seconds": 2.5, "note": "T=1 0.25"}]
    listed = json.loads(leyden_runs(runs, capsys, "list", "--json")[1])
    assert [item["run"] for item in listed["runs"]] == ["20261129-1"]


def test_giving_a_run_up_needs_a_word_where_nobody_can_be_asked(runs, run, capsys):
    status, _, err = leyden_runs(runs, capsys, "cancel", "20261129")
    assert status == 2
    assert "--yes" in err
    assert not run.has_ended


def test_a_run_that_was_given_up_takes_its_rollouts_out_of_a_shared_store(runs, capsys):
    async def scenario():
        async with await SQLStore.open(None) as store, listening(store) as where:
            RunDir.create(runs, "20261129-2", {"store": where.url})
            await store.start_run("20261129-2", {})
            (ours,) = await store.enqueue([NewRollout(input=1, run_id="20261129-2")])
            (theirs,) = await store.enqueue([NewRollout(input=1)])
            status = await asyncio.to_thread(leyden.cli.run, ["runs", "cancel", "20261129-2", "--yes", "--runs", str(runs)])
            states = [(await store.get_rollout(rollout.id)).state for rollout in (ours, theirs)]
            return status, states, (await store.get_run("20261129-2")).state

    assert asyncio.run(scenario()) == (0, [RolloutState.CANCELLED, RolloutState.QUEUED], RunState.CANCELLED)
    assert "and 1 rollouts with it" in capsys.readouterr().err
    assert RunDir.find_unfinished(runs, RunDir.find(runs, "20261129-2").config) is None
    assert "cancelled: leyden runs cancel" in leyden_runs(runs, capsys, "list")[1]
