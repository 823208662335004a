"""What the loop does with a candidate: promoted, rejected, or undecided; who serves then; and what is written down about it."""

from __future__ import annotations

import io
import json

import pytest
from instant_loop import SMALL, play
from rich.console import Console

import leyden.cli
from leyden.algorithm.collapse import CollapseConfig
from leyden.algorithm.dataset import read_rows
from leyden.algorithm.sft import steps
from leyden.algorithm.sft.algorithm import SFT
from leyden.algorithm.sft.history import read_history
from leyden.algorithm.sft.report import Board
from leyden.algorithm.sft.settings import SFTConfig
from leyden.algorithm.sft.summary import print_summary
from leyden.environments.gate import Budget, Gate
from leyden.errors import LeaseLost, UsageError
from leyden.models.registry import Registry
from leyden.types import Mode


def solves(share):
    """A reward by version: the share of tasks it solves, the same ones each time."""

    def rewards(version, task, mode):
        kind, number = task.split()
        if mode == Mode.TRAIN:
            return int(number) % 2
        return int(number) < share.get(version, 0.5) * (HELDOUT if kind == "test" else 8)

    return rewards


CONFIG = SFTConfig(selection=SMALL)
HELDOUT = 16


def decisions(played):
    return [iteration["decision"] for iteration in played.summary.as_dict()["iterations"]]


def test_good_is_promoted_wrong_is_rejected_equal_is_undecided_and_the_champion_keeps_serving(tmp_path, monkeypatch, capsys):
    share = {"version_0": 0.25, "version_1": 0.75, "version_2": 0.25, "version_3": 0.75}
    played = play(tmp_path, monkeypatch, solves(share), CONFIG.model_copy(update={"iterations": 3}), heldout=HELDOUT)
    assert decisions(played) == ["promote", "reject", "undecided"]
    assert played.registry.get("@champion").name == "version_1"
    assert [version.manifest.parent for version in played.registry.list()] == [None, "version_0", "version_1", "version_1"]
    # It collects with the champion each time.
    assert played.served == ["version_0", "version_1", "version_2", "version_1", "version_3"]

    # The manifest, the summary and the registry's history tell the same.
    history = played.registry.pointers.judgements
    assert [(said.candidate, said.champion, said.decision) for said in history] == [
        ("version_1", "version_0", "promote"), ("version_2", "version_1", "reject"), ("version_3", "version_1", "undecided"),
    ]  # fmt: skip
    summary = json.loads((played.run.path / "summary.json").read_text())
    for number, (iteration, said) in enumerate(zip(summary["iterations"], history, strict=True), 1):
        manifest = played.run.read_manifest(number, "promote")["outputs"]
        assert manifest["reason"] == said.reason == iteration["reason"]
        assert manifest["stages"] == said.verdict["stages"] == iteration["gate"]["stages"]
        rate = next(stage for stage in manifest["stages"] if stage["name"] == "pass rate")
        assert rate["numbers"]["tasks"] == HELDOUT
    assert summary["iterations"][1]["reason"].startswith("pass rate: version_2 is worse than version_1: 0.75 → 0.25")
    assert "found 80 % of the time" in summary["iterations"][2]["gate"]["power"]

    board = io.StringIO()
    print_summary(played.summary, Console(file=io.StringIO()), Board(Console(file=board, width=400)))
    assert "iteration 2: rejected. version_1 stays the champion." in board.getvalue()
    assert "iteration 3: undecided. version_1 stays the champion." in board.getvalue()
    assert "warning: 16 tasks are fewer than 128" in board.getvalue()

    # Back is one command.
    assert leyden.cli.run(["models", "rollback", "--models", str(played.run.models)]) == 0
    assert Registry(played.run.models).get("@champion").name == "version_0"

    # What the gate refused can be promoted by hand, and is called by its name.
    assert leyden.cli.run(["models", "promote", "version_2", "--models", str(played.run.models)]) == 0
    assert "note: the gate said reject: pass rate: version_2 is worse than version_1" in capsys.readouterr().err


def test_a_hard_gate_stops_a_better_version(tmp_path, monkeypatch):
    solve = solves({"version_0": 0.25, "version_1": 1.0})

    def rewards(version, task, mode):
        return {"reward": solve(version, task, mode), "reward.safety": 0.0 if (version, task) == ("version_1", "test 3") else 1.0}

    gate = Gate(safety={"safety": 1.0}, budgets={"tokens": Budget(ratio=2.0)}, regression_margin=0.2)
    played = play(tmp_path, monkeypatch, rewards, CONFIG.model_copy(update={"gate": gate}), heldout=HELDOUT, regression=8)
    assert decisions(played) == ["reject"]
    stages = {stage["name"]: stage["outcome"] for stage in played.summary.iterations[0].gate["stages"]}
    assert stages == {
        "coverage": "passed", "safety": "failed", "pass rate": "passed", "greedy": "passed", "stability": "no data", "recovery": "no data",
        "efficiency": "passed", "regression": "passed",
    }  # fmt: skip
    assert "2 of 40 attempts have a safety below 1" in played.summary.iterations[0].reason
    assert played.registry.pointers.champion == "version_0"


def test_nothing_is_promoted_that_was_to_be_measured_and_was_not(tmp_path, monkeypatch):
    solve = solves({})
    for name, gate, decision in (("asked", Gate(safety={"safety": 1.0}), "undecided"), ("not", Gate(), "promote")):
        played = play(tmp_path / name, monkeypatch, solve, CONFIG.model_copy(update={"gate": gate}), heldout=0)
        assert decisions(played) == [decision]
        assert played.registry.pointers.champion == {"undecided": "version_0", "promote": "version_1"}[decision]
    assert "whatever was trained" in SFT(CONFIG, str(tmp_path)).plan([{"input": 1}], [], "a list")["promotion"]


def test_several_attempts_a_task_are_compared_task_by_task(tmp_path, monkeypatch):
    config = CONFIG.model_copy(update={"evaluation_attempts": 3})
    played = play(tmp_path, monkeypatch, solves({"version_0": 0.25, "version_1": 0.75}), config, heldout=HELDOUT)
    assert decisions(played) == ["promote"]
    (_, after), stages = played.summary.versions[1], {stage["name"]: stage for stage in played.summary.iterations[0].gate["stages"]}
    assert (after.sampled.n, len(after.sampled.passed), after.greedy.n) == (16, 48, 16)
    assert stages["pass rate"]["numbers"]["tasks"] == HELDOUT
    assert stages["stability"]["outcome"] == "passed"


def test_the_control_arm_is_trained_on_as_many_rows_measured_and_never_promoted(tmp_path, monkeypatch):
    share = {"version_0": 0.125, "version_1": 0.5, "version_2": 1.0, "version_3": 0.5, "version_4": 0.5}
    config = CONFIG.model_copy(update={"random_control": True, "iterations": 2})
    played = play(tmp_path, monkeypatch, solves(share), config, heldout=HELDOUT)
    registry = played.registry
    assert [version.manifest.arm for version in registry.list()] == [None, None, "control", None, "control"]
    assert registry.get("@champion").name == "version_1"  # the control was better, and is none
    assert registry.get("version_3").manifest.parent == "version_1"
    assert registry.get("@latest").name == "version_3"
    selected, at_random = (read_rows(played.run.path / "iteration_1" / f"{name}.arrow") for name in ("rows", "control"))
    assert len(selected) == len(at_random) == played.summary.iterations[0].selection["kept"]
    assert {row.reward for row in selected} == {1.0}
    assert {row.reward for row in at_random} == {0.0, 1.0}
    control = played.summary.iterations[0].control
    assert [(arm["arm"], arm["version"]) for arm in control["arms"]] == [
        ("base", "version_0"), ("selected", "version_1"), ("random", "version_2"),
    ]  # fmt: skip
    assert (control["arms"][1]["difference"], control["arms"][2]["difference"]) == (0.375, 0.875)
    table = io.StringIO()
    print_summary(played.summary, Console(file=table, width=160), Board(Console(file=io.StringIO())))
    assert "selected rows beside as many at random" in table.getvalue()
    assert "selected against random at T=1: -0.50 on 16 tasks" in table.getvalue()
    assert read_history(played.run).pass_rates == {"version_0": 0.125, "version_1": 0.5, "version_3": 0.5}


ARMS = CONFIG.model_copy(update={"random_control": True}), solves({"version_0": 0.25, "version_1": 0.75, "version_2": 0.75})


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        return play(tmp_path_factory.mktemp("undisturbed"), patch, ARMS[1], ARMS[0])


@pytest.mark.parametrize("moment", ["1/train-control:done", "1/evaluate-version_2:started", "1/promote:done"])
def test_a_run_goes_on_with_its_control_arm_and_its_verdict(tmp_path, monkeypatch, undisturbed, moment):
    config, rewards = ARMS

    def die(name):
        if name == moment:
            raise LeaseLost("the driver died")

    with monkeypatch.context() as dying:
        dying.setattr(steps, "failpoint", die)
        with pytest.raises(LeaseLost):
            play(tmp_path, monkeypatch, rewards, config)
    played = play(tmp_path, monkeypatch, rewards, config)
    for one in (played, undisturbed):
        assert [version.manifest.arm for version in one.registry.list()] == [None, None, "control"]
        assert [move.champion for move in one.registry.pointers.history] == ["version_0", "version_1"]
        assert [said.decision for said in one.registry.pointers.judgements] == ["promote"]
    assert played.summary.as_dict()["iterations"][0]["control"] == undisturbed.summary.as_dict()["iterations"][0]["control"]
    assert list(played.run.models.glob(".version_*")) == []


def test_signs_of_collapse_are_written_down_and_stop_a_run_that_asks_for_it(tmp_path, monkeypatch):
    collapse = CollapseConfig(min_distinct=1.0, max_task_share=0.9, max_length_drift=1000)

    def rewards(version, task, mode):
        return 0.9 if mode == Mode.TRAIN and task == "train 0" else 1.0

    for action, trained in (("warn", True), ("stop", False)):
        config = CONFIG.model_copy(update={"collapse": collapse.model_copy(update={"action": action, "min_reward_spread": 0.2})})
        played = play(tmp_path / action, monkeypatch, rewards, config, heldout=0)
        guards = {guard["name"]: guard for guard in played.run.read_manifest(1, "select")["outputs"]["collapse"]}
        assert {name: guard["tripped"] for name, guard in guards.items()} == {
            "reward spread": True, "distinct answers": False, "length drift": False, "rows of one task": False,
        }  # fmt: skip
        assert guards["reward spread"]["threshold"] == 0.2
        assert "reward spread: rewards of 8 attempts spread by 0.033 (threshold 0.2)" in played.said
        assert (played.summary.iterations[0].candidate is not None) is trained
        assert played.summary.iterations[0].nothing_to_learn == (None if trained else "collapse")


def test_regression_tasks_are_not_trained_on_and_stand_in_the_plan(tmp_path):
    tasks = [{"input": i} for i in range(8)]
    sft = SFT(CONFIG, str(tmp_path), regression_dataset=tasks[:2])
    with pytest.raises(UsageError, match="2 tasks are both trained on and held out"):
        sft.check(tasks, [])
    plan = sft.plan(tasks[2:], [{"input": "x"}], "a list")
    assert "1 held out, 2 for regression" in plan["tasks"]
    assert "4 to measure the new version" in plan["each iteration"]
