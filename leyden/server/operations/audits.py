"""What audits found: counted by run, iteration and mode in the transaction of the write, and listed call by call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Row, delete, func, select
from sqlalchemy.dialects import postgresql, sqlite

from leyden.audit import AuditCounts, CallAudit, Continuity, Finding
from leyden.server import records
from leyden.server.bulk import Bulk
from leyden.server.operations.transitions import CHUNK, rows_by_id
from leyden.server.records import RolloutRow
from leyden.server.schema import audit_counts, generations
from leyden.server.transaction import Transaction
from leyden.types import Mode

_KEY = [column.name for column in audit_counts.primary_key]
_COUNTED = [generations.c[name] for name in ("rollout_id", "status", "late", "findings", "continuity", "exact", "audit")]
_NARROW = [
    column
    for column in generations.c
    if column.name not in ("prompt_token_ids", "response_token_ids", "logprobs", "request", "response", "sampling", "error")
]
_NUMBERS = ("calls", "flagged", "exact", "vocabulary_unknown", "unaudited", "failed", "late")
_KNOWN = b'"vocabulary"'  # whether it was is all that is asked of the texts, and cheap to see


def _upsert(insert: Any) -> Any:
    new = insert(audit_counts)
    return new.on_conflict_do_update(index_elements=_KEY, set_={"n": audit_counts.c.n + new.excluded.n})


_ADD = Bulk({"sqlite": _upsert(sqlite.insert), "postgresql": _upsert(postgresql.insert)})


def count_new(tx: Transaction, rows: Iterable[Mapping[str, Any]], rollouts: Mapping[str, Row[Any] | RolloutRow]) -> None:
    """Add generations, as they are inserted. ``rollouts``: ``id``, ``run_id``, ``iteration`` and ``mode``, as far as they are known.
    The last rows that their transaction locks."""
    found: dict[str, Counter[str]] = {}
    for row in rows:
        found.setdefault(row["rollout_id"], Counter()).update(_what(row))
    others = rows_by_id(tx, [rollout_id for rollout_id in found if rollout_id not in rollouts])
    _shift(tx, [*rollouts.values(), *others.values()], found, 1)


def delete_counted(tx: Transaction, rollouts: Sequence[Row[Any]]) -> int:
    """Delete all generations of ``rollouts`` (at most 500) and take away what they counted as; returns how many there were."""
    found: dict[str, Counter[str]] = {}
    gone = delete(generations).where(generations.c.rollout_id.in_([row.id for row in rollouts])).returning(*_COUNTED)
    rows = tx.conn.execute(gone).all()
    for row in rows:
        found.setdefault(row.rollout_id, Counter()).update(_what(row._mapping))
    _shift(tx, rollouts, found, -1)
    return len(rows)


def _shift(tx: Transaction, rollouts: Iterable[Row[Any] | RolloutRow], found: Mapping[str, Counter[str]], sign: int) -> None:
    deltas: Counter[tuple[str, int, str, str]] = Counter()
    for row in rollouts:
        for what, n in found.get(row.id, {}).items():
            deltas[row.run_id or "", -1 if row.iteration is None else row.iteration, row.mode, what] += sign * n
    if deltas:
        _ADD.run(tx, [dict(zip(_KEY, key, strict=True)) | {"n": n} for key, n in sorted(deltas.items())])


def _what(row: Mapping[Any, Any]) -> Iterator[str]:
    """Everything that one generation counts as."""
    if row["late"]:
        yield "late"
    elif row["status"] != "ok":
        yield "failed"
    elif row["findings"] is None:
        yield "unaudited"
    else:
        yield "calls"
        findings = row["findings"].split()
        yield from findings
        if findings:
            yield "flagged"
        if row["continuity"] is not None:
            yield str(row["continuity"])
        if row["exact"]:
            yield "exact"
        if _KNOWN not in row["audit"]:
            yield "vocabulary_unknown"


def counts(tx: Transaction, run_id: str | None, iteration: int | None, mode: Mode | None) -> AuditCounts:
    """None: all of them."""
    query = select(audit_counts.c.what, func.sum(audit_counts.c.n).label("n")).group_by(audit_counts.c.what)
    for column, value in ((audit_counts.c.run_id, run_id), (audit_counts.c.iteration, iteration), (audit_counts.c.mode, mode)):
        if value is not None:
            query = query.where(column == value)
    found = {row.what: int(row.n) for row in tx.conn.execute(query) if row.n}
    return AuditCounts(
        **{name: found.get(name, 0) for name in _NUMBERS},
        continuity={kind: found[kind] for kind in Continuity if kind in found},
        findings={finding: found[finding] for finding in Finding if finding in found},
    )


def list_audits(tx: Transaction, rollout_ids: Sequence[str], attempt: int | None) -> list[CallAudit]:
    """Rollout by rollout in the order asked for, each one's attempts and calls in their order."""
    ids = list(dict.fromkeys(rollout_ids))
    rows: list[Row[Any]] = []
    for start in range(0, len(ids), CHUNK):
        query = select(*_NARROW).where(generations.c.rollout_id.in_(ids[start : start + CHUNK]))
        rows += tx.conn.execute(query if attempt is None else query.where(generations.c.attempt == attempt)).all()
    place = {rollout_id: n for n, rollout_id in enumerate(ids)}
    rows.sort(key=lambda row: (place[row.rollout_id], row.attempt, row.started_at, row.seq))
    turns: dict[tuple[str, int], dict[str, int]] = {}
    return [records.call_audit(row, _turn(turns.setdefault((row.rollout_id, row.attempt), {}), row.call_id)) for row in rows]


def _turn(calls: dict[str, int], call_id: str) -> int:
    return calls.setdefault(call_id, len(calls) + 1)
