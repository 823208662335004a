"""What a claim costs when only SQL is left of it: the bare statements, straight to ``sqlite3``, on our schema and this disk.

No HTTP, no JSON, no records, no keys, no queues but one, nobody waiting: what any store on this file would pay at least. ``--json FILE``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import machine

from leyden.record import new_id
from leyden.server.sqlstore import SQLStore
from leyden.types import NewRollout

PRAGMAS = ("journal_mode = WAL", "synchronous = FULL", "cache_size = -32768", "wal_autocheckpoint = 1000")  # as a store's
AT_ONCE = 64  # rows in one INSERT


def main() -> None:
    parser = argparse.ArgumentParser(description="The bare statements of a claim.")
    parser.add_argument("--rollouts", type=int, default=20_000, help="claimed, in each measurement")
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    args = parser.parse_args()
    found_on = machine.examine()
    print(machine.told(found_on), flush=True)
    found = []
    for batch in (1, 16, 256):
        n = min(args.rollouts, 2000 * batch)
        with tempfile.TemporaryDirectory(prefix="leyden-bench-") as directory:
            database = Path(directory, "leyden.db")
            asyncio.run(fill(database, n))
            wall, processor = claim_all(database, n, batch)
        found.append({"commit_of": batch, "wall_us": 1e6 * wall / n, "processor_us": 1e6 * processor / n})
        print(f"{batch} rollouts a commit: {1e6 * wall / n:.0f} µs a rollout, {1e6 * processor / n:.0f} of processor; {n / wall:.0f}/s")
    if args.json:
        args.json.write_text(json.dumps({"machine": found_on, "claims": found}, indent=2))


async def fill(database: Path, n: int) -> None:
    async with await SQLStore.open(database, sweep_every=None) as store:
        for start in range(0, n, 1000):
            await store.enqueue([NewRollout(input=i) for i in range(start, min(n, start + 1000))])


def claim_all(database: Path, n: int, batch: int) -> tuple[float, float]:
    """Seconds, and seconds of processor time, of ``n`` claims in commits of ``batch``."""
    conn = sqlite3.connect(database, isolation_level=None, cached_statements=256)
    for pragma in PRAGMAS:
        conn.execute(f"PRAGMA {pragma}").close()
    began, used = time.perf_counter(), time.process_time()
    for _ in range(-(-n // batch)):
        conn.execute("BEGIN IMMEDIATE")
        claim(conn, batch)
        conn.execute("COMMIT")
    wall, processor = time.perf_counter() - began, time.process_time() - used
    (claimed,) = conn.execute("SELECT count(*) FROM leases JOIN attempts USING (rollout_id)").fetchone()
    conn.close()
    if claimed != n:
        raise SystemExit(f"{claimed} of {n} were claimed")
    return wall, processor


def claim(conn: sqlite3.Connection, batch: int) -> None:
    now = time.time_ns() // 1000
    ready = "state = 'queued' AND queue = 'default' AND resources_id IS NULL ORDER BY priority, seq LIMIT ?"
    rows = conn.execute(f"SELECT * FROM rollouts WHERE {ready}", (batch,)).fetchall()
    ids = [row[1] for row in rows]
    changes = "state = 'running', lease_token = lease_token + 1, attempt = 1, revision = ?"
    conn.execute(f"UPDATE rollouts SET {changes} WHERE id IN ({', '.join('?' * len(ids))})", (now, *ids))
    leases = "leases (rollout_id, attempt, token, worker_id, queue, duration, expires_at, deadline_at)"
    attempts = "attempts (rollout_id, number, token, state, worker_id, request_id, started_at)"
    for some in parts(ids):
        insert(conn, leases, [(one, 1, 1, "w", "default", 60_000_000, now, now) for one in some])
    request = new_id(32)
    for some in parts(ids):
        insert(conn, attempts, [(one, 1, 1, "running", "w", request, now) for one in some])
    conn.execute("UPDATE counters SET n = n - ? WHERE state = 'queued'", (len(ids),))


def insert(conn: sqlite3.Connection, into: str, rows: list[tuple[str | int, ...]]) -> None:
    places = f"({', '.join('?' * len(rows[0]))})"
    conn.execute(f"INSERT INTO {into} VALUES {', '.join([places] * len(rows))}", [value for row in rows for value in row])


def parts(ids: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(ids), AT_ONCE):
        yield ids[start : start + AT_ONCE]


if __name__ == "__main__":
    main()
