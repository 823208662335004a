"""What is wrong from the start costs one line and a hint, and starts nothing."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from leyden.process import MARKER, find_by_marker, new_marker

MATH = Path(__file__).parents[2] / "examples" / "math"
AGENT = f"{Path(__file__).with_name('parity_agent.py')}:agent"


def drive(script, directory, *args):
    marker = new_marker()
    command = [sys.executable, str(MATH / script), "--runs", str(directory / "runs"), *map(str, args)]
    env = os.environ | {MARKER: marker}
    done = subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert find_by_marker(marker) == []
    return done


def refused(done, directory, message):
    assert done.returncode == 2, done.stderr
    error, hint = done.stderr.splitlines()[-2:]
    assert error.startswith("error: ")
    assert message in error
    assert hint.startswith("hint: ")
    assert "Traceback" not in done.stderr
    assert not (directory / "runs").exists()


@pytest.fixture
def model(tmp_path):
    """Looks whole, without a weight in it: enough for what is checked before anything is started."""
    directory = tmp_path / "model"
    directory.mkdir()
    for name in ("config.json", "tokenizer_config.json", "tokenizer.json"):
        (directory / name).write_text("{}")
    (directory / "chat_template.jinja").write_text("x")
    (directory / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return directory


def test_unknown_agent(tmp_path, model):
    agent = AGENT.replace(":agent", ":agnt")
    refused(drive("sft_allinone.py", tmp_path, "--model", model, "--agent", agent), tmp_path, "has no 'agnt'")


def test_agent_that_raises_at_import(tmp_path, model):
    (tmp_path / "broken_agent.py").write_text("raise RuntimeError('no such planet')")
    done = drive("sft_allinone.py", tmp_path, "--model", model, "--agent", "broken_agent.py:agent")
    refused(done, tmp_path, "no such planet")


def test_port_taken(tmp_path, model):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = drive("sft_allinone.py", tmp_path, "--model", model, "--agent", AGENT, "--proxy-port", port)
    refused(done, tmp_path, f"port {port} is taken")


@pytest.mark.parametrize("name", ["./nowhere", "model/nowhere"])
def test_missing_model_directory(tmp_path, model, name):
    refused(drive("sft_allinone.py", tmp_path, "--model", name, "--agent", AGENT), tmp_path, "no model directory at")


def test_broken_model_directory(tmp_path, model):
    (model / "model.safetensors").write_bytes(b"torn")
    refused(drive("sft_allinone.py", tmp_path, "--model", model, "--agent", AGENT), tmp_path, "model.safetensors is damaged")


def test_what_the_doctor_finds_stops_a_run_before_it_starts(tmp_path, model):
    refused(drive("sft_allinone.py", tmp_path, "--model", model, "--agent", AGENT), tmp_path, "which token ends a turn")


def test_malformed_dataset(tmp_path, model):
    dataset = tmp_path / "tasks.jsonl"
    dataset.write_text(json.dumps({"input": "1 + 1", "target": 2}) + "\n{oops\n")
    done = drive("sft_allinone.py", tmp_path, "--model", model, "--agent", AGENT, "--dataset", dataset, "--heldout", 0)
    refused(done, tmp_path, "tasks.jsonl:2")


def test_empty_dataset(tmp_path, model):
    (tmp_path / "tasks.jsonl").write_text("")
    done = drive("sft_allinone.py", tmp_path, "--model", model, "--agent", AGENT, "--dataset", "tasks.jsonl", "--heldout", 0)
    refused(done, tmp_path, "no tasks")


def test_store_not_reachable(tmp_path, model):
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    done = drive("sft_algorithm.py", tmp_path, "--model", model, "--store", f"http://127.0.0.1:{port}")
    refused(done, tmp_path, f"no store answers at http://127.0.0.1:{port}")
    assert "store --port 4747" in done.stderr


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--mix", "nix", "unknown mix"),
        ("--preset", "demi", "no training preset"),
        ("--iterations", 0, "--iterations"),
        ("--context", 0, "--context"),
        ("--train", 0, "learn from"),
    ],
)
def test_values_that_are_none(tmp_path, model, option, value, message):
    refused(drive("sft_allinone.py", tmp_path, "--model", model, "--agent", AGENT, option, value), tmp_path, message)


def test_a_missing_extra_is_named(tmp_path, model, monkeypatch):
    from leyden.algorithm.sft import algorithm
    from leyden.errors import MissingExtra
    from leyden.trainer import Trainer

    monkeypatch.setattr(algorithm, "TRAIN_EXTRA", ("a_module_nobody_has",))
    with pytest.raises(MissingExtra) as caught:
        Trainer(algorithm=algorithm.SFT(model=str(model)), runs=tmp_path / "runs").fit(None, [1])
    assert caught.value.hint == "pip install 'leyden[train]'"
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("script", ["sft_allinone.py", "sft_algorithm.py"])
def test_a_dry_run_prints_the_plan_and_starts_nothing(tmp_path, script):
    done = drive(script, tmp_path, "--dry-run", "--train", 10, "--heldout", 5, "--iterations", 2)
    assert done.returncode == 0, done.stderr
    plan = done.stdout
    assert "10 to learn from, 5 held out" in plan
    assert "2, 50 rollouts in all" in plan  # 10 to measure version_0, then twice 10 to learn from and 10 to measure
    assert "smollm2, to be imported into models/smollm2" in plan
    assert not list(tmp_path.iterdir())
