"""The stable face of the tables: views that SQL may be written against, on both dialects the same (docs/sql-views.md).

Tables may change with any version; a view keeps its columns and may gain some. Instants come twice, as microseconds (``created_at``) and
to read (``created_utc``). JSON is text, or NULL where it is kept in pieces (``packing``); HTTP and Python give that back whole. No view
shows a secret: not the database's own, not what requests were hashed to, no fence.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlalchemy import Connection, delete, insert, select, text

from leyden.server.codec import digest
from leyden.server.schema import meta


@dataclass(frozen=True)
class View:
    """``columns``, ``times`` and ``json`` are columns of ``table``; ``derived`` are expressions, which both dialects know."""

    name: str
    table: str
    columns: str
    times: str = ""
    json: str = ""
    derived: dict[str, str] = field(default_factory=dict)

    def statement(self, dialect: str) -> str:
        parts = [*self.columns.split()]
        for column in self.times.split():
            parts += [column, f"{_TIME[dialect].format(f'{column} / 1000000.0')} AS {column.removesuffix('_at')}_utc"]
        parts += [f"{expression} AS {name}" for name, expression in self.derived.items()]
        parts += [f"{_JSON[dialect].format(column)} AS {column}" for column in self.json.split()]
        return f"CREATE VIEW {self.name} AS SELECT {', '.join(parts)} FROM {self.table}"


_TIME = {
    "sqlite": "strftime('%Y-%m-%d %H:%M:%f', {0}, 'unixepoch')",
    "postgresql": "to_char(to_timestamp({0}) AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.MS')",
}
_JSON = {  # what is packed begins with a byte that begins no JSON
    "sqlite": "CASE WHEN hex(substr({0}, 1, 1)) >= '20' THEN CAST({0} AS TEXT) END",
    "postgresql": "CASE WHEN length({0}) > 0 AND get_byte({0}, 0) >= 32 THEN convert_from({0}, 'UTF8') END",
}

VIEWS = (
    View(
        "v_rollouts",
        "rollouts",
        "id state mode queue priority run_id iteration group_key resources_id attempt failures lost released failure error"
        " environment_class_id episode_spec_id episode_id seed revision",
        "available_at created_at finished_at",
        "input config metadata",
        {"seconds": "(finished_at - created_at) / 1000000.0"},
    ),
    View(
        "v_attempts",
        "attempts",
        "rollout_id number state failure error worker_id resources_id",
        "started_at ended_at",
        derived={"seconds": "(ended_at - started_at) / 1000000.0"},
    ),
    View("v_leases", "leases", "rollout_id attempt worker_id queue", "expires_at deadline_at"),
    View(
        "v_counts",
        "counters",
        "mode queue state n",
        derived={"run_id": "nullif(run_id, '')", "iteration": "nullif(iteration, -1)", "failure": "nullif(failure, '')"},
    ),
    View("v_queues", "queues", "name paused max_running", "changed_at"),
    View(
        "v_spans",
        "spans",
        "trace_id span_id parent_id rollout_id attempt name kind status status_message operation model provider input_tokens"
        " output_tokens cached_tokens reasoning_tokens finish_reason tool_name agent_name conversation_id error_type normalizer scope late"
        " start_ns end_ns",
        "received_at",
        "attributes events links resource",
        {"milliseconds": "(end_ns - start_ns) / 1000000.0"},
    ),
    View(
        "v_generations",
        "generations",
        "id call_id rollout_id attempt choice model deployment checkpoint status error finish_reason prompt_tokens completion_tokens"
        " latency late findings continuity follows differs_at exact",
        "started_at",
        "sampling request response audit",
    ),
    View(
        "v_audit_counts",
        "audit_counts",
        "mode what n",
        derived={"run_id": "nullif(run_id, '')", "iteration": "nullif(iteration, -1)"},
    ),
    View("v_rewards", "rewards", "rollout_id attempt name source position value", "created_at"),
    View("v_resources", "resources", "id version", "alive_until retired_at created_at", "body"),
    View(
        "v_workers",
        "workers",
        "id name pid host capacity",
        "started_at last_seen_at stopped_at",
        derived={"running": "(SELECT count(*) FROM leases WHERE leases.worker_id = workers.id)"},
    ),
    View("v_runs", "runs", "id state epoch", "alive_until created_at finished_at", "config summary"),
    View("v_rejections", "rejections", "source reason n example", "last_at"),
)
_KEY = "views"


def refresh(conn: Connection) -> None:
    """Make the views, or make them anew when their text has changed. Call it in the transaction that prepares the schema."""
    statements = [view.statement(conn.dialect.name) for view in VIEWS]
    version = digest("\n".join(statements).encode()).encode()
    if _made(conn) == version:
        return
    drop(conn)
    for statement in statements:
        conn.execute(text(statement.replace(":", "\\:")))
    conn.execute(insert(meta).values(key=_KEY, value=version))


def drop(conn: Connection) -> None:
    """Call it before a step that changes a table: views hold tables fast. ``refresh`` makes them again."""
    if _made(conn) is None:
        return
    for view in reversed(VIEWS):
        conn.execute(text(f"DROP VIEW IF EXISTS {view.name}"))
    conn.execute(delete(meta).where(meta.c.key == _KEY))


def _made(conn: Connection) -> bytes | None:
    """What stands for the text that the views were made of."""
    return conn.execute(select(meta.c.value).where(meta.c.key == _KEY)).scalar()
