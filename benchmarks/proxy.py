"""Our LLM proxy beside Agent-lightning 0.3.0's and beside none, in front of an engine that answers at once.

    python benchmarks/proxy.py --json FILE

Every part is a process of its own: the engine, the proxy, the load. Ours records each call in a durable store on disk before its last
byte leaves: "leyden" in a ``leyden store``, as a ``Trainer`` has it; "inside" in one within its own process, as under ``leyden eval``.
Theirs records in its store in memory. Each prompt's last message is its own; what is before it, most of the prompt, is the same.
``cores`` is what the load took of the machine. "adds": times less those without a proxy, at as many connections. Theirs gets an
environment of its own (agentlightning 0.3.0, litellm 1.80.10, opentelemetry-sdk 1.39.1), made at the first run; where that fails, only
ours is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import machine
from their_environment import DIRECTORY, THEIRS, their_environment

HERE = Path(__file__).parent
PROMPTS = {"2 KB": 2 << 10, "64 KB": 64 << 10}
CALLS_EACH = 16  # of one attempt, when memory is looked at
ADDED = ("p50", "p99", "first_p50")
NUMBERS = ("per_second", "p50", "p99", "first_p50", "first_p99", "cores")


def main() -> int:
    parser = argparse.ArgumentParser(description="Our LLM proxy beside Agent-lightning's and beside none.")
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    parser.add_argument("--theirs", type=Path, default=DIRECTORY, help="directory of their environment; made if it is not there")
    parser.add_argument("--only-ours", action="store_true")
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--prompts", nargs="+", choices=list(PROMPTS), default=list(PROMPTS))
    parser.add_argument("--seconds", type=float, default=5.0, help="of one measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calls", type=int, default=100_000, help="during which memory is looked at; 0: not")
    args = parser.parse_args()
    found_on = machine.examine()
    print(machine.told(found_on), flush=True)
    their_python = None if args.only_ours else their_environment(args.theirs)
    rows = []
    with engine() as port:
        for prompt in args.prompts:
            for stream in (False, True):
                for connections in args.connections:
                    row = measure(port, their_python, prompt, stream, connections, args)
                    print(told(row), flush=True)
                    rows.append(row)
        memory = look_at_memory(port, args.calls) if args.calls else None
    if memory:
        print(f"memory over {args.calls} calls: " + ", ".join(f"{calls}: {size >> 20} MiB" for calls, size in memory["memory"]))
    if args.json:
        found = {"leyden": metadata.version("leyden"), "theirs": THEIRS, "machine": found_on, "rows": rows, "memory": memory}
        args.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


def measure(port: int, their_python: Path | None, prompt: str, stream: bool, connections: int, args: argparse.Namespace) -> dict[str, Any]:
    job = {"connections": connections, "prompt": PROMPTS[prompt], "stream": stream, "seconds": args.seconds}
    runs: dict[str, list[dict[str, Any]]] = {"none": [], "leyden": [], "inside": []} | ({"agentlightning": []} if their_python else {})
    loads = []
    for number in range(args.rounds):
        for side in list(runs)[:: 1 if number % 2 else -1]:
            loads.append(os.getloadavg()[0])
            if side == "none":
                found = load({**job, "port": port, "doors": [("/v1/chat/completions", "none")], "warm": 5})
            else:
                ours = side != "agentlightning"
                python = Path(sys.executable) if ours else their_python
                with proxy(python, side, port, max(connections, 256 if ours else 16)) as (door, _):
                    found = load({**job, **door, "warm": 5 if ours else 1})
            if found["errors"]:
                raise SystemExit(f"{side}: {found['errors']} of {found['calls']} calls failed: {found['example']}")
            runs[side].append(found)
    row: dict[str, Any] = {"prompt": prompt, "stream": stream, "connections": connections, "load_before": [min(loads), max(loads)]}
    for side, found in runs.items():
        row[side] = {name: spread([one[name] for one in found]) for name in NUMBERS}
    for side in ("leyden", "inside"):
        row |= {f"{side}_added_{name}": row[side][name]["median"] - row["none"][name]["median"] for name in ADDED}
    if their_python:
        theirs = row["agentlightning"]["per_second"]["median"]
        row |= {"ratio": row["leyden"]["per_second"]["median"] / theirs, "ratio_inside": row["inside"]["per_second"]["median"] / theirs}
    return row


def spread(values: list[float]) -> dict[str, float]:
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def told(row: dict[str, Any]) -> str:
    """One line of the table: requests a second as median (min to max), times in milliseconds."""

    def rate(side: str) -> str:
        found = row[side]["per_second"]
        return f"{found['median']:.0f} ({found['min']:.0f} to {found['max']:.0f})/s"

    form = "streamed" if row["stream"] else "whole"
    line = f"{row['prompt']} {form}, {row['connections']} conn.: leyden {rate('leyden')}, inside {rate('inside')}, none {rate('none')}"
    if "ratio" in row:
        line += f", agentlightning {rate('agentlightning')}: {row['ratio']:.1f} x, inside {row['ratio_inside']:.1f} x"
    for side in ("leyden", "inside"):
        p50, p99, first = (row[f"{side}_added_{name}"] * 1e3 for name in ADDED)
        line += f"; {side} adds p50 {p50:.2f} ms, p99 {p99:.2f} ms" + (f", first byte {first:.2f} ms" if row["stream"] else "")
    low, high = row["load_before"]
    return line + f"; load {low:.1f} to {high:.1f}, generator {row['leyden']['cores']['median']:.2f} cores"


def look_at_memory(port: int, calls: int) -> dict[str, Any]:
    with proxy(Path(sys.executable), "leyden", port, calls // CALLS_EACH + 16) as (door, pid):
        job = {"connections": 16, "prompt": PROMPTS["2 KB"], "stream": False, "calls": calls, "calls_each": CALLS_EACH, "pid": pid}
        return load({**job, **door, "warm": 0})


def load(job: dict[str, Any]) -> dict[str, Any]:
    done = subprocess.run([sys.executable, str(HERE / "proxy_load.py")], input=json.dumps(job), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the load failed: {done.stderr[-800:]}")
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@contextmanager
def engine() -> Iterator[int]:
    running = subprocess.Popen([sys.executable, str(HERE / "proxy_upstream.py")], stdout=subprocess.PIPE, text=True)
    try:
        assert running.stdout is not None
        yield int(running.stdout.readline())
    finally:
        running.kill()
        running.wait()


@contextmanager
def proxy(python: Path | None, side: str, port: int, attempts: int) -> Iterator[tuple[dict[str, Any], int]]:
    """Where it listens, with which keys; and its process id."""
    script, *where = {
        "leyden": ["proxy_ours.py", "apart"],
        "inside": ["proxy_ours.py", "inside"],
        "agentlightning": ["proxy_theirs.py"],
    }[side]
    with tempfile.TemporaryDirectory(prefix="leyden-bench-") as directory, open(Path(directory, "stderr"), "w+") as stderr:
        command = [str(python), str(HERE / script), str(port), directory, str(attempts), *where]
        running = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True)
        assert running.stdin is not None and running.stdout is not None
        try:
            said = next((line[1:] for line in running.stdout if line.startswith("@")), None)
            if said is None:
                stderr.seek(0)
                raise SystemExit(f"{side} did not start: {stderr.read()[-800:]}")
            yield json.loads(said), running.pid
        finally:
            running.stdin.close()
            try:
                running.wait(30)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait()


if __name__ == "__main__":
    sys.exit(main())
