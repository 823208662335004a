"""``leyden sql``'s ground: the views of both databases, and a door through which nothing but queries over them passes."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from storekit import make_generation, make_span, new_postgres_database, open_kit, task

from leyden.errors import LeydenError, Unavailable, UsageError
from leyden.server import views
from leyden.server.adhoc import Answer, ask
from leyden.server.sqlguard import check_query
from leyden.types import FailureKind, JSONResource, Reward

LONG = "long " * 5000


@dataclass
class Filled:
    kind: str
    database: str

    def ask(self, statement: str, limit: int = 100, seconds: float = 10.0) -> Answer:
        return ask(self.database, statement, limit, seconds)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    """A store with something of everything."""
    database = new_postgres_database() if request.param == "postgres" else str(tmp_path_factory.mktemp("views") / "leyden.db")

    async def fill() -> None:
        async with open_kit(request.param, database) as kit:
            store = kit.store
            await store.add_resources({"a": JSONResource(value=1)})
            await store.start_run("r", {"lr": 0.1})
            await store.register_worker("w", "worker", 2)
            await store.set_queue("fast", max_running=3)
            await store.enqueue([task({"q": "né"}, run_id="r", iteration=1, group="g"), task(2), task(3)])
            done, failed = await store.claim("w", 2)
            await store.add_spans(done.ref, [make_span(1, attributes={"a": 1}), make_span(2, attributes={"long": LONG})])
            await store.add_generations(done.ref, [make_generation(done.ref, "g1", request={"messages": [LONG]})])
            kit.clock.advance(1.5)
            await store.complete(done.ref, [Reward(value=0.5)])
            await store.fail(failed.ref, FailureKind.AGENT, "broken")

    asyncio.run(fill())
    yield Filled(request.param, database)


@pytest.mark.parametrize("view", views.VIEWS, ids=lambda view: view.name)
def test_every_view_can_be_read_and_counted(filled: Filled, view: views.View) -> None:
    answer = filled.ask(f"SELECT * FROM {view.name}")
    assert set(view.columns.split()) <= set(answer.columns)
    assert filled.ask(f"SELECT count(*) FROM {view.name}").rows == [(len(answer.rows),)]


def test_both_databases_answer_the_same(filled: Filled) -> None:
    questions: dict[str, list[tuple[object, ...]]] = {
        "SELECT state, failure, error FROM v_rollouts ORDER BY state": [
            ("failed", "agent", "broken"),
            ("queued", None, None),
            ("succeeded", None, None),
        ],
        "SELECT run_id, iteration, n FROM v_counts WHERE n > 0 AND state = 'succeeded'": [("r", 1, 1)],
        "SELECT input, group_key FROM v_rollouts WHERE group_key IS NOT NULL": [('{"q":"né"}', "g")],
        "SELECT seconds FROM v_attempts WHERE state = 'succeeded'": [(1.5,)],
        "SELECT created_utc FROM v_rollouts LIMIT 1": [("1970-01-12 13:46:40.000",)],
        "SELECT span_id, attributes FROM v_spans ORDER BY span_id": [(f"{1:016x}", '{"a":1}'), (f"{2:016x}", None)],
        "SELECT value, source FROM v_rewards": [(0.5, "agent")],
        "SELECT sum(n), avg(n) FROM v_counts WHERE n > 0": [(3, 1.0)],
        "SELECT name, max_running FROM v_queues": [("fast", 3)],
        "SELECT running FROM v_workers": [(0,)],
        "WITH f AS (SELECT * FROM v_rollouts WHERE state = 'failed') SELECT count(*) FROM f": [(1,)],
        "SELECT r.id IS NOT NULL, a.number FROM v_rollouts r JOIN v_attempts a ON a.rollout_id = r.id ORDER BY 2": [(1, 1), (1, 1)],
        "VALUES (1, 'x')": [(1, "x")],
    }
    for statement, rows in questions.items():
        assert filled.ask(statement).rows == rows, statement


def test_rows_are_bounded_and_it_says_so(filled: Filled) -> None:
    answer = filled.ask("SELECT id FROM v_rollouts", limit=2)
    assert len(answer.rows) == 2 and answer.more
    assert not filled.ask("SELECT id FROM v_rollouts", limit=3).more


def test_time_is_bounded(filled: Filled) -> None:
    endless = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT count(*) FROM c"
    with pytest.raises(UsageError, match="took longer than"):
        filled.ask(endless, seconds=0.3)


REFUSED = [
    "INSERT INTO rollouts (id) VALUES ('x')",
    "INSERT INTO v_rollouts (id) VALUES ('x')",
    "UPDATE v_rollouts SET state = 'queued'",
    "DELETE FROM v_rollouts",
    "DROP VIEW v_rollouts",
    "CREATE TABLE t (a int)",
    "CREATE TEMP TABLE t (a int)",
    "CREATE VIEW v_mine AS SELECT * FROM meta",
    "BEGIN",
    "COMMIT",
    "VACUUM",
    "SELECT 1; SELECT 2",
    "SELECT 1; DELETE FROM rollouts",
    "WITH gone AS (DELETE FROM rollouts RETURNING id) SELECT * FROM gone",
    "SELECT value FROM meta",
    "SELECT * FROM meta, v_rollouts",
    'SELECT * FROM "meta"',
    "WITH v_rollouts AS (SELECT value FROM meta) SELECT * FROM v_rollouts",
    "WITH v_rollouts AS (SELECT request_hash FROM rollouts) SELECT * FROM v_rollouts",
    "SELECT (SELECT value FROM meta LIMIT 1) FROM v_rollouts",
    "SELECT * FROM attempts",
    "SELECT request_id FROM v_attempts",
    "SELECT token FROM v_leases",
    "",
    "-- nothing",
    "nonsense",
]
REFUSED_BY = {
    "sqlite": [
        "PRAGMA journal_mode = DELETE",
        "PRAGMA query_only = OFF",
        "PRAGMA wal_checkpoint",
        "ATTACH 'other.db' AS other",
        "VACUUM INTO 'copy.db'",
        "SELECT * FROM pragma_table_info('meta')",
        "SELECT * FROM sqlite_master",
        "SELECT sql FROM sqlite_schema",
        "SELECT count(*) FROM meta",
        "SELECT rowid FROM rollouts",
        "SELECT load_extension('x')",
        "SELECT zeroblob(1000000000)",
        "REINDEX",
        "ANALYZE",
        "SELECT count(*) FROM attempts",
        "SELECT count(*) FROM v_runs, main.attempts",
        "SELECT count(*) FROM [attempts]",
        "SELECT count(*) FROM 'attempts'",
        "SELECT count(*) FROM\ufeffattempts",
        "WITH v_spans AS (SELECT attributes FROM spans) SELECT hex(attributes) FROM v_spans",
        "WITH v_spans(a) AS (SELECT attributes FROM spans) SELECT hex(a) FROM v_spans",
        "WITH 'V_Spans' AS MATERIALIZED (SELECT attributes FROM spans) SELECT * FROM v_spans",
        "WITH x AS (SELECT 1), v_spans AS NOT MATERIALIZED (SELECT attributes FROM spans) SELECT * FROM v_spans",
        "EXPLAIN SELECT * FROM v_rollouts",
        "EXPLAIN QUERY PLAN SELECT * FROM v_rollouts",
        "SELECT fts3_tokenizer('simple')",
        "SELECT randomblob(1000)",
        "SELECT sqlite_version()",
    ],
    "postgres": [
        "SELECT set_config('statement_timeout', '0', false)",
        "SELECT pg_sleep(1)",
        "SELECT pg_catalog.pg_terminate_backend(1)",
        "SELECT pg_advisory_lock(1)",
        "SELECT query_to_xml('select * from meta', true, true, '')",
        "SELECT nextval('rollouts_seq_seq')",
        "SELECT lo_import('x')",
        "COPY meta TO STDOUT",
        "SET default_transaction_read_only = off",
        "TABLE meta",
        "SELECT * FROM public.meta",
        "SELECT * FROM (meta)",
        "SELECT * FROM ONLY meta",
        "SELECT * FROM/**/meta",
        "SELECT * FROM /* /* nested */ */ meta",
        'SELECT * FROM U&"m\\0065ta"',
        "SELECT * FROM pg_shadow",
        "SELECT * FROM information_schema.tables",
        "SELECT * FROM v_rollouts FOR UPDATE",
        "SELECT * INTO mine FROM v_rollouts",
        "EXPLAIN ANALYZE DELETE FROM rollouts",
        "SELECT 1 /* no end",
        "SELECT $a1$'$a1$, (SELECT request_id::text FROM attempts LIMIT 1), pg_backend_pid(), $a1$'$a1$",
        "SELECT $\U0001f600$'$\U0001f600$, pg_backend_pid(), $\U0001f600$'$\U0001f600$",
        "SELECT $$'$$, pg_backend_pid(), $$'$$",
        "SELECT 1 --\r, (SELECT encode(value,'hex') FROM meta WHERE key='secret')",
        "SELECT 1 --\r, pg_read_file('PG_VERSION')",
        "SELECT 1 --\r, pg_advisory_lock(1)",
        "SELECT 1 AS \x0cx",
        "SELECT E'a'\n'\\' || ', pg_backend_pid(), ''",
        "SELECT E'a' -- more\n'\\' || ', pg_backend_pid(), ''",
        "SELECT 1from meta",
        "SELECT 1e1e'\\'', pg_backend_pid(), '",
        "SELECT u&'\\0027', pg_backend_pid()",
    ],
}


def test_nothing_but_a_query_over_the_views_passes(filled: Filled) -> None:
    before = filled.ask("SELECT * FROM v_rollouts ORDER BY id").rows
    for statement in [*REFUSED, *REFUSED_BY[filled.kind]]:
        with pytest.raises(LeydenError) as refused:
            filled.ask(statement)
        assert refused.value.hint, statement
        assert "\n" not in refused.value.message, statement
    assert filled.ask("SELECT * FROM v_rollouts ORDER BY id").rows == before


def test_words_in_texts_comments_and_names_are_no_tables() -> None:
    for statement in (
        "SELECT 'SELECT * FROM meta; DROP TABLE x', E'\\' FROM meta' -- FROM meta",
        "SELECT 1.5, 1e5, 1.5e-3, .5, 0x1F, a$1 FROM (SELECT 1 AS a$1) x",
        "SELECT state, count(*) AS attempts FROM v_rollouts GROUP BY state ORDER BY attempts",
        'SELECT "meta" FROM (SELECT 1 AS "meta") x',
        "SELECT 1 /* ; FROM meta */",
        "SELECT id FROM v_rollouts WHERE state IN ('a') AND (seconds > 1 OR NOT (attempt = 2));",
        "WITH RECURSIVE t(n) AS (VALUES (1)) SELECT n FROM t",
        "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY seconds) FROM v_rollouts",
        "SELECT count(*) FILTER (WHERE attempt > 1) OVER (PARTITION BY state) FROM v_rollouts",
    ):
        check_query(statement)


def test_sqlite_queries_that_compute_pass(tmp_path: Path) -> None:
    path = tmp_path / "leyden.db"

    async def go() -> None:
        async with open_kit("sqlite", path) as kit:
            await kit.store.enqueue([task({"q": "meta"})])

    asyncio.run(go())
    for statement in (
        "SELECT json_extract(input, '$.q') FROM v_rollouts WHERE state IN ('queued', 'attempts')",
        "/* FROM meta */ SELECT upper(input ->> 'q') FROM v_rollouts -- FROM meta",
        "WITH s AS NOT MATERIALIZED (SELECT * FROM v_rollouts AS v_runs) SELECT [id], count(*) OVER () FROM s;",
        "SELECT value, current_timestamp FROM v_rollouts, json_each(input)",
        "SELECT max(round(priority * 1e0, 2)), group_concat(id), avg(attempt) AS attempts FROM v_rollouts WHERE id LIKE 'ro-%'",
    ):
        assert len(ask(str(path), statement, 5).rows) == 1, statement


def test_instants_that_python_does_not_have_are_texts(filled: Filled) -> None:
    if filled.kind == "postgres":
        query = "SELECT 'infinity'::timestamp, '-infinity'::date, '20000-01-01 UTC'::timestamptz AT TIME ZONE 'UTC', '1 day'::interval"
        assert filled.ask(query).rows == [("infinity", "-infinity", "20000-01-01 00:00:00", "1 day")]


def test_a_query_that_is_no_unicode_is_refused(filled: Filled) -> None:
    with pytest.raises(UsageError, match="not UTF-8"):
        filled.ask('SELECT "\udcff"')


def test_views_are_made_again_only_when_their_text_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "leyden.db"

    def open_once() -> None:
        async def go() -> None:
            async with open_kit("sqlite", path):
                pass

        asyncio.run(go())

    def pages() -> list[tuple[str, int]]:
        with sqlite3.connect(path) as conn:
            return conn.execute("SELECT name, rowid FROM sqlite_schema WHERE type = 'view' ORDER BY name").fetchall()

    open_once()
    made = pages()
    open_once()
    assert pages() == made
    with sqlite3.connect(path) as conn:
        conn.execute("DROP VIEW v_runs")
    changed = tuple(view if view.name != "v_runs" else views.View("v_runs", "runs", "id") for view in views.VIEWS)
    monkeypatch.setattr(views, "VIEWS", changed)
    open_once()
    assert ask(str(path), "SELECT * FROM v_runs", 5).columns == ["id"]


def test_a_query_neither_checkpoints_nor_waits_for_the_store(tmp_path: Path) -> None:
    path = tmp_path / "leyden.db"

    async def check() -> None:
        async with open_kit("sqlite", path) as kit:
            await kit.store.enqueue([task(n) for n in range(50)])
            before = path.read_bytes()
            assert ask(str(path), "SELECT count(*) FROM v_rollouts", 5).rows == [(50,)]
            assert path.read_bytes() == before, "the log was folded in"
            await kit.store.enqueue([task()])
            assert ask(str(path), "SELECT count(*) FROM v_rollouts", 5).rows == [(51,)]

    asyncio.run(check())


def test_what_is_no_store_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no file"):
        ask(str(tmp_path / "none.db"), "SELECT 1", 1)
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as conn:
        conn.execute("CREATE TABLE mine (a)")
    with pytest.raises(UsageError, match="is not a store's database"):
        ask(str(other), "SELECT 1", 1)
    text = tmp_path / "text.db"
    text.write_text("no database at all" * 100)
    with pytest.raises(UsageError, match="cannot be read"):
        ask(str(text), "SELECT 1", 1)
    with pytest.raises(Unavailable, match="cannot be reached"):
        ask("postgresql://nobody@127.0.0.1:1/none", "SELECT 1", 1)


def test_no_view_shows_a_secret(filled: Filled) -> None:
    """Whatever is in a view is not what ``meta`` holds, nor a hash that is stored beside it."""
    secrets: set[str] = set()
    queries = ("SELECT request_hash FROM rollouts", "SELECT request_hash FROM resources")
    if filled.kind == "postgres":
        with psycopg.connect(filled.database) as conn:
            secrets |= {row[0] for query in queries for row in conn.execute(query)}  # type: ignore[arg-type]
    else:
        with sqlite3.connect(filled.database) as conn:
            secrets |= {row[0] for query in queries for row in conn.execute(query)}
    assert len(secrets) > 3
    for view in views.VIEWS:
        shown = str(filled.ask(f"SELECT * FROM {view.name}").rows)
        assert not any(secret in shown for secret in secrets), view.name
