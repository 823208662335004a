"""A small run of ``benchmarks/growth.py``: all of it is done, and the numbers are whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_small_run_fills_compares_pages_and_prunes(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "growth.py"), "--json", str(found), "--rollouts", "2000", "--spans", "4000"]
    command += ["--rounds", "1", "--calls", "2", "--times", "1", "--seconds", "0.5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 0, done.stderr
    numbers = json.loads(found.read_text())
    assert set(numbers["latencies"]) == {"heartbeat 16", "claim 1", "claim 16", "complete", "enqueue 17"}
    assert all(row[side]["median"] > 0 for row in numbers["latencies"].values() for side in ("empty", "full"))
    pages = {(page["name"], page["page"]): page["records"] for page in numbers["pages"]}
    assert pages["rollouts by all", "first"] == pages["spans by model", "middle"] == pages["traces by all", "second"] == 100
    assert pages["rollouts by queue of old", "first"] == 2 and pages["rollouts by queue of none", "first"] == 0
    assert pages["spans by status error, of old", "first"] == 2 and pages["rollouts by id prefix", "first"] > 50
    assert numbers["pruning"]["pruned_alone"] > 0 and numbers["pruning"]["finished_beside"] > 0
    assert numbers["sizes"]["database"] > 4000 * 1000
