"""Calls of models, one row a choice."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import bindparam, insert, select

from leyden.errors import Conflict, TooLarge
from leyden.server import records
from leyden.server.operations.blobs import load_pieces, size_of, store_pieces
from leyden.server.operations.captured import is_late, rows_of_attempts
from leyden.server.operations.transitions import CHUNK
from leyden.server.rows import Batch
from leyden.server.schema import generations
from leyden.server.transaction import Transaction
from leyden.types import Generation, LeaseRef

MAX_ANSWER = 256 << 20  # bytes of the generations of one answer, as they are when their pieces are put together

_KNOWN = select(generations.c.id, generations.c.rollout_id, generations.c.attempt).where(
    generations.c.id.in_(bindparam("ids", expanding=True))
)


def add_generations(tx: Transaction, ref: LeaseRef, batch: Batch) -> None:
    late = is_late(tx, ref)
    new = {row["id"]: row for row in batch.rows}
    ids = list(new)
    for start in range(0, len(ids), CHUNK):
        for row in tx.conn.execute(_KNOWN, {"ids": ids[start : start + CHUNK]}):
            if (row.rollout_id, row.attempt) != (ref.rollout_id, ref.attempt):
                raise Conflict(f"generation {row.id} already belongs to another attempt")
            del new[row.id]
    if new:
        store_pieces(tx, generations, new.values(), batch.pieces)
        tx.conn.execute(insert(generations), [{**row, "late": late} for row in new.values()])


def list_generations(tx: Transaction, rollout_ids: Sequence[str], attempt: int | None) -> list[Generation]:
    """Raises ``TooLarge`` where one answer cannot hold them."""
    conditions = [generations.c.late.is_(False)] if attempt is None else []
    rows = rows_of_attempts(tx, generations, rollout_ids, attempt, conditions)
    if sum(size_of(generations, row._mapping) for row in rows) > MAX_ANSWER:
        raise TooLarge(f"these generations hold more than {MAX_ANSWER >> 20} MiB", "ask for fewer rollouts at once, or one attempt")
    rows.sort(key=lambda row: (row.started_at, row.seq))
    pieces = load_pieces(tx, generations, (row._mapping for row in rows))
    return [records.generation(row, pieces) for row in rows]
