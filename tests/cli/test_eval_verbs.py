"""``leyden eval`` and ``leyden diff`` as a person types them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from leyden import cli
from leyden.environments.evaldir import EvalDir
from leyden.errors import Unavailable, UsageError
from leyden.server.client import StoreClient

AGENTS = Path(__file__).parents[1] / "environments" / "run_agents.py"


def leyden(*args: str) -> int:
    return cli.run(list(args))


@pytest.fixture
def evals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "evals"


def read(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    return capsys.readouterr()


def test_eval_says_the_numbers_on_stdout_and_the_grid_on_stderr(evals: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert leyden("eval", f"{AGENTS}:easy", "-k", "2") == 0
    out, err = read(capsys)
    lines = out.splitlines()
    assert lines[0].startswith("pass rate 1.0000 (95 % ") and lines[1:3] == ["pass@2 1.0000, pass^2 1.0000", "scored 4 of 4 planned"]
    assert len(lines) == 4 and err.count("an agent talks") == 4
    assert (evals.parent / lines[3]).is_file() and "easy  k=2 · 4 attempts" in err and "██  2/2" in err

    assert leyden("eval", f"{AGENTS}:easy", "-k", "1", "--tasks", "t2", "--json") == 0
    found = json.loads(read(capsys)[0])
    assert (found["format"], found["env"], found["n_attempts"], found["tasks"][0]["id"]) == (1, "easy", 1, "t2")

    assert leyden("eval", "--list") == 0
    assert [line.split("\t")[1:5] for line in read(capsys)[0].splitlines()] == [
        ["easy", "2 × 2", "finished", "1.00"],
        ["easy", "1 × 1", "finished", "1.00"],
    ]
    assert leyden("eval", "--show", "@latest") == 0
    assert "all 1 attempts passed" in read(capsys)[0]


def test_a_dry_run_starts_nothing(evals: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert leyden("eval", f"{AGENTS}:easy", "-k", "4", "--dry-run", "--json") == 0
    found = json.loads(read(capsys)[0])
    assert (found["tasks"], found["k"], found["attempts"]) == (2, 4, 8) and found["env_fingerprint"].startswith("env1:")
    assert not evals.exists()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "which environment?"),
        ([f"{AGENTS}:nothing"], "has no 'nothing'"),
        ([f"{AGENTS}:sums"], "is no environment but a Agent"),
        ([f"{AGENTS}:easy", "-k", "0"], "k is a whole number from 1 on, not 0"),
        ([f"{AGENTS}:easy", "--tasks", "t9"], "no task 't9'"),
        ([f"{AGENTS}:easy", "--base-url", "http://127.0.0.1:1/v1"], "belong together"),
        ([f"{AGENTS}:easy", "--base-url", "http://127.0.0.1:1/v1", "--served-model", "m", "--api-key-env", "NOT_SET"], "has no NOT_SET"),
        ([f"{AGENTS}:easy", "--model", "nowhere"], "nowhere"),
        (["--resume", "@latest"], "no eval '@latest'"),
        (["--resume", "@latest", "--tasks", "t1"], "goes on as it was begun"),
        (["--resume", "@latest", "-k", "4"], "goes on as it was begun"),
        (["--show", "2026"], "no eval '2026'"),
    ],
)
def test_what_is_wrong_is_one_line_and_a_hint(evals: Path, capsys: pytest.CaptureFixture[str], args: list[str], said: str) -> None:
    assert leyden("eval", *args) == 2
    _, err = read(capsys)
    assert said in err.splitlines()[0] and err.splitlines()[1].startswith("hint: ") and len(err.splitlines()) == 2


def test_a_source_is_imported_once_and_before_anything_else_is_begun(
    evals: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    async def refuse(source: str, directory: Path, **_: Any) -> None:
        asked.append((source, directory))
        raise UsageError("no network today", "try again")

    monkeypatch.setattr("leyden.models.importer.import_in_child", refuse)
    monkeypatch.setattr("leyden.models.engines.choose", lambda config: "an engine")
    assert leyden("eval", f"{AGENTS}:easy", "--model", "smollm2", "--dry-run", "--json") == 0
    assert json.loads(read(capsys)[0])["model"] == "smollm2" and not asked
    assert leyden("eval", f"{AGENTS}:easy", "-k", "0", "--model", "smollm2") == 2
    assert not asked, "k is looked at before a model is fetched"
    assert leyden("eval", f"{AGENTS}:easy", "--model", "smollm2") == 2
    assert asked == [("smollm2", evals.parent / "models" / "smollm2")] and "import smollm2 into" in read(capsys)[1]
    assert EvalDir.all(evals) == []


def test_a_store_that_is_not_there_leaves_no_eval_behind(
    evals: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(store: StoreClient) -> None:
        raise Unavailable("the store does not answer", "start it")

    monkeypatch.setattr(StoreClient, "list_queues", away)
    assert leyden("eval", f"{AGENTS}:easy", "--store", "http://127.0.0.1:9") == 3
    assert "does not answer" in read(capsys)[1] and not evals.exists()
    assert leyden("eval", f"{AGENTS}:easy", "--store", "http://127.0.0.1:9", "--timeout", "5") == 2


def test_a_damaged_eval_is_listed_and_hides_no_other(evals: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert leyden("eval", f"{AGENTS}:easy", "-k", "1") == 0
    for name, text in (("20990101", "{"), ("20990102", '{"k": 3}')):
        (evals / name).mkdir()
        (evals / name / "eval.json").write_text(text)
    read(capsys)
    assert leyden("eval", "--list") == 0
    assert [line.split("\t")[3] for line in read(capsys)[0].splitlines()] == ["finished", "damaged", "damaged"]
    assert leyden("eval", f"{AGENTS}:easy", "--resume", "20990102") == 2
    assert "env_name is missing" in read(capsys)[1]


def test_a_run_that_could_not_be_scored_is_no_success(evals: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert leyden("eval", f"{AGENTS}:env", "-k", "6", "--tasks", "broken", "--concurrency", "2") == 3
    out, err = read(capsys)
    assert "scored 0 of 6 planned" in out and "stopped early: error-storm" in err and "first error: ValueError: no 0" in err


def test_ctrl_c_prints_the_line_that_goes_on_and_that_line_goes_on(evals: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gate = evals.parent / "gate"
    gate.touch()
    env = {**os.environ, "EVAL_GATE": str(gate)}
    command = [sys.executable, "-m", "leyden", "eval", f"{AGENTS}:gated", "-k", "2"]
    running = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while committed(evals) < 2:
        assert running.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 130 and out == ""
    (eval_id,) = [one.id for one in EvalDir.all(evals)]
    assert f"resume: leyden eval --resume {eval_id}" in err and "gated  k=2 · 2 attempts" in err
    gate.unlink()
    os.environ["EVAL_GATE"] = str(gate)
    try:
        assert leyden("eval", "--resume", eval_id[:-2]) == 0
    finally:
        del os.environ["EVAL_GATE"]
    assert "scored 4 of 4 planned" in read(capsys)[0]


def committed(evals: Path) -> int:
    import sqlite3

    for one in EvalDir.all(evals):
        if one.store.exists():
            with sqlite3.connect(f"file:{one.store}?mode=ro", uri=True) as conn:
                try:
                    return int(conn.execute("SELECT count(*) FROM rollouts WHERE finished_at IS NOT NULL").fetchone()[0])
                except sqlite3.OperationalError:  # the tables are not there yet
                    return 0
    return 0


def test_diff_tells_worse_from_better_by_its_exit_status(evals: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setenv("EVAL_GOOD", "1")
    assert leyden("eval", f"{AGENTS}:tuned", "-k", "1") == 0
    good = EvalDir.find(evals, "@latest").id
    monkeypatch.delenv("EVAL_GOOD")
    assert leyden("eval", f"{AGENTS}:tuned", "-k", "1") == 0
    bad = EvalDir.find(evals, "@latest").id
    read(capsys)
    assert leyden("diff", good, bad) == 1
    assert read(capsys)[0].rstrip().endswith("worse")
    assert leyden("diff", bad, good, "--json") == 0
    assert json.loads(read(capsys)[0])["verdict"] == "better"
    assert leyden("diff", str(EvalDir.find(evals, good).result), "@latest") == 1, "a file, and an eval"
    assert leyden("eval", f"{AGENTS}:easy", "-k", "1") == 0
    read(capsys)
    assert leyden("diff", good, "@latest") == 5
    assert "tasks" in read(capsys)[1].splitlines()[0]
    assert leyden("diff", good, "nowhere") == 2
