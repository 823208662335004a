"""Our store and runners beside Agent-lightning 0.3.0's, on the same work, in turn.

    python benchmarks/store.py --json FILE

Ours is ``leyden store`` on SQLite as it comes (synchronous=FULL): whatever is counted here was committed before its answer. Theirs is
``agl store``, or the store of ``Trainer``'s client-server strategy, in memory; runners are real processes on both sides.

* ``spans``: of 1 KB, over HTTP, from one process. "client": through each product's own client, as its runners send them: ours 500 to a
  request, 8 requests at once; theirs, whose ``add_many_spans`` is a loop, one to a request, 16 at once. "otlp": both take OTLP in protobuf
  at /v1/traces, here 500 to a request, 8 at once; nothing of theirs sends so, its exporter sends one span a request.
* ``rollouts``: whole ones (5 spans of OpenTelemetry's API, 1 reward), from queueing many until all have succeeded; and how many requests
  the runners made for one, as the store counted them. Their runners look for work all the time (5 s apart by default).
* ``latency``: from the call that queues a rollout, in another process, to the first line of its agent, in milliseconds, with idle runners.
* ``idle``: processor time of the store, of 16 runners that wait, and of what watches over them, in percent of one core. Theirs look for
  work every 5 s here, as they come: what they take for ``latency`` would cost them more.
* ``claims``: rollouts a second, claimed 1 and 16 in a request over HTTP by 16 connections of one process.
* ``postgres``: the same on PostgreSQL as it comes, by one replica of our store and by two; on one machine, which they share.

Each measurement is made of new processes and a new database; in each round both sides take their turn, every other round backwards. Where
their environment (``their_environment``) cannot be made, only ours is measured. Needs ``leyden[runners,postgres,test]``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import machine
from their_environment import DIRECTORY, THEIRS, their_environment

HERE = Path(__file__).parent
LIMIT = 180  # seconds for one measurement


@dataclass(frozen=True)
class Measurement:
    """``ours`` and ``theirs``: the jobs of both sides. ``unit``: of the number called ``name``. ``bar``: what that is to reach."""

    name: str
    unit: str
    ours: dict[str, Any]
    theirs: dict[str, Any] | None = None
    bar: Mapping[str, float] = field(default_factory=dict)


def main() -> int:
    parser = argparse.ArgumentParser(description="Our store beside Agent-lightning's.")
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    parser.add_argument("--theirs", type=Path, default=DIRECTORY, help="directory of their environment; made if it is not there")
    parser.add_argument("--only-ours", action="store_true")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of one measurement")
    parser.add_argument("--runners", type=int, default=2, help="processes of ours")
    parser.add_argument("--their-runners", type=int, default=4, help="processes of theirs; more were slower on 2 cores")
    parser.add_argument("--idle-runners", type=int, default=16)
    args = parser.parse_args()
    found_on = machine.examine()
    print(machine.told(found_on), flush=True)
    their_python = None if args.only_ours else their_environment(args.theirs)
    rows = []
    for part in args.only:
        for measurement in PARTS[part](args):
            row = {"part": part, **measure(measurement, their_python, args.rounds)}
            print(told(row), flush=True)
            rows.append(row)
    if args.json:
        found = {"leyden": metadata.version("leyden"), "theirs": THEIRS, "machine": found_on, "rows": rows}
        args.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


# -- what is measured --------------------------------------------------------------------------------------------------


def spans(args: argparse.Namespace) -> list[Measurement]:
    bars: dict[str, dict[str, float]] = {"client": {"least": 8000, "ratio": 20}, "otlp": {}}
    return [
        Measurement(f"spans, {form}", "per_second", job := {"part": "spans", "form": form, "seconds": args.seconds}, job, bar)
        for form, bar in bars.items()
    ]


def rollouts(args: argparse.Namespace) -> list[Measurement]:
    theirs = {"part": "rollouts", "n": round(40 * args.seconds), "runners": args.their_runners, "warm": 4 * args.their_runners}
    return [Measurement("rollouts", "per_second", _rollouts(args), theirs, {"ratio": 10, "most_requests": 2})]


def _rollouts(args: argparse.Namespace) -> dict[str, Any]:
    return {"part": "rollouts", "n": round(400 * args.seconds), "runners": args.runners, "concurrency": 16}


def latency(args: argparse.Namespace) -> list[Measurement]:
    ours = {"part": "latency", "samples": round(40 * args.seconds), "runners": 4}
    return [Measurement("latency", "p50_ms", ours, {**ours, "samples": round(8 * args.seconds)}, {"most_p50_ms": 10, "most_p99_ms": 50})]


def idle(args: argparse.Namespace) -> list[Measurement]:
    job = {"part": "idle", "seconds": 6 * args.seconds, "runners": args.idle_runners}
    return [Measurement(f"idle, {args.idle_runners} runners", "percent", job, job, {"most": 1})]


def claims(args: argparse.Namespace) -> list[Measurement]:
    return [
        Measurement(
            f"claims of {limit}",
            "per_second",
            _claims(args, limit),
            _claims(args, limit) | {"n": round(100 * args.seconds)},
            {"least": bar},
        )
        for limit, bar in ((1, 1000), (16, 10_000))
    ]


def _claims(args: argparse.Namespace, limit: int) -> dict[str, Any]:
    return {"part": "claims", "n": round((5000 if limit > 1 else 600) * args.seconds), "limit": limit, "at_once": 16}


def postgres(args: argparse.Namespace) -> list[Measurement]:
    jobs = {
        "spans": {"part": "spans", "form": "client", "seconds": args.seconds},
        "rollouts": _rollouts(args),
        "claims of 1": _claims(args, 1),
        "claims of 16": _claims(args, 16),
    }
    return [
        Measurement(
            f"PostgreSQL, {replicas} replica{'s' * (replicas > 1)}: {name}",
            "per_second",
            {**job, "database": "postgres", "replicas": replicas},
        )
        for name, job in jobs.items()
        for replicas in (1, 2)
    ]


PARTS = {part.__name__: part for part in (spans, rollouts, latency, idle, claims, postgres)}


# -- measuring ---------------------------------------------------------------------------------------------------------


def measure(measurement: Measurement, their_python: Path | None, rounds: int) -> dict[str, Any]:
    jobs = {"leyden": measurement.ours} | ({"agentlightning": measurement.theirs} if their_python and measurement.theirs else {})
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in jobs}
    for number in range(rounds):
        for side in list(jobs)[:: -1 if number % 2 else 1]:
            runs[side].append(run(side, their_python, jobs[side]))
    row: dict[str, Any] = {"name": measurement.name, "unit": measurement.unit, "bar": measurement.bar}
    for side, found in runs.items():
        numbers = [name for name, value in found[0].items() if isinstance(value, int | float)]
        row[side] = {name: spread([one[name] for one in found]) for name in numbers} | {"job": jobs[side], "last": found[-1]}
    if "agentlightning" in row:
        row["ratio"] = row["leyden"][measurement.unit]["median"] / row["agentlightning"][measurement.unit]["median"]
    return row


def run(side: str, their_python: Path | None, job: dict[str, Any]) -> dict[str, Any]:
    python, script = (sys.executable, "store_ours.py") if side == "leyden" else (str(their_python), "store_theirs.py")
    done = subprocess.run([python, str(HERE / script)], input=json.dumps(job), capture_output=True, text=True, check=False, timeout=LIMIT)
    said = [line[1:] for line in done.stdout.splitlines() if line.startswith("@")]
    if done.returncode or not said:
        raise SystemExit(f"{side}, {job}: {done.stderr.strip()[-800:]}")
    return json.loads(said[-1])  # type: ignore[no-any-return]


def spread(values: list[float]) -> dict[str, float]:
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def told(row: dict[str, Any]) -> str:
    """One line: medians, with minima and maxima."""

    def number(side: str, name: str) -> str:
        found = row[side][name]
        return f"{found['median']:.4g} ({found['min']:.4g} to {found['max']:.4g})"

    ours = ", ".join(f"{name} {number('leyden', name)}" for name in row["leyden"] if name not in ("job", "last"))
    line = f"{row['name']}: leyden {ours}"
    if "ratio" in row:
        line += f"; agentlightning {row['unit']} {number('agentlightning', row['unit'])}: {row['ratio']:.1f} x"
    return f"{line}; bar {row['bar']}" if row["bar"] else line


if __name__ == "__main__":
    sys.exit(main())
