"""``run_rollouts`` beside agno's on the same work: tasks × attempts with agents that answer at once.

    python benchmarks/environments.py --agno-python PATH --json FILE

Two agents: a real one of each framework (OpenAI Agents SDK; agno.Agent) on a model object that answers at once, and the least that each
takes (a ``@leyden.rollout`` function; an object with ``arun``). "own" puts side by side what each was made for: our function, agno's
``Agent``. Ours keeps every attempt in a store on disk before it counts it; agno's
keeps them in memory. "alone" is the Agents SDK's own Runner on the same agent, as often, with no environment around it. Each run is a
process of its own; the sides take turns, and the medians are compared. Times are of the call alone, after one attempt that warms up.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SIDES = {"leyden": "environments_ours.py", "agno": "environments_agno.py"}


def main() -> int:
    parser = argparse.ArgumentParser(description="run_rollouts beside agno's on the same work.")
    parser.add_argument("--agno-python", type=Path, help="an interpreter that has agno; without it only ours is measured")
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("-k", type=int, default=8)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[4, 64])
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    pythons = {"leyden": Path(sys.executable)} | ({"agno": args.agno_python} if args.agno_python else {})
    rows = [measure(pythons, kind, concurrency, args) for kind in ("real", "bare") for concurrency in args.concurrency]
    rows += [measure({"leyden": pythons["leyden"]}, "alone", concurrency, args) for concurrency in args.concurrency]
    rows += own_agents(rows)
    for row in rows:
        print(told(row))
    if args.json:
        versions = {"leyden": metadata.version("leyden"), "python": sys.version.split()[0]}
        args.json.write_text(json.dumps({"tasks": args.tasks, "k": args.k, "versions": versions, "rows": rows}, indent=2) + "\n")
    return 0


def measure(pythons: dict[str, Path], kind: str, concurrency: int, args: argparse.Namespace) -> dict[str, Any]:
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in pythons}
    for number in range(args.rounds):
        for side in list(pythons)[:: 1 if number % 2 else -1]:
            command = [str(pythons[side]), str(HERE / SIDES[side]), kind, str(args.tasks), str(args.k), str(concurrency)]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
            if found["scored"] != args.tasks * args.k or found["pass_rate"] != 1.0:
                raise SystemExit(f"{side} did not do the work: {found}")
            runs[side].append(found)
    medians = {side: {name: statistics.median(run[name] for run in found) for name in ("wall", "cpu")} for side, found in runs.items()}
    return compared(kind, concurrency, medians)


def own_agents(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    seconds = {(row["agent"], row["concurrency"]): row["seconds"] for row in rows}
    return [
        compared("own", concurrency, {"leyden": seconds["bare", concurrency]["leyden"], "agno": found["agno"]})
        for (kind, concurrency), found in seconds.items()
        if kind == "real" and "agno" in found
    ]


def compared(kind: str, concurrency: int, medians: dict[str, dict[str, float]]) -> dict[str, Any]:
    row: dict[str, Any] = {"agent": kind, "concurrency": concurrency, "seconds": medians}
    if "agno" in medians:
        row["agno_over_leyden"] = {name: medians["agno"][name] / medians["leyden"][name] for name in ("wall", "cpu")}
    return row


def told(row: dict[str, Any]) -> str:
    if row["agent"] == "alone":
        times = row["seconds"]["leyden"]
        return f"the Agents SDK alone, {row['concurrency']} at once: {times['wall']:.2f} s (CPU {times['cpu']:.2f} s)"
    sides = ", ".join(f"{side} {times['wall']:.2f} s (CPU {times['cpu']:.2f} s)" for side, times in row["seconds"].items())
    ratio = row.get("agno_over_leyden")
    over = f"; agno / leyden: wall {ratio['wall']:.2f}, CPU {ratio['cpu']:.2f}" if ratio else ""
    return f"{row['agent']} agent, {row['concurrency']} at once: {sides}{over}"


if __name__ == "__main__":
    sys.exit(main())
