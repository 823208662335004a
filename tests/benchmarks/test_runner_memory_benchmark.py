"""The runner's memory benchmark runs what it says, and writes down what it saw."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "runner_memory.py"


def test_a_short_run_ends_all_its_rollouts_and_writes_what_it_saw(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = subprocess.run([sys.executable, SCRIPT, "--rollouts", "40", "--json", report], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "flush to the disk" in done.stdout
    [look] = json.loads(report.read_text())["looks"]
    assert look["mb"] > 0 and look["objects"] > 0
