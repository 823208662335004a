"""How the hot operations read a store with 100,000 rollouts in each state: along an index, without sorting what is not asked for.

Asked of the planner with the statistics it is likely to have: none, those of a moment when nothing waited or ran, those of now.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, column, event, text
from storekit import new_postgres_database

from leyden.server import schema
from leyden.server.database import Database
from leyden.server.databases import open_database
from leyden.server.operations import attempts, claims, counters, leases, listing, metrics, prune, rollouts, traces, transitions
from leyden.server.operations.claims import ClaimRequest
from leyden.server.queries import Prune, RolloutQuery, SpanQuery, TraceQuery
from leyden.server.transaction import Transaction
from leyden.types import FailureKind, LeaseRef, Mode, RolloutState

N = 100_000  # rollouts in each state
NOW = 10_000_000_000
FINAL = ("succeeded", "failed", "cancelled")
LIVE = ("queued", "scheduled", "running")
BIG = ("rollouts", "attempts", "spans")

_NUMBERS = {
    "sqlite": f"(WITH RECURSIVE c(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM c LIMIT {N}) SELECT i FROM c)",
    "postgresql": f"(SELECT i FROM generate_series(0::bigint, {N - 1}) AS g(i))",
}
_BYTES = {"sqlite": "CAST('{}' AS BLOB)", "postgresql": "convert_to('{}', 'UTF8')"}


def fill_rollouts(conn: Connection, state: str) -> None:
    final, dialect = state in FINAL, conn.dialect.name
    failure = {"failed": "'agent'", "cancelled": "'cancelled'"}.get(state, "NULL")
    values = {
        "id": f"'{state}-' || i",
        "state": f"'{state}'",
        "mode": "CASE i % 2 WHEN 0 THEN 'train' ELSE 'val' END",
        "queue": "'default'",
        "priority": "i % 3",
        "run_id": "'run' || (i % 20)",
        "iteration": "i % 5",
        **dict.fromkeys(("input", "config", "metadata"), _BYTES[dialect]),
        "group_key": "'group' || (i % 1000)",
        "attempt": "1",
        **dict.fromkeys(("failures", "lost", "released"), "0"),
        "lease_token": "1",
        "available_at": "i * 1000000" if state == "scheduled" else "NULL",
        "failure": failure,
        "created_at": "i * 1000",
        "finished_at": "i * 1000 + 500" if final else "NULL",
        "revision": "i",
    }
    columns, selected = ", ".join(values), ", ".join(values.values())
    conn.execute(text(f"INSERT INTO rollouts ({columns}) SELECT {selected} FROM {_NUMBERS[dialect]} AS numbers"))


def fill_attempts(conn: Connection, state: str) -> None:
    conn.execute(
        text(
            "INSERT INTO attempts (rollout_id, number, token, state, worker_id, request_id, started_at)"
            f" SELECT '{state}-' || i, 1, 1, '{state}', 'w' || (i % 100), '{state}' || (i / 8), i"
            f" FROM {_NUMBERS[conn.dialect.name]} AS numbers"
        )
    )


def fill_leases(conn: Connection) -> None:
    conn.execute(
        text(
            "INSERT INTO leases (rollout_id, attempt, token, worker_id, queue, duration, expires_at, deadline_at)"
            f" SELECT 'running-' || i, 1, 1, 'w' || (i % 100), 'default', 60000000, {NOW} - 1000 + i * 1000, {NOW} + 1000000000"
            f" FROM {_NUMBERS[conn.dialect.name]} AS numbers"
        )
    )


def fill_spans(conn: Connection) -> None:
    """Ten of each trace, a trace of each rollout."""
    dialect = conn.dialect.name
    trace = {"sqlite": "printf('%032x', i / 10)", "postgresql": "lpad(to_hex(i / 10), 32, '0')"}[dialect]
    events = _BYTES[dialect].replace("{}", "[]")
    span = {"sqlite": "printf('%016x', i)", "postgresql": "lpad(to_hex(i), 16, '0')"}[dialect]
    conn.execute(
        text(
            "INSERT INTO spans (rollout_id, attempt, trace_id, span_id, parent_id, name, kind, start_ns, end_ns, status, attributes,"
            " events, late, received_at, operation)"
            f" SELECT 'running-' || (i / 10), 1, {trace}, {span}, CASE i % 10 WHEN 0 THEN NULL ELSE {span} END, 'n', 'internal', i, i + 1,"
            f" 'ok', {_BYTES[dialect]}, {events}, false, i, CASE i % 4 WHEN 0 THEN 'chat' END FROM {_NUMBERS[dialect]} AS numbers"
        )
    )


def count_rollouts(conn: Connection) -> None:
    names = "run_id, iteration, mode, queue, state"
    conn.execute(
        text(
            f"INSERT INTO counters ({names}, failure, n) SELECT {names}, coalesce(failure, ''), count(*) FROM rollouts"
            f" GROUP BY {names}, coalesce(failure, '')"
        )
    )


@dataclass
class Full:
    database: Database
    conn: Connection
    statistics: str = "none"


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def full(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Full]:
    """With the statistics of a moment when nothing waited or ran; SQLite with none, since nobody gathers any there."""
    place: str | Path = new_postgres_database() if request.param == "postgresql" else tmp_path_factory.mktemp("plans") / "leyden.db"
    database = open_database(place)
    tables = (schema.rollouts, schema.attempts, schema.leases, schema.spans)
    with database.open_writer() as conn:
        with conn.begin():
            for table in tables:
                for index in table.indexes:
                    index.drop(conn)  # made again at the end, which is quicker
                if request.param == "postgresql":
                    conn.execute(text(f"ALTER TABLE {table.name} SET (autovacuum_enabled = false)"))
            for state in FINAL:
                fill_rollouts(conn, state)
            fill_attempts(conn, "succeeded")
            for table in tables:
                for index in table.indexes:
                    if request.param == "postgresql" and index.dialect_options["postgresql"]["where"] is None:
                        continue
                    index.create(conn)
            if request.param == "postgresql":
                conn.execute(text("ANALYZE rollouts, attempts, leases, spans"))
            for state in LIVE:
                fill_rollouts(conn, state)
            fill_attempts(conn, "running")
            fill_leases(conn)
            fill_spans(conn)
            count_rollouts(conn)
            for table in tables:
                for index in table.indexes:
                    index.create(conn, checkfirst=True)
            if request.param == "postgresql":
                conn.execute(text("ANALYZE spans"))  # they do not come and go
                conn.execute(schema.meta.update().where(schema.meta.c.key == "revision_base").values(value=str(NOW).encode()))
        yield Full(database, conn, "none" if request.param == "sqlite" else "of a quiet moment")
    database.close()


@dataclass
class Plans:
    """Of every statement of one operation."""

    lines: list[str] = field(default_factory=list)  # as the database says
    scanned: set[str] = field(default_factory=set)  # tables read from end to end
    indexes: set[str] = field(default_factory=set)
    sorted_whole: list[str] = field(default_factory=list)  # statements that sort before they stop at a limit


def plans_of(full: Full, operation: Callable[[Transaction], Any], generic: bool = False) -> Plans:
    seen: dict[str, Any] = {}

    def note(conn: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if re.match(r"\s*(SELECT|UPDATE|DELETE|INSERT)", statement):
            seen.setdefault(statement, parameters[0] if many and isinstance(parameters, list) else parameters)

    plans = Plans()
    explain = _explain_sqlite if full.conn.dialect.name == "sqlite" else _explain_postgresql
    with closing(full.conn.begin()):  # rolled back
        event.listen(full.conn.engine, "before_cursor_execute", note)
        try:
            operation(Transaction(full.conn, NOW, 10**9, full.database.secret))
        finally:
            event.remove(full.conn.engine, "before_cursor_execute", note)
        for statement, parameters in seen.items():
            explain(full.conn, statement, parameters, plans, generic)
    return plans


def _explain_sqlite(conn: Connection, statement: str, parameters: Any, plans: Plans, generic: bool) -> None:
    lines = [line for *_, line in conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)]
    plans.lines += lines
    sorts = "USE TEMP B-TREE FOR ORDER BY" in lines
    for line in lines:
        match = re.match(r"SCAN (\w+)(?!.*USING)", line)
        if match and not (f"ORDER BY {match[1]}.seq" in statement and "LIMIT" in statement and not sorts):  # along the primary key
            plans.scanned.add(match[1])
        if match := re.search(r"USING (?:COVERING )?INDEX (\w+)", line):
            plans.indexes.add(match[1])
    if sorts and _stops_early(statement):
        plans.sorted_whole.append(statement)


def _stops_early(statement: str) -> bool:
    return "LIMIT" in statement and any(f"FROM {table}" in statement for table in BIG)


def _explain_postgresql(conn: Connection, statement: str, parameters: Any, plans: Plans, generic: bool) -> None:
    if generic:  # as it is planned once it was run often enough: without a look at the values
        names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", statement)))
        bare = re.sub(r"%\((\w+)\)s", lambda match: f"${names.index(match[1]) + 1}", statement)
        found = conn.exec_driver_sql(f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {bare}").scalar_one()
    else:
        found = conn.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {statement}", parameters).scalar_one()
    waiting = [found[0]["Plan"]]
    while waiting:
        node = waiting.pop()
        kind, table, index = node["Node Type"], node.get("Relation Name"), node.get("Index Name")
        plans.lines.append(json.dumps({key: value for key, value in node.items() if key != "Plans"}))
        if kind == "Seq Scan":
            plans.scanned.add(table)
        if index is not None:
            plans.indexes.add(index)
        if kind == "Sort" and _stops_early(statement):
            plans.sorted_whole.append(statement)
        waiting += node.get("Plans", [])


REF = LeaseRef(rollout_id="running-5", attempt=1, token=1)
REFS = [LeaseRef(rollout_id=f"running-{n}", attempt=1, token=1) for n in range(50, 90)]


def claim(n: int) -> Callable[[Transaction], Any]:
    return lambda tx: claims.claim(tx, [ClaimRequest("w1", n, 60.0, "running7", ("default",))])


def list_by(**fields: Any) -> Callable[[Transaction], Any]:
    return lambda tx: listing.list_rollouts(tx, RolloutQuery(limit=100, **fields))


# Each with the indexes that must be used, by the name without what a dialect adds.
OPERATIONS: dict[str, tuple[Callable[[Transaction], Any], set[str]]] = {
    "claim one": (claim(1), {"rollouts_ready"}),
    "claim many": (claim(64), {"rollouts_ready"}),
    "heartbeat": (lambda tx: leases.heartbeat(tx, "w1", REFS, None), {"leases_key"}),
    "sweep": (lambda tx: leases.sweep(tx, None, 0), {"rollouts_due", "rollouts_key"}),
    "complete": (lambda tx: attempts.complete(tx, REF, ()), {"leases_key", "rollouts_key", "attempts_key"}),
    "fail": (lambda tx: attempts.fail(tx, REF, FailureKind.TOOL, "no"), {"leases_key", "rollouts_key", "attempts_key"}),
    "cancel a run": (lambda tx: attempts.cancel_matching(tx, "run3", None, 0), set()),
    "wait": (lambda tx: rollouts.final_ids(tx, [f"succeeded-{n}" for n in range(400)]), {"rollouts_key"}),
    "read waited": (lambda tx: transitions.rollouts_by_id(tx, [f"succeeded-{n}" for n in range(400)]), {"rollouts_key"}),
    "count": (lambda tx: counters.count(tx, "run3", 1, Mode.TRAIN, None), set()),
    "list": (list_by(), set()),
    "list newest": (list_by(newest_first=True), set()),
    "list a page": (list_by(after=f"failed-{N - 1}", newest_first=True), set()),
    "list a run": (list_by(run_id="run3"), set()),
    "list what runs": (list_by(state=RolloutState.RUNNING, newest_first=True), set()),
    "list failures": (list_by(failure=FailureKind.AGENT, newest_first=True), set()),
    "list a failure": (list_by(failure=FailureKind.VERIFIER), {"rollouts_failure"}),
    "list a queue": (list_by(queue="nobody"), {"rollouts_queue"}),
    "list a mode": (list_by(mode=Mode.TEST), {"rollouts_mode"}),
    "list an iteration": (list_by(iteration=77, newest_first=True), {"rollouts_iteration"}),
    "list a group": (list_by(group="group7"), set()),
    "list a time": (list_by(created_from=10_000_000, created_to=20_000_000), {"rollouts_created"}),
    "list newest of a time": (list_by(created_from=10_000_000, newest_first=True), {"rollouts_created"}),
    "list changes": (list_by(changed_after=N - 1000), {"rollouts_revision"}),
    "list more changes": (list_by(changed_after=N - 1000, after=f"failed-{N - 1000}"), {"rollouts_revision"}),
    "list by prefix": (list_by(id_prefix="running-77"), {"rollouts_key"}),
    "list ids": (list_by(ids=[f"failed-{n}" for n in range(400)]), {"rollouts_key"}),
    "spans of a rollout": (lambda tx: traces.query_spans(tx, SpanQuery(rollout_id="running-7", limit=100)), {"spans_attempt"}),
    "spans of a trace": (lambda tx: traces.query_spans(tx, SpanQuery(trace_id=f"{7:032x}", limit=100)), {"spans_trace"}),
    "spans of a time": (lambda tx: traces.query_spans(tx, SpanQuery(received_from=N - 10_000, limit=100)), {"spans_received"}),
    "spans by name": (lambda tx: traces.query_spans(tx, SpanQuery(name="none", limit=100)), {"spans_name"}),
    "spans by model": (lambda tx: traces.query_spans(tx, SpanQuery(model="none", newest_first=True, limit=100)), {"spans_model"}),
    "spans by status": (lambda tx: traces.query_spans(tx, SpanQuery(status="error", limit=100)), {"spans_status"}),
    "traces": (lambda tx: traces.list_traces(tx, TraceQuery(limit=20)), {"spans_received", "spans_trace"}),
    "metrics": (metrics.stored, {"rollouts_state"}),
    "prune": (lambda tx: prune.prune(tx, Prune(older_than=NOW / 1e6 - 1)), {"rollouts_finished"}),
}
KEYS = {
    "sqlite": {name: f"sqlite_autoindex_{name}_1" for name in ("leases", "rollouts", "attempts", "spans")},
    "postgresql": {
        "leases": "leases_pkey",
        "rollouts": "rollouts_id_key",
        "attempts": "attempts_pkey",
        "spans": "spans_trace_id_span_id_key",
    },
}
# These may sort what an index has picked out: a run, a prefix, a rollout, a trace.
SORTED = {"cancel a run", "list by prefix", "list ids", "spans of a rollout", "spans of a trace"}


def check(full: Full, name: str, generic: bool = False) -> None:
    operation, wanted = OPERATIONS[name]
    plans = plans_of(full, operation, generic)
    keys = KEYS[full.conn.dialect.name]
    said = f"{name}, statistics {full.statistics}, generic {generic}:\n" + "\n".join(line[:400] for line in plans.lines)
    expected = {keys[index.removesuffix("_key")] if index.endswith("_key") else index for index in wanted}
    assert expected <= plans.indexes, f"{expected - plans.indexes} not used: {said}"
    assert not plans.scanned & set(BIG), f"read whole: {plans.scanned & set(BIG)}: {said}"
    assert name in SORTED or not plans.sorted_whole, f"sorts: {plans.sorted_whole}\n{said}"


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_plan_follows_an_index_whatever_was_known_at_the_time(full: Full, name: str) -> None:
    check(full, name)


def test_whether_a_span_is_its_traces_first_is_one_step_in_an_index_however_long_the_trace(full: Full) -> None:
    plans = plans_of(full, OPERATIONS["traces"][0])
    wanted = {"sqlite": "SEARCH earlier USING INDEX spans_trace (trace_id=? AND seq<?)", "postgresql": "(seq < spans.seq)"}
    found = [line for line in plans.lines if "earlier" in line and wanted[full.conn.dialect.name] in line]
    assert found and all("spans_trace" in line for line in found), plans.lines


# Each with the index that SQLite, which has no statistics, must be led to.
SEVERAL: dict[str, tuple[Callable[[Transaction], Any], str]] = {
    "a run's failures": (list_by(run_id="run3", state=RolloutState.FAILED), "rollouts_run"),
    "what runs of a mode": (list_by(mode=Mode.TRAIN, state=RolloutState.RUNNING, newest_first=True), "rollouts_state"),
    "a group's failures": (list_by(group="group7", state=RolloutState.FAILED, run_id="run7"), "rollouts_group"),
    "failures of a time": (list_by(created_from=10_000, state=RolloutState.FAILED), "rollouts_state"),
    "failures that changed": (list_by(changed_after=N - 1000, state=RolloutState.FAILED), "rollouts_revision"),
    "failures by prefix": (list_by(id_prefix="failed-7", state=RolloutState.FAILED), "sqlite_autoindex_rollouts_1"),
    "failures among ids": (list_by(ids=["failed-7"], state=RolloutState.FAILED), "sqlite_autoindex_rollouts_1"),
    "a rare model": (lambda tx: traces.query_spans(tx, SpanQuery(name="n", model="rare", limit=100)), "spans_model"),
    "a name's errors": (lambda tx: traces.query_spans(tx, SpanQuery(name="n", status="error", limit=100)), "spans_status"),
    "a name in a trace": (lambda tx: traces.query_spans(tx, SpanQuery(trace_id=f"{7:032x}", name="n")), "spans_trace"),
    "a name in a rollout": (lambda tx: traces.query_spans(tx, SpanQuery(rollout_id="running-7", name="n")), "spans_attempt"),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_of_several_filters_the_one_is_read_along_that_the_fewest_pass(full: Full, name: str) -> None:
    if full.conn.dialect.name != "sqlite":
        return
    operation, wanted = SEVERAL[name]
    plans = plans_of(full, operation)
    assert any(line.startswith("SEARCH") and f"INDEX {wanted} " in line for line in plans.lines[-3:]), plans.lines
    assert name.startswith(("failures among", "a name in")) or not plans.sorted_whole, plans.lines


def test_filters_that_nothing_passes_together_are_known_from_the_counts(full: Full) -> None:
    plans = plans_of(full, list_by(mode=Mode.TEST, state=RolloutState.FAILED))
    assert not any("rollouts" in line for line in plans.lines), plans.lines


@pytest.mark.parametrize(
    ("start", "end", "last", "newest_first", "wanted"),
    [
        (10, 90, (50, 1), False, ["(received_at, seq) > (50, 1)", "received_at < 90"]),
        (10, 90, (50, 1), True, ["(received_at, seq) < (50, 1)", "received_at >= 10"]),
        (10, 90, (5, 1), False, ["received_at >= 10", "received_at < 90"]),  # a cursor from elsewhere
        (10, 90, (95, 1), True, ["received_at >= 10", "received_at < 90"]),
        (None, None, (50, 1), False, ["(received_at, seq) > (50, 1)"]),
    ],
)
def test_a_page_of_a_time_begins_where_the_last_one_ended(
    start: int | None, end: int | None, last: tuple[int, int], newest_first: bool, wanted: list[str]
) -> None:
    """Not where the time began, which is as far away as there are pages before it: of two bounds on one side SQLite may take the other."""
    order = [column("received_at"), column("seq")]
    conditions = listing.between(order, start, end, last, newest_first)
    assert [str(condition.compile(compile_kwargs={"literal_binds": True})) for condition in conditions] == wanted


@pytest.mark.parametrize(
    "name", ["claim one", "claim many", "heartbeat", "sweep", "complete", "fail", "wait", "list a run", "list what runs"]
)
def test_the_plan_made_without_the_values_follows_an_index_too(full: Full, name: str) -> None:
    if full.conn.dialect.name == "postgresql":
        check(full, name, generic=True)


def test_fresh_statistics_spoil_no_plan(full: Full) -> None:
    with full.conn.begin():
        full.conn.execute(text("ANALYZE"))
    full.statistics = "of now"
    for name in OPERATIONS:
        check(full, name)
