"""From a checkpoint to the attempts it learnt from and back, by command, over a whole run."""

from __future__ import annotations

import json
from shutil import copytree, rmtree

import pytest
from instant_loop import SMALL, play

import leyden.cli
from leyden.algorithm.dataset import read_rows
from leyden.algorithm.sft.settings import SFTConfig
from leyden.files import sha256_of
from leyden.types import Mode


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Two iterations, both promoted, each with its control arm."""
    share = {"version_0": 0, "version_1": 6, "version_2": 0, "version_3": 12, "version_4": 0}

    def rewards(version, task, mode):
        number = int(task.split()[1])
        return number % 2 if mode == Mode.TRAIN else number < share[version]

    config = SFTConfig(selection=SMALL, iterations=2, random_control=True, attempts=2)
    with pytest.MonkeyPatch.context() as patch:
        return play(tmp_path_factory.mktemp("lineage"), patch, rewards, config, heldout=12)


def lineage(played, capsys, *args):
    status = leyden.cli.run(["models", "lineage", *args, "--runs", str(played.run.path.parent)])
    return status, *capsys.readouterr()


def ask(played, capsys, *args):
    status, out, err = lineage(played, capsys, *args, "--json")
    assert status == 0, err
    return json.loads(out)


def collected(played, iteration):
    return played.run.read_manifest(iteration, "collect")["outputs"]["rollouts"]


def test_every_attempt_that_was_learnt_from_is_found_from_the_checkpoint(played, capsys):
    for number, version, arm in ((1, "version_1", "rows"), (1, "version_2", "control"), (2, "version_3", "rows")):
        told = ask(played, capsys, version, "--rows", "--run", "run-1")["lineage"]
        trained = read_rows(played.run.path / f"iteration_{number}" / f"{arm}.arrow")
        assert [row["rollout_id"] for row in told[-1]["rows"]] == [row.rollout_id for row in trained]
        assert [tuple(row["generation_ids"]) for row in told[-1]["rows"]] == [row.generation_ids for row in trained]
        assert told[0]["rows"] == []  # imported
    assert [one["version"] for one in told] == ["version_0", "version_1", "version_3"]
    assert len(told[1]["rows"]) == 8


def test_every_scored_attempt_is_found_again_with_each_checkpoint_that_learnt_from_it(played, capsys):
    arms = {"version_1": (1, "rows"), "version_2": (1, "control"), "version_3": (2, "rows"), "version_4": (2, "control")}
    learnt = {
        version: {row.rollout_id for row in read_rows(played.run.path / f"iteration_{iteration}" / f"{arm}.arrow")}
        for version, (iteration, arm) in arms.items()
    }
    for iteration in (1, 2):
        for rollout in collected(played, iteration):
            told = ask(played, capsys, rollout)
            assert [(part["iteration"], part["step"]) for part in told["parts"]] == [(iteration, "collect")]
            direct = {one["version"] for one in told["learners"] if not one["via"]}
            assert direct == {version for version, rollouts in learnt.items() if rollout in rollouts}
            # What was trained on from a version that learnt from it has learnt from it as well: its adapter went on.
            later = {one["version"]: one["via"] for one in told["learners"] if one["via"]}
            assert later == ({"version_3": "run-1/version_1", "version_4": "run-1/version_1"} if "version_1" in direct else {})


def test_attempts_that_only_measured_are_found_and_taught_nobody(played, capsys):
    measured = played.run.read_manifest(1, "evaluate-version_1")["outputs"]["rollouts"]
    status, out, _ = lineage(played, capsys, measured[0])
    assert status == 0
    assert "run run-1  iteration 1  evaluate-version_1" in out
    assert "no checkpoint learnt from it" in out


def test_a_row_shows_its_rollout_and_its_tokens(played, capsys):
    row = read_rows(played.run.path / "iteration_1" / "rows.arrow")[0]
    shown = ask(played, capsys, "version_1", "--rows", "--run", "run-1")["lineage"][-1]["rows"][0]
    told = ask(played, capsys, shown["row_id"], "--tokens")
    assert told["rollouts"] == [row.rollout_id]
    assert told["rows"][0]["tokens"] == {"input_ids": row.input_ids, "labels": row.labels}
    assert [one["version"] for one in told["learners"]] == ["version_1", "version_3", "version_4"]
    status, out, _ = lineage(played, capsys, shown["row_id"], "--tokens")
    assert status == 0
    assert f"{shown['row_id']}  input_ids  {row.input_ids}" in out


def test_a_line_of_an_export_is_followed_to_the_checkpoints(played, capsys, tmp_path):
    learnt = read_rows(played.run.path / "iteration_2" / "rows.arrow")[0]
    path = tmp_path / "train.jsonl"
    path.write_text('{"messages": []}\n{"messages": []}\n')
    lines = [{"rollout_id": None}, {"rollout_id": learnt.rollout_id, "generation_ids": list(learnt.generation_ids)}]
    (tmp_path / "train.jsonl.meta.json").write_text(json.dumps({"dataset": {"sha256": sha256_of(path)}, "lines": lines}))
    told = ask(played, capsys, f"{path}:2")
    assert told["rollouts"] == [learnt.rollout_id]
    assert "version_3" in {one["version"] for one in told["learners"]}
    status, _, err = lineage(played, capsys, f"{path}:3")
    assert status == 2
    assert "has no line 3" in err


def test_what_nobody_knows_is_said_and_is_exit_status_1(played, capsys):
    status, out, err = lineage(played, capsys, "no-such-rollout")
    assert (status, out) == (1, "")
    assert "nothing is known of no-such-rollout" in err


@pytest.fixture
def moved(played, tmp_path):
    """The run in another place, under another name."""
    runs = tmp_path / "runs"
    copytree(played.run.path.parent / "run-1", runs / "renamed", symlinks=True)
    (runs / "latest").symlink_to("renamed")
    return runs


def test_a_run_that_was_renamed_and_one_version_of_it_removed_is_followed_all_the_same(played, moved, capsys, monkeypatch):
    row = read_rows(played.run.path / "iteration_1" / "rows.arrow")[0]
    rmtree(moved / "renamed" / "models" / "version_1")
    assert leyden.cli.run(["models", "lineage", row.rollout_id, "--runs", str(moved), "--json"]) == 0
    learners = json.loads(capsys.readouterr().out)["learners"]
    control = {row.rollout_id for row in read_rows(played.run.path / "iteration_1" / "control.arrow")}
    assert {one["version"] for one in learners} == ({"version_2"} if row.rollout_id in control else set())
    monkeypatch.chdir(moved / "renamed")
    assert leyden.cli.run(["models", "show", "version_3", "--models", "models"]) == 0
    assert leyden.cli.run(["models", "lineage", "version_0", "--rows", "--models", "models"]) == 0
    assert leyden.cli.run(["models", "lineage", "version_2", "--rows", "--models", "models"]) == 0
    assert row.rollout_id not in control or row.rollout_id in capsys.readouterr().out


def test_rows_that_were_changed_since_are_not_shown_as_what_was_trained_on(played, capsys, tmp_path):
    runs = tmp_path / "runs"
    copytree(played.run.path.parent, runs, symlinks=True)
    rows = runs / "run-1" / "iteration_1" / "rows.arrow"
    rows.write_bytes(rows.read_bytes() + b"x")
    status = leyden.cli.run(["models", "lineage", "version_1", "--rows", "--run", "run-1", "--runs", str(runs)])
    assert status == 2
    assert "is not what version_1 was trained on" in capsys.readouterr().err
