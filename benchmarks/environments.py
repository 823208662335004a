"""``run_rollouts`` beside agno's on the same work: tasks × attempts with agents that answer at once.

    python benchmarks/environments.py --agno-python PATH --json FILE

Three comparisons, each of one of our runs with one of agno's:

* "own agents": what each was made for, a ``@leyden.rollout`` function and an ``agno.Agent`` on a model object that answers at once;
* "agent frameworks": an agent of the OpenAI Agents SDK and an ``agno.Agent``, both on such a model;
* "least": the least that each takes, the same function and an object with ``arun``. agno then does next to nothing.

Ours keeps every attempt in a store on disk (fsync) before it counts it; agno's keeps them in memory. Beside them, what no environment can
be faster than: "sdk alone", the Agents SDK's own Runner on as many agents, and "rows alone", bare SQLite inserting the rows that a run
leaves. Each run is a process of its own, its times are of the call alone, after one attempt that warms up. In each round all take their
turn, every other round backwards; a ratio is of two runs of one round.
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
SIDES = {"leyden": HERE / "environments_ours.py", "agno": HERE / "environments_agno.py"}
RUNS = (("leyden", "function"), ("leyden", "sdk"), ("leyden", "sdk alone"), ("leyden", "rows alone"), ("agno", "agent"), ("agno", "object"))
PAIRS = {"own agents": ("function", "agent"), "agent frameworks": ("sdk", "agent"), "least": ("function", "object")}  # ours, agno's
TIMES = ("wall", "cpu")


def main() -> int:
    parser = argparse.ArgumentParser(description="run_rollouts beside agno's on the same work.")
    parser.add_argument("--agno-python", type=Path, help="an interpreter that has agno; without it only ours is measured")
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("-k", type=int, default=8)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[4, 64])
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    rows = [row for concurrency in args.concurrency for row in measure(concurrency, args)]
    for row in rows:
        print(told(row))
    if args.json:
        versions = {"leyden": metadata.version("leyden"), "python": sys.version.split()[0]}
        args.json.write_text(json.dumps({"tasks": args.tasks, "k": args.k, "versions": versions, "rows": rows}, indent=2) + "\n")
    return 0


def measure(concurrency: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    pythons = {"leyden": Path(sys.executable)} | ({"agno": args.agno_python} if args.agno_python else {})
    found: dict[tuple[str, str], list[dict[str, float]]] = {run: [] for run in RUNS if run[0] in pythons}
    for number in range(args.rounds):
        for side, kind in list(found)[:: -1 if number % 2 else 1]:
            command = [str(pythons[side]), str(SIDES[side]), kind, str(args.tasks), str(args.k), str(concurrency)]
            seconds = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
            if seconds["scored"] != args.tasks * args.k or seconds["pass_rate"] != 1.0:
                raise SystemExit(f"{side} did not do the work: {seconds}")
            found[side, kind].append(seconds)
    rows: list[dict[str, Any]] = [
        {"side": side, "agent": kind, "concurrency": concurrency, "seconds": {time: spread([run[time] for run in runs]) for time in TIMES}}
        for (side, kind), runs in found.items()
    ]
    if "agno" in pythons:
        rows += [compared(name, found["leyden", ours], found["agno", theirs], concurrency) for name, (ours, theirs) in PAIRS.items()]
    return rows


def compared(name: str, ours: list[dict[str, float]], theirs: list[dict[str, float]], concurrency: int) -> dict[str, Any]:
    ratios = {time: spread([their[time] / our[time] for our, their in zip(ours, theirs, strict=True)]) for time in TIMES}
    return {"pair": name, "concurrency": concurrency, "agno_over_leyden": ratios}


def spread(numbers: list[float]) -> dict[str, float]:
    return {"min": min(numbers), "median": statistics.median(numbers), "max": max(numbers)}


def told(row: dict[str, Any]) -> str:
    kind, unit = ("agno_over_leyden", "") if "pair" in row else ("seconds", " s")
    times = "; ".join(
        f"{time} {of['median']:.2f}{unit} ({of['min']:.2f}–{of['max']:.2f})" for time, of in row[kind].items()
    )  # fmt: skip
    name = f"agno / leyden, {row['pair']}" if "pair" in row else f"{row['side']}, {row['agent']}"
    return f"{row['concurrency']:>3} at once  {name:<34} {times}"


if __name__ == "__main__":
    sys.exit(main())
