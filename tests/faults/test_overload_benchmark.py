"""A small run of ``benchmarks/overload.py``: every part of the load has come, and the store was watched."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_small_run_has_every_part_of_the_load(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "overload.py"),
        "--json",
        str(found),
        "--seconds",
        "1.2",
        "--reader-seconds",
        "1.2",
    ]
    command += ["--peak-seconds", "0.2", "--connections", "4", "--beat-every", "0.3", "--leases", "32", "--polls", "20"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 0, done.stderr
    parts = json.loads(found.read_text())["parts"]
    assert list(parts) == ["overload", "polls", "reader"]
    for part in parts.values():
        assert part["load"]["finished"] > 0
        assert part["beats"]["answers"] == {"beat 200": sum(part["beats"]["answers"].values())}
        assert part["beats"]["failed"] == {"leases": 32, "lost": 0} and part["store"]["lost"] == 0
        assert part["store"]["resident"] and part["store"]["wal"]
    assert parts["polls"]["polls"]["answers"] == {"poll 200": 20}
    assert parts["reader"]["wal_held"] > 0
