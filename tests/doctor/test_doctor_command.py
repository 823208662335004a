"""``leyden doctor`` as a person or a script meets it."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import leyden.cli
from leyden.doctor import examination, orphans
from leyden.doctor.examination import check_before_run
from leyden.doctor.orphans import Orphan
from leyden.errors import UsageError
from leyden.process import MARKER, new_marker


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("LEYDEN_STORE", "LEYDEN_ENGINE_PYTHON", "LEYDEN_ENGINE_COMMAND", "LEYDEN_TRAIN_PYTHON"):
        monkeypatch.delenv(name, raising=False)


def doctor(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "leyden", "doctor", *args]
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)


def test_no_problem_is_status_0_and_every_finding_is_one_line(tmp_path: Path) -> None:
    done = doctor()
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert {line.split()[0] for line in lines} <= {"ok", "warning", "skipped", "→"}
    assert {"python:", "accelerator:", "engine:", "orphans:"} <= {line.split()[1] for line in lines}
    assert done.stderr.startswith("no problems")
    assert list(tmp_path.iterdir()) == []  # it has only looked


def test_a_problem_is_status_1_and_comes_with_its_fix() -> None:
    done = doctor("--store", "http://127.0.0.1:1", "--json")
    assert done.returncode == 1 and done.stderr == ""
    told = json.loads(done.stdout)
    assert (told["format"], told["ok"]) == (1, False)
    (found,) = [finding for finding in told["findings"] if finding["outcome"] == "problem"]
    assert found == {
        "check": "store", "outcome": "problem", "detail": "no store answers at http://127.0.0.1:1", "fix": "start one: store --port 4747",
    }  # fmt: skip


def test_the_interpreter_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEYDEN_ENGINE_PYTHON", "/no/such/python")
    told = json.loads(doctor("--json").stdout)
    assert "cannot start /no/such/python" in next(finding["detail"] for finding in told["findings"] if finding["check"] == "engine")


def test_two_ways_to_start_an_engine_are_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert leyden.cli.run(["doctor", "--engine-python", "a", "--engine-command", "b"]) == 2
    assert capsys.readouterr().err.startswith("error: --engine-python and --engine-command exclude each other")


@pytest.mark.parametrize(("env", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colour_is_for_terminals_that_want_it(env: dict[str, str], coloured: bool) -> None:
    ours, theirs = pty.openpty()
    clean = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | env
    process = subprocess.Popen([sys.executable, "-m", "leyden", "doctor"], stdout=theirs, stderr=subprocess.DEVNULL, env=clean)
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 4096):
            shown += chunk
    except OSError:  # how a terminal without a writer ends, on Linux
        pass
    finally:
        os.close(ours)
        process.wait()
    assert b"python:" in shown and (b"\033[" in shown) == coloured


@pytest.fixture
def orphan(monkeypatch: pytest.MonkeyPatch) -> subprocess.Popen[bytes]:
    """The only one there is: the machine's others are not this test's to end."""
    marker = new_marker()
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=os.environ | {MARKER: marker})
    found = [Orphan(psutil.Process(process.pid), 1, marker)]
    monkeypatch.setattr(orphans, "find_orphans", lambda: [one for one in found if one.process.is_running()])
    return process


def test_ending_orphans_asks_or_needs_yes(
    orphan: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    assert leyden.cli.run(["doctor", "--end-orphans"]) == 2
    assert "hint: leyden doctor --end-orphans --yes" in capsys.readouterr().err
    assert orphan.poll() is None
    assert leyden.cli.run(["doctor", "--end-orphans", "--yes"]) == 0
    assert "ended 1" in capsys.readouterr().err
    assert orphan.wait() == -signal.SIGTERM


def test_a_run_is_stopped_before_it_starts(make_model: Callable[..., Path], tmp_path: Path) -> None:
    check_before_run(runs=tmp_path / "runs", model=make_model())
    with pytest.raises(UsageError, match="which token ends a turn") as caught:
        check_before_run(runs=tmp_path / "runs", model=make_model("endless", eos=None))
    assert caught.value.hint


def test_a_run_is_not_refused_for_what_only_a_child_would_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def described(name: str) -> dict[str, Any]:
        versions = {name: "1.0", "mcp": "1.30.0", "leyden": "0.1.0"}
        return {"python": "3.11.7", "versions": versions, "requires": {name: ["mcp>=2"], "mcp": [], "leyden": []}, "vllm": True}

    monkeypatch.setattr(examination, "describe", lambda: described("vllm"))
    check_before_run(runs=tmp_path / "runs")
    monkeypatch.setattr(examination, "describe", lambda: described("openai-agents"))
    with pytest.raises(UsageError, match=r"needs mcp>=2, but 1\.30\.0 is installed"):
        check_before_run(runs=tmp_path / "runs")
