"""An hour of light work with small faults: does the store grow, leak or lose anything?

    python benchmarks/soak.py --seconds 3600 --json FILE      (or: make soak)

A real ``leyden store`` on a SQLite file (synchronous as always, asking for tokens), two ``leyden runners`` with two processes each, a
driver that queues at a steady rate and waits, pages that are read, /metrics that is scraped, an OpenTelemetry exporter. All through it
one fault every 20 s, in an order that ``--seed`` gives: a runner is killed; a pool stands still for longer than its leases; all
connections of a pool are reset; rollouts are pruned; a backup is taken; and in the first fifth of the time the store is stopped (SIGTERM)
or killed (SIGKILL) and started again, and then no more, so that one life of it is long enough to be measured. The pool that is harmed is
always the first; the second one's processes live from the beginning to the end.

``slope``: megabytes an hour by least squares over resident memory, for each process's life, from 10 minutes after its start. A life with
less than 20 minutes after that is not judged: no runner that is harmed, and in a soak of under 35 minutes none at all. ``descriptors`` and
``threads``: medians of the first and the last quarter of the same time. At the end no more is queued, all is waited for, the store is
stopped, and its file is read: every rollout that was acknowledged is there, or was pruned; each has one attempt that counts, with its own
two rewards and as many spans as any other. Exit status 1 if one of these promises is broken; the files of the run are then kept.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import uvloop
from soak_checks import MB, Life, check_database, judge_lives, lost_attempts
from soak_load import BRIEF, Load
from soak_parts import Door, Pool, Store

from leyden.process import end_leftovers, new_marker
from leyden.server.client import StoreClient
from leyden.server.interface import TOKEN
from leyden.server.queries import Prune

EVERY = 10.0  # seconds between two looks at the processes
WARM_UP = 600.0  # seconds
RUNNERS = 2  # of each pool
LEASE = 5.0  # seconds
STALL = 8.0  # seconds
OLD = 20.0  # seconds after which a brief rollout is pruned
SETTLE = 120.0  # seconds for what is still queued at the end
RESTARTS_UNTIL = 0.2  # of the time
STORE_FAULTS = ("stop the store", "kill the store")
FAULTS = ("kill a runner", "stall a pool", "reset connections", "prune", "backup")


def main() -> int:
    parser = argparse.ArgumentParser(description="An hour of light work with small faults.")
    parser.add_argument("--seconds", type=float, default=3600.0, help="of load")
    parser.add_argument("--rate", type=float, default=24.0, help="rollouts queued a second")
    parser.add_argument("--seed", type=int, help="of the faults; default: a new one, which is printed")
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    args = parser.parse_args()
    seed = args.seed if args.seed is not None else random.randrange(1 << 32)
    directory = Path(tempfile.mkdtemp(prefix="leyden-soak-"))
    marker = new_marker()
    print(f"seed {seed}, {args.seconds:g} s, {args.rate:g} rollouts/s, files in {directory}", flush=True)
    try:
        found = uvloop.run(Soak(directory, marker, args.seconds, args.rate, seed).run())
    finally:
        end_leftovers(marker)
    print(f"{len(found['faults'])} faults, {found['store_starts'] - 1} restarts of the store, attempts {found['attempts']}")
    print(f"asked {found['asked']}; all of this took {found['busy_with_this']:.0%} of the machine")
    for promise, kept, told in found["verdicts"]:
        print(f"{'kept' if kept else 'NOT JUDGED' if kept is None else 'BROKEN'}: {promise}: {told}")
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")
    if any(kept is False for _, kept, _ in found["verdicts"]):
        return 1
    shutil.rmtree(directory)
    return 0


def plan(seconds: float, seed: int) -> list[tuple[float, str]]:
    """When which fault begins. Each comes once in a round; the store's come first, so that they come at all in a short soak."""
    chance = random.Random(seed)
    gap = min(20.0, seconds / 16)
    found: list[tuple[float, str]] = []
    at = gap
    while at < seconds - gap:
        first, rest = list(STORE_FAULTS), list(FAULTS)
        chance.shuffle(first)
        chance.shuffle(rest)
        for fault in (first if at < seconds * RESTARTS_UNTIL else []) + rest:
            if at < seconds - gap:
                found.append((at, fault))
            at += gap
    return found


class Soak:
    def __init__(self, directory: Path, marker: str, seconds: float, rate: float, seed: int) -> None:
        self._directory, self._marker = directory, marker
        self._seconds, self._rate, self._seed = seconds, rate, seed
        self._store = Store(directory, marker)
        self._lives: dict[tuple[str, int], Life] = {}
        self._pruned: Counter[str] = Counter()
        self._done: list[tuple[float, str]] = []
        self._revived = 0
        self._minutes: list[dict[str, Any]] = []
        self._chance = random.Random(seed)
        self._began = 0.0

    async def run(self) -> dict[str, Any]:
        token = self._make_token()
        await self._store.start()
        self._door = Door(self._store.port)
        await self._door.start()
        self._pools = [
            Pool(name, self._directory, self._marker, url, RUNNERS, LEASE, {TOKEN: token})
            for name, url in (("harmed runners", self._door.url), ("runners", self._store.url))
        ]
        self._client = StoreClient(self._store.url, 60.0, token)
        for pool in self._pools:
            await pool.start()
        while len(await self._client.list_workers()) < RUNNERS * len(self._pools):
            assert all(pool.alive for pool in self._pools), "a pool did not start: see its log"
            await asyncio.sleep(0.1)
        self._began = time.monotonic()
        busy = psutil.cpu_times()
        async with Load(self._store.url, token, self._rate, self._seed) as load:
            looking = asyncio.create_task(self._look(load))
            try:
                await self._harm(load)
                await load.stop()
                await self._settle()
                looking.cancel()
                await asyncio.wait({looking})
                if not looking.cancelled():
                    looking.result()
            finally:
                looking.cancel()
        share = _busy(busy, psutil.cpu_times())
        seconds = self._now()
        await self._client.close()
        ends = [await pool.stop() for pool in self._pools]
        await self._door.stop()
        ends.append(await self._store.stop())
        return self._report(load, share, seconds, ends)

    def _make_token(self) -> str:
        command = [sys.executable, "-m", "leyden", "token", "create", "soak", "--scope", "admin", "--database", str(self._store.database)]
        return subprocess.run(command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL).stdout.strip()

    def _now(self) -> float:
        return time.monotonic() - self._began

    # -- faults --------------------------------------------------------------------------------------------------------

    async def _harm(self, load: Load) -> None:
        for at, fault in [*plan(self._seconds, self._seed), (self._seconds, "")]:
            while (left := at - self._now()) > 0:
                load.check()
                await self._revive()
                await asyncio.sleep(min(left, 0.5))
            if fault:
                self._done.append((round(self._now(), 1), fault))
                await self._do(fault)

    async def _revive(self) -> None:
        """As systemd does. A pool ends when a runner of it has died five times in a row within a minute of its start."""
        if not self._pools[0].alive:
            self._revived += 1
            await self._pools[0].start()

    async def _do(self, fault: str) -> None:
        harmed = self._pools[0]
        match fault:
            case "stop the store":
                await self._store.restart(signal.SIGTERM)
            case "kill the store":
                await self._store.restart(signal.SIGKILL)
            case "kill a runner":
                harmed.kill_one(self._chance)
            case "stall a pool":
                await harmed.stall(STALL)
            case "reset connections":
                self._door.slam()
            case "prune":
                await self._prune()
            case "backup":
                await self._back_up()

    async def _prune(self) -> None:
        more = True
        while more:
            part = await self._client.prune(Prune(older_than=OLD, run_id=BRIEF))
            self._pruned.update(part.model_dump(exclude={"more"}))
            more = part.more

    async def _back_up(self) -> None:
        file = self._directory / "backup.db"
        command = [sys.executable, "-m", "leyden", "backup", str(file), "--database", str(self._store.database)]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise SystemExit(f"the backup failed: {done.stderr[-800:]}")
        file.unlink()

    async def _settle(self) -> None:
        """Until every rollout is final."""
        deadline = time.monotonic() + SETTLE
        while (counts := await self._client.count()).total > counts.final:
            if time.monotonic() > deadline:
                print(f"after {SETTLE:g} s there are rollouts that have not ended: {counts}", flush=True)
                return
            await asyncio.sleep(0.2)

    # -- looking -------------------------------------------------------------------------------------------------------

    async def _look(self, load: Load) -> None:
        minute, cpu = 0.0, psutil.cpu_times()
        while True:
            now = self._now()
            for part, pid in self._processes():
                self._lives.setdefault((part, pid), Life(part, pid, now)).look(now)
            if now >= minute:
                row = await self._row(load, now, _busy(cpu, psutil.cpu_times()))
                self._minutes.append(row)
                print(_told(row), flush=True)
                minute, cpu = minute + 60.0, psutil.cpu_times()
            await asyncio.sleep(EVERY - (self._now() - now))

    def _processes(self) -> list[tuple[str, int]]:
        assert self._store.child is not None
        found = [("store", self._store.child.pid)]
        for pool in self._pools:
            found += [(f"{pool.name}' parent", pool.parent), *((pool.name, pid) for pid in pool.runners())]
        return found

    async def _row(self, load: Load, now: float, busy: float) -> dict[str, Any]:
        latest = {part: life.samples[-1] for (part, _), life in self._lives.items() if life.samples}
        counts = await self._client.count()
        return {
            "at": round(now),
            "parts": {part: {"mb": rss / MB, "descriptors": fds, "threads": threads} for part, (_, rss, fds, threads) in latest.items()},
            "wal_mb": _megabytes(f"{self._store.database}-wal"),
            "database_mb": _megabytes(str(self._store.database)),
            "counts": counts.model_dump(exclude={"failures"}),
            "queued": sum(map(len, load.queued.values())),
            "pruned": self._pruned["rollouts"],
            "busy": busy,
        }

    def _report(self, load: Load, share: float, seconds: float, ends: list[int]) -> dict[str, Any]:
        lives = [life.sum_up(WARM_UP) for life in self._lives.values()]
        samples = [[life.part, life.pid, life.samples] for life in self._lives.values()]
        verdicts = judge_lives(lives) + check_database(self._store.database, load.queued, self._pruned, BRIEF)
        stops = [128 + signal.SIGTERM] * len(ends)
        verdicts.append(("every part stops in good order", ends == stops, f"exit statuses {ends}"))
        verdicts.append(("no part says a traceback", *_tracebacks(self._directory)))
        return {
            "leyden": metadata.version("leyden"),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
            "seed": self._seed,
            "seconds": round(seconds),
            "rate": self._rate,
            "busy": share,
            "busy_with_this": _own() / seconds / (os.cpu_count() or 1),
            "faults": self._done,
            "store_starts": self._store.starts,
            "pool_ended_and_started_again": self._revived,
            "asked": dict(load.done),
            "unanswered_scrapes": load.unanswered,
            "attempts": lost_attempts(self._store.database),
            "pruned": dict(self._pruned),
            "lives": lives,
            "minutes": self._minutes,
            "samples": samples,
            "verdicts": verdicts,
        }


def _megabytes(file: str) -> float:
    return os.path.getsize(file) / MB if os.path.exists(file) else 0.0


def _busy(before: Any, after: Any) -> float:
    """The share of the machine that was not idle."""
    total = sum(after) - sum(before)
    return 1.0 - (after.idle + after.iowait - before.idle - before.iowait) / total if total > 0 else 0.0


def _own() -> float:
    """Seconds of processor time that all of this has taken; its processes have ended."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _tracebacks(directory: Path) -> tuple[bool, str]:
    said = {log.name: log.read_text(errors="replace").count("Traceback") for log in directory.glob("*.log")}
    return not any(said.values()), ", ".join(f"{name}: {n}" for name, n in sorted(said.items()))


def _told(row: dict[str, Any]) -> str:
    each = [f"{name} {part['mb']:.1f} MB {part['descriptors']} fds {part['threads']} threads" for name, part in row["parts"].items()]
    parts = ", ".join(each)
    counts = " ".join(f"{n} {state}" for state, n in row["counts"].items() if n)
    sizes = f"log {row['wal_mb']:.1f} MB, database {row['database_mb']:.1f} MB"
    return f"{row['at']:5d} s: {parts}; {sizes}; {row['queued']} queued so far, {row['pruned']} pruned: {counts}; {row['busy']:.0%} busy"


if __name__ == "__main__":
    sys.exit(main())
