"""Calls of models, one row a choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import String, bindparam, insert, select

from leyden.errors import Conflict, TooLarge
from leyden.server import records
from leyden.server.bulk import Bulk
from leyden.server.operations import audits
from leyden.server.operations.blobs import load_pieces, size_of, store_pieces
from leyden.server.operations.captured import holders, is_late, rows_of_attempts
from leyden.server.operations.spans import insert_spans
from leyden.server.operations.transitions import CHUNK
from leyden.server.rows import Batch
from leyden.server.schema import generations
from leyden.server.transaction import Transaction
from leyden.types import Generation, LeaseRef

MAX_ANSWER = 256 << 20  # bytes of the generations of one answer, as they are when their pieces are put together

_KNOWN = select(generations.c.id, generations.c.rollout_id, generations.c.attempt).where(
    generations.c.id.in_(bindparam("ids", expanding=True, type_=String()))
)
_INSERT = Bulk(insert(generations))


@dataclass(frozen=True)
class Recorded:
    """Generations under one lease, and the spans of the same calls."""

    ref: LeaseRef
    batch: Batch
    beside: Batch

    @property
    def size(self) -> int:
        return self.batch.size + self.beside.size


def add_generations(tx: Transaction, calls: Sequence[Recorded]) -> None:
    """All or none, of however many leases."""
    refs = sorted({call.ref for call in calls}, key=lambda ref: (ref.rollout_id, ref.attempt))
    held = holders(tx, refs)
    late = {ref: ref not in held and is_late(tx, ref) for ref in refs}
    new: dict[str, dict[str, Any]] = {}
    for call in calls:
        for row in call.batch.rows:
            first = new.setdefault(row["id"], {**row, "late": late[call.ref]})
            if (first["rollout_id"], first["attempt"]) != (row["rollout_id"], row["attempt"]):
                raise _taken(row["id"])
    ids = list(new)
    for start in range(0, len(ids), CHUNK):
        for known in tx.conn.execute(_KNOWN, {"ids": ids[start : start + CHUNK]}).all():
            again = new.pop(known.id)
            if (known.rollout_id, known.attempt) != (again["rollout_id"], again["attempt"]):
                raise _taken(known.id)
    if new:
        store_pieces(tx, generations, new.values(), {key: piece for call in calls for key, piece in call.batch.pieces.items()})
        _INSERT.run(tx, list(new.values()))
        tx.changes.count("ingested", "generations", len(new))
    beside = Batch(pieces={key: piece for call in calls for key, piece in call.beside.pieces.items()})
    beside.rows = [
        {**row, "rollout_id": call.ref.rollout_id, "attempt": call.ref.attempt, "late": late[call.ref]}
        for call in calls
        for row in call.beside.rows
    ]
    insert_spans(tx, beside.rows, beside)
    if new:
        audits.count_new(tx, new.values(), {row.id: row for row in held.values()})


def _taken(generation_id: str) -> Conflict:
    return Conflict(f"generation {generation_id} already belongs to another attempt")


def list_generations(tx: Transaction, rollout_ids: Sequence[str], attempt: int | None) -> list[Generation]:
    """Raises ``TooLarge`` where one answer cannot hold them."""
    conditions = [generations.c.late.is_(False)] if attempt is None else []
    rows = rows_of_attempts(tx, generations, rollout_ids, attempt, conditions)
    if sum(size_of(generations, row._mapping) for row in rows) > MAX_ANSWER:
        raise TooLarge(f"these generations hold more than {MAX_ANSWER >> 20} MiB", "ask for fewer rollouts at once, or one attempt")
    rows.sort(key=lambda row: (row.started_at, row.seq))
    pieces = load_pieces(tx, generations, (row._mapping for row in rows))
    return [records.generation(row, pieces) for row in rows]
