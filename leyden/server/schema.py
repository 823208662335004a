"""The tables, for every dialect. Instants are integer microseconds, JSON is bytes (``codec.encode``) so that it reads back exactly."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    literal_column,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeEngine

from leyden.server.codec import clean_text

SCHEMA_VERSION = 6  # a step for each in ``migrations``


# One each: SQLAlchemy remembers what a dialect makes of a type by the type, and asks for it with every IN (...).
_PLAIN_TEXT, _SORTED_BY_BYTES = Text(), Text(collation="C")


class SafeText(TypeDecorator[str]):
    """Text cleaned on its way in, so that no odd character can fail a statement; sorted by its bytes on every dialect."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return _SORTED_BY_BYTES if dialect.name == "postgresql" else _PLAIN_TEXT

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else clean_text(value)


def _partial(condition: str) -> dict[str, Any]:
    """The same partial index on every dialect."""
    return {f"{dialect}_where": literal_column(condition) for dialect in ("sqlite", "postgresql")}


# Rows that change often: room for new versions in the same page, and vacuumed early (PostgreSQL).
_HOT: dict[str, Any] = {"postgresql_with": {"fillfactor": 70, "autovacuum_vacuum_scale_factor": 0.01}}

BigKey = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows by itself only in an INTEGER key

metadata = MetaData()

meta = Table(
    "meta",
    metadata,
    Column("key", Text, primary_key=True),
    Column("value", LargeBinary, nullable=False),
)

rollouts = Table(
    "rollouts",
    metadata,
    Column("seq", BigKey, primary_key=True),  # order of creation
    Column("id", SafeText, nullable=False, unique=True),
    Column("state", SafeText, nullable=False),
    Column("mode", SafeText, nullable=False),
    Column("queue", SafeText, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("run_id", SafeText),
    Column("iteration", BigInteger),
    Column("resources_id", SafeText),  # as asked; the attempt has the version it was claimed with
    Column("input", LargeBinary, nullable=False),
    Column("config", LargeBinary, nullable=False),
    Column("metadata", LargeBinary, nullable=False),
    Column("group_key", SafeText),
    Column("environment_class_id", SafeText),
    Column("episode_spec_id", SafeText),
    Column("episode_id", SafeText),
    Column("seed", BigInteger),
    Column("attempt", Integer, nullable=False),
    Column("failures", Integer, nullable=False),  # attempts that failed since it was queued (or queued again on request)
    Column("lost", Integer, nullable=False),  # attempts whose runner went away, since then
    Column("released", Integer, nullable=False),  # attempts that were handed back unharmed
    Column("lease_token", BigInteger, nullable=False),  # +1 with every transition: the fence, and the compare-and-set
    Column("available_at", BigInteger),  # of a scheduled one
    Column("failure", SafeText),
    Column("error", SafeText),
    Column("created_at", BigInteger, nullable=False),
    Column("finished_at", BigInteger),
    Column("idempotency_key", SafeText, unique=True),  # for ever: a late retry of a client must not queue it again
    Column("request_hash", Text),  # of all but the key and the resources: those may be named anew
    Column("requeue_id", SafeText),  # of the request that queued it again last: its retry is not a second one
    Column("revision", BigInteger, nullable=False),  # of the transaction that changed it last: see ``Transaction.revision``
    **_HOT,
)
# Only what can be claimed is in the claim's index: scheduled rows left in it make a claim 86 times slower (measured).
Index("rollouts_ready", rollouts.c.queue, rollouts.c.priority, rollouts.c.seq, rollouts.c.resources_id, **_partial("state = 'queued'"))
Index("rollouts_due", rollouts.c.available_at, **_partial("available_at IS NOT NULL"))
Index("rollouts_run", rollouts.c.run_id, rollouts.c.seq)
Index("rollouts_group", rollouts.c.group_key, rollouts.c.seq, **_partial("group_key IS NOT NULL"))
Index("rollouts_state", rollouts.c.state, rollouts.c.seq)
# For lists: a queue, a mode or a failure that few of a million have is otherwise looked for among all of them.
Index("rollouts_queue", rollouts.c.queue, rollouts.c.seq)
Index("rollouts_mode", rollouts.c.mode, rollouts.c.seq)
Index("rollouts_iteration", rollouts.c.iteration, rollouts.c.seq, **_partial("iteration IS NOT NULL"))
Index("rollouts_failure", rollouts.c.failure, rollouts.c.seq, **_partial("failure IS NOT NULL"))
Index("rollouts_created", rollouts.c.created_at, rollouts.c.seq)
Index("rollouts_finished", rollouts.c.finished_at, **_partial("finished_at IS NOT NULL"))
Index("rollouts_revision", rollouts.c.revision, rollouts.c.seq)
Index("rollouts_resources", rollouts.c.resources_id, **_partial("resources_id IS NOT NULL"))  # to see that none names one any more

queues = Table(  # only those that were paused or limited once: any other name is a queue without a row
    "queues",
    metadata,
    Column("name", SafeText, primary_key=True),
    Column("paused", Boolean, nullable=False),
    Column("max_running", Integer),  # None: no limit
    Column("changed_at", BigInteger, nullable=False),
)

leases = Table(  # hot and narrow: one row a running attempt, deleted at its end; no index on what a beat changes
    "leases",
    metadata,
    Column("rollout_id", SafeText, primary_key=True),
    Column("attempt", Integer, nullable=False),
    Column("token", BigInteger, nullable=False),
    Column("worker_id", SafeText, nullable=False),
    Column("queue", SafeText, nullable=False, index=True),
    Column("duration", BigInteger, nullable=False),  # microseconds a beat extends it by
    Column("expires_at", BigInteger, nullable=False),
    Column("deadline_at", BigInteger, nullable=False),
    **_HOT,
)

attempts = Table(
    "attempts",
    metadata,
    Column("rollout_id", SafeText, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("token", BigInteger, nullable=False),
    Column("state", SafeText, nullable=False),
    Column("failure", SafeText),
    Column("error", SafeText),
    Column("worker_id", SafeText, nullable=False),
    Column("resources_id", SafeText, index=True),
    Column("request_id", SafeText, index=True),  # of the claim
    Column("started_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
)

counters = Table(
    "counters",
    metadata,
    Column("run_id", SafeText, primary_key=True),  # "" for none
    Column("iteration", BigInteger, primary_key=True),  # -1 for none
    Column("mode", SafeText, primary_key=True),
    Column("queue", SafeText, primary_key=True),
    Column("state", SafeText, primary_key=True),
    Column("failure", SafeText, primary_key=True),  # of a final one; "" for none
    Column("n", BigInteger, nullable=False),
    **_HOT,
)

spans = Table(
    "spans",
    metadata,
    Column("seq", BigKey, primary_key=True),
    Column("rollout_id", SafeText),  # None: of no attempt
    Column("attempt", Integer),
    Column("trace_id", Text, nullable=False),
    Column("span_id", Text, nullable=False),
    Column("parent_id", Text),
    Column("name", SafeText, nullable=False),
    Column("kind", SafeText, nullable=False),
    Column("start_ns", BigInteger, nullable=False),
    Column("end_ns", BigInteger, nullable=False),
    Column("status", SafeText, nullable=False),
    Column("status_message", SafeText),
    Column("attributes", LargeBinary, nullable=False),  # as sent; large values are packed (``packing``)
    Column("events", LargeBinary, nullable=False),
    Column("links", LargeBinary),
    Column("resource", LargeBinary),  # attributes of the process that sent it
    Column("scope", SafeText),  # the instrumentation library
    Column("late", Boolean, nullable=False),
    Column("received_at", BigInteger, nullable=False),
    # What the normaliser read out of the attributes.
    Column("normalizer", Integer),  # its version; None: before there was one
    Column("operation", SafeText),
    Column("model", SafeText),
    Column("provider", SafeText),
    Column("input_tokens", BigInteger),
    Column("output_tokens", BigInteger),
    Column("cached_tokens", BigInteger),
    Column("reasoning_tokens", BigInteger),
    Column("finish_reason", SafeText),
    Column("tool_name", SafeText),
    Column("agent_name", SafeText),
    Column("conversation_id", SafeText),
    Column("error_type", SafeText),
    UniqueConstraint("trace_id", "span_id"),
    Index("spans_attempt", "rollout_id", "attempt", "start_ns"),
)
Index("spans_trace", spans.c.trace_id, spans.c.seq)  # to see at once which was a trace's first, however many it has
Index("spans_received", spans.c.received_at, spans.c.seq)
Index("spans_name", spans.c.name, spans.c.received_at, spans.c.seq)
Index("spans_status", spans.c.status, spans.c.received_at, spans.c.seq)
Index("spans_model", spans.c.model, spans.c.received_at, spans.c.seq, **_partial("model IS NOT NULL"))
Index("spans_operation", spans.c.operation, spans.c.received_at, spans.c.seq, **_partial("operation IS NOT NULL"))
Index("spans_unattached", spans.c.received_at, spans.c.seq, **_partial("rollout_id IS NULL"))

blobs = Table(  # pieces of large values, each stored once
    "blobs",
    metadata,
    Column("sha256", LargeBinary, primary_key=True),
    Column("data", LargeBinary, nullable=False),
)

blob_uses = Table(  # a blob without a use is garbage; the foreign key makes a prune and an ingest that race retry
    "blob_uses",
    metadata,
    Column("sha256", LargeBinary, ForeignKey("blobs.sha256"), primary_key=True),
    Column("owner", SafeText, primary_key=True, index=True),  # a rollout id, or the trace id of spans of none
)

rejections = Table(  # what was sent and not stored, by reason
    "rejections",
    metadata,
    Column("source", SafeText, primary_key=True),
    Column("reason", SafeText, primary_key=True),
    Column("n", BigInteger, nullable=False),
    Column("example", SafeText, nullable=False),
    Column("last_at", BigInteger, nullable=False),
)

generations = Table(
    "generations",
    metadata,
    Column("seq", BigKey, primary_key=True),
    Column("id", SafeText, nullable=False, unique=True),
    Column("call_id", SafeText, nullable=False),
    Column("rollout_id", SafeText, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("choice", Integer, nullable=False),
    Column("model", SafeText, nullable=False),
    Column("deployment", SafeText),
    Column("checkpoint", SafeText),
    Column("status", SafeText, nullable=False),
    Column("error", SafeText),
    Column("prompt_token_ids", LargeBinary),  # int32; packed (``packing``), as request and response are
    Column("response_token_ids", LargeBinary),  # int32
    Column("logprobs", LargeBinary),  # float32
    Column("sampling", LargeBinary, nullable=False),
    Column("finish_reason", SafeText),
    Column("prompt_tokens", BigInteger),
    Column("completion_tokens", BigInteger),
    Column("request", LargeBinary, nullable=False),
    Column("response", LargeBinary),
    Column("started_at", BigInteger, nullable=False),
    Column("latency", Double, nullable=False),
    Column("late", Boolean, nullable=False),
    # What its audit found; all NULL where there was none.
    Column("findings", SafeText),  # names with a space between; "" where nothing was found
    Column("continuity", SafeText),
    Column("follows", SafeText),  # a generation
    Column("differs_at", BigInteger),
    Column("exact", Boolean),
    Column("audit", LargeBinary),  # the rest, for people to read
    Index("generations_attempt", "rollout_id", "attempt", "started_at"),
)

audit_counts = Table(  # generations by what was found, kept as ``counters`` are
    "audit_counts",
    metadata,
    Column("run_id", SafeText, primary_key=True),  # "" for none
    Column("iteration", BigInteger, primary_key=True),  # -1 for none
    Column("mode", SafeText, primary_key=True),
    Column("what", SafeText, primary_key=True),  # a continuity, a finding, or a number of ``AuditCounts``
    Column("n", BigInteger, nullable=False),
    **_HOT,
)

rewards = Table(
    "rewards",
    metadata,
    Column("seq", BigKey, primary_key=True),
    Column("rollout_id", SafeText, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("name", SafeText, nullable=False),
    Column("source", SafeText, nullable=False),
    Column("position", SafeText, nullable=False),
    Column("value", Double, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    UniqueConstraint("rollout_id", "attempt", "name", "source", "position"),
)

resources = Table(
    "resources",
    metadata,
    Column("version", BigKey, primary_key=True),
    Column("id", SafeText, nullable=False, unique=True),
    Column("body", LargeBinary, nullable=False),
    Column("alive_until", BigInteger),  # None: it has no lease and lives until retired
    Column("retired_at", BigInteger),
    Column("created_at", BigInteger, nullable=False),
    Column("idempotency_key", SafeText, unique=True),
    Column("request_hash", Text, nullable=False),
)

workers = Table(
    "workers",
    metadata,
    Column("id", SafeText, primary_key=True),
    Column("name", SafeText, nullable=False),
    Column("pid", BigInteger),
    Column("host", SafeText),
    Column("capacity", Integer, nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("last_seen_at", BigInteger, nullable=False),
    Column("stopped_at", BigInteger),
)

runs = Table(
    "runs",
    metadata,
    Column("seq", BigKey, primary_key=True),
    Column("id", SafeText, nullable=False, unique=True),
    Column("state", SafeText, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("config", LargeBinary, nullable=False),
    Column("summary", LargeBinary),
    Column("request_id", SafeText),  # of the start that made this epoch: its retry is not a second driver
    Column("alive_until", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("finished_at", BigInteger),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", SafeText, nullable=False),
    Column("hash", Text, nullable=False),  # SHA-256, hex
    Column("scopes", Text, nullable=False),  # with a space between
    Column("created_at", BigInteger, nullable=False),
    Column("revoked_at", BigInteger),
)
