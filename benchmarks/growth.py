"""What a store with 1,000,000 finished rollouts and 2,000,000 spans costs, beside an empty one on the same machine.

    python benchmarks/growth.py --json FILE

Both are `leyden store` processes, asked over HTTP. The full one is filled by ``growth_fill``: rows of the form the store writes, put
straight into its tables. Then, in turn on both, with 300 rollouts queued and 200 leases held: the time of a claim of 1 and of 16, of a
beat for 16 leases, of an enqueue of 17 and of an ending. Then each filter of the lists of rollouts, of spans and of traces on the full
one: the first page, one from the middle, the last, each asked ``--times`` times; ``ms`` is the median over those. Pages hold 100 records;
``page_1000``: one of the default length. At last rollouts with two spans and a reward are run by 64 connections as fast as they go, alone
and while another prunes what is older than a day, one call after the other. PostgreSQL: ``--database URL``, where two new schemas are made.
"""

from __future__ import annotations

import argparse
import itertools
import json
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import machine

QUEUED, HELD = 300, 200
RUNS = 100  # of what is filled
PAGE = 100
CONNECTIONS = 64
LOAD = Path(__file__).parent / "overload_load.py"
LEASE = 600.0


def main() -> int:
    parser = argparse.ArgumentParser(description="A full store beside an empty one.")
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    parser.add_argument("--rollouts", type=int, default=1_000_000)
    parser.add_argument("--spans", type=int, default=2_000_000)
    parser.add_argument("--database", help="postgresql://… to make two schemas in; default: two SQLite files")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=100, help="of each kind, on each store, in a round")
    parser.add_argument("--times", type=int, default=5, help="that each page is asked for")
    parser.add_argument("--seconds", type=float, default=15.0, help="of running rollouts, alone and beside a prune")
    args = parser.parse_args()
    found_on = machine.examine()
    print(machine.told(found_on), flush=True)
    from growth_fill import fill  # here: overload.py needs none of it

    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="leyden-growth-")))
        empty, full = databases(directory, args.database)
        filled = fill(full, args.rollouts, args.spans, RUNS)
        print(f"filled with {args.rollouts} rollouts and {args.spans} spans in {filled:.0f} s", flush=True)
        full_port, _ = stack.enter_context(running_store(full))
        empty_port, _ = stack.enter_context(running_store(empty))
        sizes = sizes_of(full_port)
        if sizes:
            print(f"file {sizes['database'] / 1e9:.2f} GB, {sizes['database'] / args.rollouts:.0f} bytes a rollout with all of its own")
        latencies = compare(empty_port, full_port, args.rounds, args.calls)
        for name, row in latencies.items():
            print(
                f"{name}: empty {told(row['empty'])}, full {told(row['full'])}: {row['ratio']:.2f} x (p99 {row['ratio_p99']:.2f} x)",
                flush=True,
            )
        pages = ask_for_pages(Caller(full_port), args.times)
        for name, of_listing in itertools.groupby(pages, lambda page: page["name"]):
            print(f"{name}: " + ", ".join(f"{page['page']} {page['ms']:.1f}" for page in of_listing) + " ms", flush=True)
        slowest = max((page for page in pages if page["records"] <= PAGE), key=lambda page: page["ms"])
        print(f"slowest page of {PAGE}: {slowest['name']}, {slowest['page']}: {slowest['ms']:.1f} ms", flush=True)
        pruning = run_and_prune(full_port, args.seconds)
        print(
            f"finished alone {pruning['finished_alone']:.0f}/s, beside a prune {pruning['finished_beside']:.0f}/s,"
            f" pruned meanwhile {pruning['pruned_beside']:.0f}/s, alone {pruning['pruned_alone']:.0f}/s",
            flush=True,
        )
    found = {
        "machine": found_on,
        "rollouts": args.rollouts, "spans": args.spans, "dialect": "postgresql" if args.database else "sqlite",
        "fill_seconds": filled, "sizes": sizes, "latencies": latencies, "pages": pages, "pruning": pruning,
    }  # fmt: skip
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


# -- stores and callers ------------------------------------------------------------------------------------------------


def databases(directory: Path, url: str | None) -> tuple[str, str]:
    """Two that are empty."""
    if url is None:
        return str(directory / "empty.db"), str(directory / "full.db")
    import psycopg

    made = []
    with psycopg.connect(url, autocommit=True) as conn:
        for name in ("empty", "full"):
            schema = f"growth_{name}_{secrets.token_hex(4)}"
            conn.execute(f"CREATE SCHEMA {schema}")
            made.append(f"{url}{'&' if '?' in url else '?'}options=-csearch_path%3D{schema}")
    return made[0], made[1]


@contextmanager
def running_store(database: str) -> Iterator[tuple[int, int]]:
    """A ``leyden store`` process on ``database``: its port and its process id."""
    with tempfile.TemporaryDirectory(prefix="leyden-store-") as directory, open(Path(directory, "log"), "w+") as log:
        ready = Path(directory, "ready.json")
        command = [sys.executable, "-m", "leyden", "store", "--port", "0", "--database", database, "--ready-file", str(ready)]
        running = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            while not ready.exists():
                if running.poll() is not None:
                    log.seek(0)
                    raise SystemExit(f"the store did not start: {log.read()[-800:]}")
                time.sleep(0.02)
            yield json.loads(ready.read_text())["port"], running.pid
        finally:
            running.send_signal(signal.SIGTERM)
            try:
                running.wait(30)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait()


class Caller:
    """One connection, one request after the other."""

    def __init__(self, port: int) -> None:
        self._http = HTTPConnection("127.0.0.1", port, timeout=60)

    def post(self, path: str, body: Any) -> Any:
        return self.timed(path, body)[1]

    def timed(self, path: str, body: Any) -> tuple[float, Any]:
        """Seconds until the answer was read whole, and what it holds."""
        data = json.dumps(body).encode()
        began = time.perf_counter()
        self._http.request("POST", path, data, {"content-type": "application/json"})
        answer = self._http.getresponse()
        content = answer.read()
        took = time.perf_counter() - began
        if answer.status >= 300:
            raise SystemExit(f"{path}: {answer.status} {content[:400]!r}")
        return took, json.loads(content)

    def get(self, path: str) -> bytes:
        self._http.request("GET", path)
        return self._http.getresponse().read()


def sizes_of(port: int) -> dict[str, float]:
    """Bytes, as its metrics say; nothing for PostgreSQL."""
    lines = Caller(port).get("/metrics").decode().splitlines()
    found = {line.split()[0]: float(line.split()[1]) for line in lines if line.startswith("leyden_store_") and "_bytes " in line}
    names = {"database": "leyden_store_database_bytes", "wal": "leyden_store_wal_bytes"}
    return {short: found[name] for short, name in names.items() if name in found}


# -- what a runner does, on both ---------------------------------------------------------------------------------------


class Runner:
    """With its share of what is queued and held."""

    def __init__(self, port: int) -> None:
        self._caller = Caller(port)
        self.id = f"w-{secrets.token_hex(8)}"
        self.refs: list[dict[str, Any]] = []
        self.times: dict[str, list[float]] = {}

    def prepare(self) -> None:
        self.call("register", "/v1/workers", {"worker_id": self.id, "name": "growth", "capacity": HELD})
        self.call("prepare", "/v1/rollouts", enqueuing(QUEUED + HELD))
        while len(self.refs) < HELD:
            self.refs += self.claim("prepare", min(50, HELD - len(self.refs)))

    def work(self, calls: int) -> None:
        for _ in range(calls):
            n = len(self.times.get("heartbeat 16", ())) * 16 % (HELD - 16)
            beat = {"worker_id": self.id, "leases": self.refs[n : n + 16]}
            verdicts = self.call("heartbeat 16", "/v1/leases/heartbeat", beat)
            assert verdicts == ["held"] * 16, verdicts
            for limit in (1, 16):
                refs = self.claim(f"claim {limit}", limit)
                assert len(refs) == limit
                for ref in refs:
                    self.call("complete", "/v1/leases/complete", {"ref": ref, "rewards": [{"value": 1.0}]})
            self.call("enqueue 17", "/v1/rollouts", enqueuing(17))

    def claim(self, name: str, limit: int) -> list[dict[str, Any]]:
        asked = {"worker_id": self.id, "limit": limit, "lease_seconds": LEASE, "request_id": secrets.token_hex(8)}
        return [lease["ref"] for lease in self.call(name, "/v1/leases/claim", asked)]

    def call(self, name: str, path: str, body: Any) -> Any:
        took, answer = self._caller.timed(path, body)
        self.times.setdefault(name, []).append(took)
        return answer


def enqueuing(n: int) -> dict[str, Any]:
    new = {"input": {"question": "What is 12 + 30?", "answer": 42}, "run_id": "run-now", "iteration": 0}
    return {"rollouts": [{**new, "idempotency_key": f"k-{secrets.token_hex(16)}"} for _ in range(n)]}


def compare(empty_port: int, full_port: int, rounds: int, calls: int) -> dict[str, Any]:
    """In turn on both; the median of each round's medians."""
    runners = {"empty": Runner(empty_port), "full": Runner(full_port)}
    for runner in runners.values():
        runner.prepare()
        runner.work(5)
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for number in range(rounds):
        for side in list(runners)[:: 1 if number % 2 else -1]:
            runners[side].times.clear()
            runners[side].work(calls)
            for name, times in runners[side].times.items():
                times.sort()
                found.setdefault(name, {}).setdefault(side, []).append((statistics.median(times), times[len(times) * 99 // 100]))
    return {name: _beside(sides) for name, sides in found.items()}


def _beside(sides: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for side, rounds in sides.items():
        medians, tails = zip(*rounds, strict=True)
        row[side] = {"min": min(medians), "median": statistics.median(medians), "max": max(medians), "p99": statistics.median(tails)}
    row["ratio"] = row["full"]["median"] / row["empty"]["median"]
    row["ratio_p99"] = row["full"]["p99"] / row["empty"]["p99"]
    return row


def told(row: dict[str, float]) -> str:
    return f"{row['median'] * 1e3:.2f} ms ({row['min'] * 1e3:.2f} to {row['max'] * 1e3:.2f}, p99 {row['p99'] * 1e3:.2f})"


# -- pages -------------------------------------------------------------------------------------------------------------


@dataclass
class Listing:
    """One question, and how a page of it is asked for behind a record."""

    name: str
    path: str
    query: dict[str, Any]
    cursor: Callable[[dict[str, Any]], str] = field(default=lambda record: str(record["id"]))
    backwards: bool = True  # it can be asked for from the other end


def listings(caller: Caller) -> Iterator[Listing]:
    rollouts, spans, traces = "/v1/rollouts/query", "/v1/spans/query", "/v1/traces/query"
    (oldest,) = caller.post(rollouts, {"limit": 1, "run_id": "run-0"})
    (newest,) = caller.post(rollouts, {"limit": 1, "newest_first": True, "run_id": f"run-{RUNS - 1}"})
    start, end = oldest["created_at"], newest["created_at"]
    early, late = start + (end - start) // 3, end - (end - start) // 3
    filters: dict[str, dict[str, Any]] = {
        "all": {},
        "run": {"run_id": f"run-{RUNS // 2}"},
        "run and iteration": {"run_id": f"run-{RUNS // 2}", "iteration": 9},
        "run and state": {"run_id": f"run-{RUNS // 2}", "state": "failed"},
        "run, iteration, mode, state": {"run_id": f"run-{RUNS // 2}", "iteration": 9, "mode": "val", "state": "succeeded"},
        "iteration": {"iteration": 3},
        "iteration of none": {"iteration": 77},
        "mode": {"mode": "val"},
        **{f"state {state}": {"state": state} for state in ("queued", "running", "succeeded", "failed", "cancelled")},
        "state scheduled (none)": {"state": "scheduled"},
        "queue": {"queue": "default"},
        "queue of old": {"queue": "eval"},
        "queue of none": {"queue": "nobody"},
        "group": {"group": "group-77"},
        "failure": {"failure": "tool"},
        "failure of none": {"failure": "verifier"},
        "queue and state": {"queue": "eval", "state": "failed"},
        "id prefix": {"id_prefix": "ro-7"},
        "time": {"created_from": early, "created_to": late},
        "time and state": {"created_from": early, "created_to": late, "state": "cancelled"},
    }
    for name, query in filters.items():
        yield Listing(f"rollouts by {name}", rollouts, query)
    yield Listing("rollouts changed", rollouts, {"changed_after": early}, backwards=False)
    of_spans: dict[str, dict[str, Any]] = {
        "all": {},
        "rollout": {"rollout_id": newest["id"]},
        "attempt": {"rollout_id": newest["id"], "attempt": 1},
        "trace": {"trace_id": "0" * 12 + newest["id"][3:]},
        "name": {"name": "chat policy"},
        "name of old": {"name": "execute_tool search"},
        "name of none": {"name": "nothing"},
        "operation": {"operation": "execute_tool"},
        "operation of none": {"operation": "embeddings"},
        "model": {"model": "policy"},
        "model of old": {"model": "policy-0"},
        "status": {"status": "unset"},
        "status error, of old": {"status": "error"},
        "status of none": {"status": "ok"},
        "name and status": {"name": "execute_tool search", "status": "error"},
        "operation and model": {"operation": "chat", "model": "policy-0"},
        "time": {"received_from": early, "received_to": late},
    }
    for name, query in of_spans.items():
        yield Listing(f"spans by {name}", spans, query, lambda record: f"{record['trace_id']}-{record['span_id']}")
    by_trace = {"all": {}, "rollout": {"rollout_id": newest["id"]}, "id prefix": {"id_prefix": "0" * 12 + "7"}}
    by_trace["time"] = {"received_from": early, "received_to": late}
    for name, query in by_trace.items():
        yield Listing(f"traces by {name}", traces, query, lambda record: str(record["trace_id"]), backwards=False)


def ask_for_pages(caller: Caller, times: int) -> list[dict[str, Any]]:
    found = []
    for listing in listings(caller):
        queries = {"first": listing.query}
        first = caller.post(listing.path, {**listing.query, "limit": PAGE})
        if len(first) == PAGE:
            queries["second"] = {**listing.query, "after": listing.cursor(first[-1])}
            if (middle := _middle(caller, listing)) is not None:
                queries["middle"] = {**listing.query, "after": listing.cursor(middle)}
        if listing.backwards:
            queries["newest"] = {**listing.query, "newest_first": True}
            last = caller.post(listing.path, {**listing.query, "newest_first": True, "limit": PAGE // 2})
            if last:
                queries["last"] = {**listing.query, "after": listing.cursor(last[-1])}
        for page, query in queries.items():
            found.append(_ask(caller, listing, page, {**query, "limit": PAGE}, times))
        if not listing.name.count(" by ") or listing.name.endswith(" by all"):
            found.append(_ask(caller, listing, "page_1000", {**listing.query, "limit": 1000}, times))
    return found


def _middle(caller: Caller, listing: Listing) -> dict[str, Any] | None:
    """A record that stands somewhere in the middle, whatever the filter."""
    if listing.name.endswith(" by id prefix"):
        prefix = listing.query["id_prefix"] + "8"
        return next(iter(caller.post(listing.path, {"id_prefix": prefix, "limit": 1})), None)
    start = "created_from" if "rollouts" in listing.path else "received_from"
    if listing.path == "/v1/traces/query" or not listing.backwards:
        return None
    ends = [caller.post(listing.path, {**listing.query, "limit": 1, "newest_first": newest})[0] for newest in (False, True)]
    low, high = (record[start.replace("_from", "_at")] for record in ends)
    query = {**listing.query, start: (low + high) // 2, "limit": 1}
    return next(iter(caller.post(listing.path, query)), None)


def _ask(caller: Caller, listing: Listing, page: str, query: dict[str, Any], times: int) -> dict[str, Any]:
    answers = [caller.timed(listing.path, query) for _ in range(times)]
    took = [seconds * 1e3 for seconds, _ in answers]
    return {"name": listing.name, "page": page, "ms": statistics.median(took), "max_ms": max(took), "records": len(answers[0][1])}


# -- pruning -----------------------------------------------------------------------------------------------------------


def run_and_prune(port: int, seconds: float) -> dict[str, float]:
    """Rollouts a second."""
    ended = threading.Event()
    pruned_alone = _prune_until(port, time.perf_counter() + seconds / 3, ended)
    finished_alone = _finish_for(port, seconds)
    rates: list[float] = []
    pruning = threading.Thread(target=lambda: rates.append(_prune_until(port, float("inf"), ended)))
    pruning.start()
    finished_beside = _finish_for(port, seconds)
    ended.set()
    pruning.join()
    return {"pruned_alone": pruned_alone, "finished_alone": finished_alone, "finished_beside": finished_beside, "pruned_beside": rates[0]}


def _prune_until(port: int, deadline: float, ended: threading.Event) -> float:
    caller, began, pruned = Caller(port), time.perf_counter(), 0
    while time.perf_counter() < deadline and not ended.is_set():
        answer = caller.post("/v1/prune", {"older_than": 86_400.0})
        pruned += answer["rollouts"]
        if not answer["more"]:
            break
    return pruned / (time.perf_counter() - began)


def _finish_for(port: int, seconds: float) -> float:
    job = {"kind": "closed", "port": port, "seconds": seconds, "connections": CONNECTIONS}
    done = subprocess.run([sys.executable, str(LOAD)], input=json.dumps(job) + "\n", capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the load failed: {done.stderr[-800:]}")
    return float(json.loads(done.stdout)["per_second"])


if __name__ == "__main__":
    sys.exit(main())
