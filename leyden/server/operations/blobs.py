"""The pieces of large values: stored once, counted by their users, checked when they are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

from sqlalchemy import Table, bindparam, select
from sqlalchemy.dialects import postgresql, sqlite

from leyden.errors import LeydenError
from leyden.server.operations.transitions import CHUNK
from leyden.server.packing import Pieces, are_packed_ids, is_packed_json, piece_keys, unpacked_size
from leyden.server.schema import blob_uses, blobs, generations, spans
from leyden.server.transaction import Transaction

_JSON = {spans: ("attributes", "events", "links", "resource"), generations: ("request", "response")}
_IDS: dict[Table, tuple[str, ...]] = {spans: (), generations: ("prompt_token_ids",)}


def _insert(insert: Any) -> tuple[Any, Any]:
    use = insert(blob_uses)
    # A use that is there already is written again, so that it is locked: a prune that is deleting it must not win unseen.
    return insert(blobs).on_conflict_do_nothing(), use.on_conflict_do_update(
        index_elements=[blob_uses.c.sha256, blob_uses.c.owner], set_={"owner": use.excluded.owner}
    )


_KEEP = {"sqlite": _insert(sqlite.insert), "postgresql": _insert(postgresql.insert)}
_KNOWN = select(blobs.c.sha256).where(blobs.c.sha256.in_(bindparam("keys", expanding=True)))
_PIECES = select(blobs).where(blobs.c.sha256.in_(bindparam("keys", expanding=True)))


def store_pieces(tx: Transaction, table: Table, rows: Iterable[Mapping[Any, Any]], pieces: Mapping[bytes, bytes]) -> None:
    """What ``rows`` need of ``pieces``, used by each row's rollout, or by its trace where it has none."""
    uses = {(key, row["rollout_id"] or row["trace_id"]) for row in rows for key in _keys(table, row)}
    if not uses:
        return
    keep_piece, keep_use = _KEEP[tx.dialect]
    missing = _missing(tx, {key for key, _ in uses})
    # In order, so that two writers of the same pieces wait for each other and never for ever.
    if missing:
        tx.conn.execute(keep_piece, [{"sha256": key, "data": pieces[key]} for key in missing])
    tx.conn.execute(keep_use, [{"sha256": key, "owner": owner} for key, owner in sorted(uses)])


def _missing(tx: Transaction, wanted: set[bytes]) -> list[bytes]:
    """A prefix that repeats is not sent to the database each time. One that is pruned at this moment fails at its use, and the operation is
    run again."""
    keys = sorted(wanted)
    known: set[bytes] = set()
    for start in range(0, len(keys), CHUNK):
        known.update(tx.conn.execute(_KNOWN, {"keys": keys[start : start + CHUNK]}).scalars())
    return [key for key in keys if key not in known]


def load_pieces(tx: Transaction, table: Table, rows: Iterable[Mapping[Any, Any]]) -> Pieces:
    """All that ``rows`` need. Raises ``LeydenError`` for one that is missing or is not what it was."""
    keys = sorted({key for row in rows for key in _keys(table, row)})
    pieces: Pieces = {}
    for start in range(0, len(keys), CHUNK):
        pieces.update(_load(tx, keys[start : start + CHUNK]))
    return pieces


def has_pieces(table: Table, row: Mapping[Any, Any]) -> bool:
    return next(_keys(table, row), None) is not None


def size_of(table: Table, row: Mapping[Any, Any]) -> int:
    """Bytes of the row's long values, with their pieces; it needs none of them."""
    size = sum(unpacked_size(data) for column in _JSON[table] if (data := row[column]) is not None)
    for column in _IDS[table]:
        if (data := row[column]) is not None:
            size += unpacked_size(data) if are_packed_ids(data) else len(data)
    return size


def _load(tx: Transaction, keys: Sequence[bytes]) -> Pieces:
    found: Pieces = {row.sha256: row.data for row in tx.conn.execute(_PIECES, {"keys": keys})}
    for key in keys:
        if key not in found or sha256(found[key]).digest() != key:
            state = "has changed" if key in found else "is missing"
            raise LeydenError(f"piece {key.hex()[:12]} of a captured value {state}", "the database is damaged: restore a backup")
    return found


def _keys(table: Table, row: Mapping[Any, Any]) -> Iterator[bytes]:
    for column in _JSON[table]:
        if (data := row[column]) is not None and is_packed_json(data):
            yield from piece_keys(data)
    for column in _IDS[table]:
        if (data := row[column]) is not None and are_packed_ids(data):
            yield from piece_keys(data)
