"""From the schema of an older Leyden to this one's, forward only. The steps belong to the caller's transaction: all are made, or none."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from sqlalchemy import Connection, insert, select, text
from sqlalchemy.schema import CreateColumn, CreateIndex

from leyden.errors import UsageError
from leyden.server import schema, views


def bring_up(conn: Connection, version: int, label: str) -> bytes:
    """Make the tables (``version`` 0), or take the steps that are missing; returns the database's secret. The caller keeps the version.

    Raises ``UsageError`` for the schema of a newer Leyden.
    """
    if version > schema.SCHEMA_VERSION:
        raise UsageError(
            f"{label} was written by a newer Leyden (schema {version}; this one knows {schema.SCHEMA_VERSION})", "pip install -U leyden"
        )
    if version == 0:
        schema.metadata.create_all(conn, checkfirst=False)  # a table of another schema on the search_path is not ours
        conn.execute(insert(schema.meta).values(key="secret", value=secrets.token_bytes(32)))
    elif version < schema.SCHEMA_VERSION:
        views.drop(conn)
        for step in range(version, schema.SCHEMA_VERSION):
            STEPS[step](conn)
    views.refresh(conn)
    return conn.execute(select(schema.meta.c.value).where(schema.meta.c.key == "secret")).scalar_one()


_ATTEMPTS_OF = "SELECT count(*) FROM attempts a WHERE a.rollout_id = rollouts.id"


def _queues_and_normalized_spans(conn: Connection) -> None:
    """1 to 2. Only SQLite had a version 1."""
    for statement in (
        "ALTER TABLE rollouts ADD COLUMN queue TEXT NOT NULL DEFAULT 'default'",
        "ALTER TABLE rollouts ADD COLUMN failures INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE rollouts ADD COLUMN lost INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE rollouts ADD COLUMN requeue_id TEXT",
        "ALTER TABLE rollouts ADD COLUMN revision BIGINT NOT NULL DEFAULT 0",
        # Every attempt that was not released counted as a failure once it had ended.
        f"UPDATE rollouts SET failures = ({_ATTEMPTS_OF} AND a.state IN ('failed', 'timed_out'))",
        f"UPDATE rollouts SET lost = ({_ATTEMPTS_OF} AND a.state = 'lost')",
        "ALTER TABLE leases ADD COLUMN queue TEXT NOT NULL DEFAULT 'default'",
        "DROP INDEX rollouts_ready",
        "DROP INDEX rollouts_due",
        "ALTER TABLE counters RENAME TO old_counters",
        "ALTER TABLE spans RENAME TO old_spans",
        "DROP INDEX spans_attempt",
    ):
        conn.execute(text(statement))
    schema.metadata.create_all(conn)
    for table in (schema.rollouts, schema.leases, schema.attempts):
        for index in table.indexes:
            index.create(conn, checkfirst=True)
    for statement in (
        """INSERT INTO counters (run_id, iteration, mode, queue, state, failure, n)
           SELECT coalesce(run_id, ''), coalesce(iteration, -1), mode, queue, state,
                  CASE WHEN state IN ('succeeded', 'failed', 'cancelled') THEN coalesce(failure, '') ELSE '' END, count(*)
           FROM rollouts GROUP BY 1, 2, 3, 4, 5, 6""",
        """INSERT INTO spans (seq, rollout_id, attempt, trace_id, span_id, parent_id, name, kind, start_ns, end_ns, status, attributes,
                              events, late, received_at)
           SELECT seq, rollout_id, attempt, trace_id, span_id, parent_id, name, kind, start_ns, end_ns, status, attributes, events, late,
                  received_at FROM old_spans""",
        "DROP TABLE old_counters",
        "DROP TABLE old_spans",
    ):
        conn.execute(text(statement))


def _audits(conn: Connection) -> None:
    """2 to 3."""
    for name in ("findings", "continuity", "follows", "differs_at", "exact", "audit"):
        column = CreateColumn(schema.generations.c[name]).compile(conn)
        conn.execute(text(f"ALTER TABLE generations ADD COLUMN {column}"))
    schema.audit_counts.create(conn, checkfirst=True)  # the step before made it where that was taken now
    conn.execute(
        text(
            """INSERT INTO audit_counts (run_id, iteration, mode, what, n)
               SELECT coalesce(r.run_id, ''), coalesce(r.iteration, -1), r.mode,
                      CASE WHEN g.late THEN 'late' WHEN g.status = 'ok' THEN 'unaudited' ELSE 'failed' END, count(*)
               FROM generations g JOIN rollouts r ON r.id = g.rollout_id GROUP BY 1, 2, 3, 4"""
        )
    )


def _tokens(conn: Connection) -> None:
    """3 to 4."""
    schema.tokens.create(conn, checkfirst=True)  # the first step makes all tables that are missing


def _indexes_of_lists(conn: Connection) -> None:
    """4 to 5."""
    new = {f"rollouts_{name}" for name in ("queue", "mode", "iteration", "failure")} | {
        f"spans_{name}" for name in ("name", "status", "model")
    }
    for index in (*schema.rollouts.indexes, *schema.spans.indexes):
        if index.name in new:
            conn.execute(CreateIndex(index, if_not_exists=True))  # the first step makes all that are missing


def _keys_that_name_their_attempts(conn: Connection) -> None:
    """5 to 6. SQLite drops no column that is UNIQUE, so there the table is written anew. See ``operations.fence``."""
    latest = conn.execute(text("SELECT max(started_at) FROM attempts")).scalar()
    if latest is not None:
        conn.execute(insert(schema.meta).values(key="keys_named_since", value=str(latest).encode()))
    if conn.dialect.name == "postgresql":
        conn.execute(text("ALTER TABLE attempts DROP COLUMN key_hash"))
        return
    columns = ", ".join(schema.attempts.c.keys())
    for index in schema.attempts.indexes:
        index.drop(conn)
    conn.execute(text("ALTER TABLE attempts RENAME TO old_attempts"))
    schema.attempts.create(conn)
    conn.execute(text(f"INSERT INTO attempts ({columns}) SELECT {columns} FROM old_attempts"))
    conn.execute(text("DROP TABLE old_attempts"))


STEPS: dict[int, Callable[[Connection], None]] = {
    1: _queues_and_normalized_spans,
    2: _audits,
    3: _tokens,
    4: _indexes_of_lists,
    5: _keys_that_name_their_attempts,
}
