"""A store that is offered twice what it can do, and what may not suffer from it.

    python benchmarks/overload.py --json FILE

A `leyden store` process on a SQLite file. First the peak: whole rollouts (queued, claimed, two spans of 1 KB, completed: four requests) by
16, 64 and 256 connections, each one after the other; the best of them. Then, each for ``--seconds``:

``overload``: rollouts begin at twice the peak's rate, whatever has become of those before, beside 1,000 leases that are kept by beats.
``polls``: 2,000 claims wait for a queue in which there is nothing, 1,000 leases are kept, and the best number of connections runs
rollouts as fast as they go.
``reader``: the same while another process's transaction reads one old snapshot of the file, for ``--reader-seconds``; without the polls.

Of each: rollouts finished a second against the peak, the time of a beat from its first try to its answer against a lease of 60 s, leases
that were lost though they were kept, the store's memory second by second with its slope over the second half, the largest
write-ahead log, and every answer by its status. The load has processes of its own (``overload_load``), on the same machine.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import machine
import psutil
from growth import Caller, running_store

HERE = Path(__file__).parent
LEASE = 60.0
PARTS = ("overload", "polls", "reader")


def main() -> int:
    parser = argparse.ArgumentParser(description="A store that is offered twice what it can do.")
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    parser.add_argument("--seconds", type=float, default=180.0, help="of overload, and of polls")
    parser.add_argument("--reader-seconds", type=float, default=300.0, help="that a reader holds its transaction")
    parser.add_argument("--peak-seconds", type=float, default=20.0, help="for each number of connections")
    parser.add_argument("--connections", type=int, nargs="+", default=[16, 64, 256], help="to find the peak with")
    parser.add_argument("--leases", type=int, default=1000)
    parser.add_argument("--polls", type=int, default=2000)
    parser.add_argument("--beat-every", type=float, default=15.0, help="seconds")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    args = parser.parse_args()
    found_on = machine.examine()
    print(machine.told(found_on), flush=True)
    with tempfile.TemporaryDirectory(prefix="leyden-overload-") as directory:
        database = Path(directory, "store.db")
        with running_store(str(database)) as (port, pid):
            watched = Watched(port, pid, database)
            peaks = {n: work(port, "closed", args.peak_seconds, connections=n)["per_second"] for n in args.connections}
            peak = max(peaks.values())
            print(f"peak {peak:.0f} rollouts/s: " + ", ".join(f"{n} connections {rate:.0f}/s" for n, rate in peaks.items()), flush=True)
            run = {"overload": overload, "polls": polls, "reader": read_for_long}
            parts = {name: run[name](watched, peaks, args) for name in args.parts}
            for name, part in parts.items():
                part["goodput"] = part["load"]["per_second"] / peak
                print(told(name, part), flush=True)
    found = {
        "machine": found_on,
        "asked": {name: value for name, value in vars(args).items() if name != "json"},
        "peaks": peaks,
        "parts": parts,
    }
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


# -- parts -------------------------------------------------------------------------------------------------------------


def overload(watched: Watched, peaks: dict[int, float], args: argparse.Namespace) -> dict[str, Any]:
    with watched.watching() as seen, beats(watched.port, args.seconds, args) as kept:
        load = work(watched.port, "open", args.seconds, rate=2 * max(peaks.values()))
    return {"load": load, "beats": kept, "store": seen}


def polls(watched: Watched, peaks: dict[int, float], args: argparse.Namespace) -> dict[str, Any]:
    with watched.watching() as seen, beats(watched.port, args.seconds, args) as kept:
        waiting: dict[str, Any] = {}
        with beside(waiting, watched.port, "polls", args.seconds, number=args.polls):
            load = work(watched.port, "closed", args.seconds, connections=best(peaks))
    return {"load": load, "beats": kept, "polls": waiting, "store": seen}


def read_for_long(watched: Watched, peaks: dict[int, float], args: argparse.Namespace) -> dict[str, Any]:
    with (
        watched.watching() as seen,
        beats(watched.port, args.reader_seconds, args) as kept,
        closing(sqlite3.connect(watched.file)) as reader,
    ):
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM meta").fetchone()
        load = work(watched.port, "closed", args.reader_seconds, connections=best(peaks))
        wal_held = watched.wal()
        reader.execute("ROLLBACK")
        work(watched.port, "closed", 1.0, connections=4)
    return {"load": load, "beats": kept, "store": seen, "wal_held": wal_held, "wal_after": watched.wal()}


def best(peaks: dict[int, float]) -> int:
    return max(peaks, key=lambda connections: peaks[connections])


# -- load --------------------------------------------------------------------------------------------------------------


def work(port: int, kind: str, seconds: float, **job: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with beside(found, port, kind, seconds, **job):
        pass
    return found


@contextmanager
def beats(port: int, seconds: float, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    found: dict[str, Any] = {}
    with beside(found, port, "leases", seconds, number=args.leases, beat_every=args.beat_every, lease=LEASE):
        yield found


@contextmanager
def beside(found: dict[str, Any], port: int, kind: str, seconds: float, **job: Any) -> Iterator[None]:
    """Load of that kind while the context is open, and until it is done: then ``found`` says what came of it."""
    running = subprocess.Popen([sys.executable, str(HERE / "overload_load.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert running.stdin is not None and running.stdout is not None
    try:
        running.stdin.write(json.dumps({"kind": kind, "port": port, "seconds": seconds, **job}) + "\n")
        running.stdin.flush()
        if kind in ("leases", "polls") and running.stdout.readline() != "@ready\n":
            raise SystemExit(f"{kind} did not begin")
        yield
        said, _ = running.communicate(timeout=seconds + 120)
        if running.returncode:
            raise SystemExit(f"{kind} failed")
        found.update(json.loads(said))
    finally:
        running.kill()
        running.wait()


# -- the store ---------------------------------------------------------------------------------------------------------


class Watched:
    """The store's process and file, looked at each second."""

    def __init__(self, port: int, pid: int, file: Path) -> None:
        self.port = port
        self.file = file
        self._process = psutil.Process(pid)

    @contextmanager
    def watching(self) -> Iterator[dict[str, Any]]:
        seen: dict[str, Any] = {"resident": [], "wal": []}
        ended = threading.Event()
        before, began = self._ended_badly(), self._process.cpu_times()

        def look() -> None:
            while not ended.wait(1.0):
                seen["resident"].append(self._process.memory_info().rss)
                seen["wal"].append(self.wal())

        looking = threading.Thread(target=look)
        looking.start()
        wall = time.perf_counter()
        try:
            yield seen
        finally:
            ended.set()
            looking.join()
        spent = self._process.cpu_times()
        seen["cores"] = (spent.user + spent.system - began.user - began.system) / (time.perf_counter() - wall)
        seen["slope"] = slope(seen["resident"][len(seen["resident"]) // 2 :]) * 60
        seen["lost"] = self._ended_badly() - before

    def wal(self) -> int:
        log = Path(f"{self.file}-wal")
        return log.stat().st_size if log.exists() else 0

    def _ended_badly(self) -> float:
        """Attempts whose lease ran out, of all that there were: here every one of them was kept."""
        lines = Caller(self.port).get("/metrics").decode().splitlines()
        return sum(float(line.split()[1]) for line in lines if line.startswith('leyden_store_attempts_ended_total{state="lost"}'))


def slope(values: list[int]) -> float:
    """Least squares, a step."""
    n = len(values)
    if n < 2:
        return 0.0
    middle, mean = (n - 1) / 2, sum(values) / n
    return sum((i - middle) * (value - mean) for i, value in enumerate(values)) / sum((i - middle) ** 2 for i in range(n))


def told(name: str, part: dict[str, Any]) -> str:
    load, kept, seen = part["load"], part["beats"], part["store"]
    refused = sum(n for answer, n in load["answers"].items() if answer.endswith((" 429", " 503")))
    low, high = min(seen["resident"]) >> 20, max(seen["resident"]) >> 20
    lines = [
        f"{name}: {load['per_second']:.0f} rollouts/s, {part['goodput']:.0%} of the peak; p50 {load['p50']:.2f} s, p99 {load['p99']:.2f} s",
        f"  beats p50 {kept['p50'] * 1e3:.0f} ms, p99 {kept['p99']:.2f} s, worst {kept['worst']:.2f} s, of a lease of {LEASE:.0f} s",
        f"  of leases that were kept: {kept['failed'].get('lost', 0)} verdicts of lost, {seen['lost']:.0f} attempts lost",
        f"  memory {low} to {high} MiB, {seen['slope'] / 2**20:+.1f} MiB a minute at the end; WAL up to {max(seen['wal']) >> 20} MiB",
        f"  {seen['cores']:.2f} cores, load {load['cores']:.2f}; refused {refused}: {load['answers']}",
        f"  given up: {load['failed']}; beats: {kept['answers']} {kept['failed']}",
    ]
    if "polls" in part:
        waiting = part["polls"]
        lines.append(f"  polls answered late by p50 {waiting['p50'] * 1e3:.0f} ms, p99 {waiting['p99']:.2f} s")
        lines.append(f"  polls: {waiting['answers']} {waiting['failed']}")
    if "wal_held" in part:
        lines.append(f"  WAL {part['wal_held'] >> 20} MiB at the reader's end, {part['wal_after'] >> 20} MiB soon after")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
