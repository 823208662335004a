"""An export of 100,000 attempts: time, peak memory, rows; and the same bytes a second time.

    python benchmarks/exports.py --json FILE

A saved result is written first (``--attempts``, 8 a task, every third one failed, with personal data in some). Each format is then exported
from it twice, in a process of its own, whose peak resident memory is read from the kernel; an export of a tenth of the attempts beside it
shows what grows. ``start``: the peak of a process that has only imported what it needs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

K = 8
FORMATS = ("sft", "chat", "preference", "kto", "grouped", "sharegpt")


def main() -> int:
    parser = argparse.ArgumentParser(description="Export a large result, measure time and memory.")
    parser.add_argument("--attempts", type=int, default=100_000)
    parser.add_argument("--formats", nargs="+", default=FORMATS, choices=FORMATS)
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    parser.add_argument("--child", nargs=3, metavar=("RESULT", "FORMAT", "OUT"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(export(*args.child)))
        return 0
    with tempfile.TemporaryDirectory(prefix="leyden-exports-") as name:
        directory = Path(name)
        small, large = (write_result(directory / f"{n}.jsonl", n) for n in (args.attempts // 10, args.attempts))
        rows = []
        for format in args.formats:
            rows.append(row := measure(format, small, large, directory))
            print(told(row), flush=True)
    if args.json:
        versions = {"leyden": metadata.version("leyden"), "python": sys.version.split()[0]}
        args.json.write_text(json.dumps({"attempts": args.attempts, "k": K, "versions": versions, "rows": rows}, indent=2) + "\n")
    return 0


def told(row: dict[str, Any]) -> str:
    speed = f"{row['seconds']:6.1f} s  {row['attempts_a_second']:7.0f} attempts/s"
    peaks = f"peak {row['peak_mb']:.0f} MB (a tenth: {row['peak_mb_of_a_tenth']:.0f}, start: {row['start_mb']:.0f})"
    return f"{row['format']:11} {row['rows']:7} rows  {speed}  {peaks}"


def measure(format: str, small: Path, large: Path, directory: Path) -> dict[str, Any]:
    tenth, once, again = (in_child(result, format, directory / "out.jsonl") for result in (small, large, large))
    if once["sha256"] != again["sha256"] or once["sidecar"] != again["sidecar"]:
        raise SystemExit(f"{format}: the second export has other bytes")
    if once["candidates"] + once["unscored"] != once["attempts"]:
        raise SystemExit(f"{format}: the counters do not sum to the attempts")
    seconds = min(once["seconds"], again["seconds"])
    return {
        "format": format, "rows": once["rows"], "bytes": once["bytes"], "seconds": seconds, "attempts_a_second": once["attempts"] / seconds,
        "peak_mb": once["peak_mb"], "peak_mb_of_a_tenth": tenth["peak_mb"], "start_mb": once["start_mb"], "redacted": once["redacted"],
    }  # fmt: skip


def in_child(result: Path, format: str, out: Path) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", str(result), format, str(out)]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def export(result: str, format: str, out: str) -> dict[str, Any]:
    from leyden.environments.exports.options import ExportOptions
    from leyden.environments.exports.registry import format_named
    from leyden.environments.exports.writer import write_export

    start = _peak()
    began = time.perf_counter()
    report = write_export(result, out, format_named(format), ExportOptions(profile="none"))
    seconds = time.perf_counter() - began
    sidecar = hashlib.sha256(Path(f"{out}.meta.json").read_bytes()).hexdigest()
    return {
        "seconds": seconds, "peak_mb": _peak(), "start_mb": start, "rows": report.rows, "bytes": report.bytes, "sha256": report.sha256,
        "sidecar": sidecar, "candidates": report.n_candidates, "unscored": report.n_unscored, "redacted": dict(report.redacted),
        "attempts": report.n_candidates + report.n_unscored,
    }  # fmt: skip


def _peak() -> float:
    """MB resident, at most so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def write_result(path: Path, attempts: int) -> Path:
    """A saved result of text conversations of about 600 bytes."""
    header = {
        "format": 1, "kind": "leyden.environment-run", "env_name": "benchmark", "k": K, "duration_seconds": 1.0, "stopped_early": None,
        "env_fingerprint": {"digest": "env1:0", "components": {"tasks": "0"}},
        "policy_fingerprint": {"digest": "policy1:0", "components": {"model": "0"}},
        "run_id": "benchmark", "tasks": attempts // K,
    }  # fmt: skip
    with path.open("w") as file:
        file.write(json.dumps(header) + "\n")
        for task in range(attempts // K):
            for index in range(K):
                file.write(json.dumps(_line(task, index)) + "\n")
    return path


def _line(task: int, index: int) -> dict[str, Any]:
    number = task * K + index
    question = f"Task {task}: what is {task * 7919 % 10007} + {task * 104729 % 10007}? Answer with ### and the number."
    mail = f" I asked person{number}@example.org." if number % 50 == 0 else ""
    answer = f"Let me see.{mail} {'Step by step we add the digits from the right to the left. ' * 5}### {number}"
    messages = [{"role": "system", "content": "You are careful."}, {"role": "user", "content": question}]
    score = None if number % 100 == 99 else {"value": float(number % 3 != 0), "passed": number % 3 != 0}
    run = {"content": answer, "messages": [*messages, {"role": "assistant", "content": answer}], "generation_ids": [f"g{number}"]}
    attempt = {
        "index": index, "run": run, "score": score, "stop_reason": "completed" if score else "error", "duration_seconds": 0.1,
        "rollout_id": f"ro{number}", "attempt": 1, "error": None if score else "TimeoutError: 5 s",
    }  # fmt: skip
    first = {"input": question, "expected": str(number), "metadata": {}} if index == 0 else {}
    return {"task": f"t{task}", **first, "attempt": attempt}


if __name__ == "__main__":
    sys.exit(main())
