"""Large values as pieces: each piece lies once in the database, however many values hold it.

The next call of a conversation repeats all that was said before. Cut from the same start into pieces of one size, both calls share all but
the last of them, and a conversation grows by what is new in it.

A packed value is 0x01, then its parts: four bytes n (big-endian), and n bytes as they are, or for n = 0 the sha256 of a piece. What is
shorter than a piece stays as it is. JSON never begins with 0x01, and ids, four bytes each, never have a packed value's length.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any

from leyden.errors import LeydenError
from leyden.server.codec import encode, redact

PIECE = 8192  # bytes: 2048 token ids
MARK = b"\x01"
_HASH = b"\0\0\0\0"  # the n of a piece

Pieces = dict[bytes, bytes]
"""By sha256."""


def pack(runs: Iterable[bytes], pieces: Pieces) -> bytes:
    """The concatenated ``runs``, each cut from its own start; what is cut off is added to ``pieces``. Runs of ids hold whole ids."""
    parts: list[bytes | bytearray] = []
    plain = bytearray()
    for run in runs:
        whole = len(run) - len(run) % PIECE
        for start in range(0, whole, PIECE):
            piece = run[start : start + PIECE]
            key = sha256(piece).digest()
            pieces[key] = piece
            _add_plain(parts, plain)
            parts += (_HASH, key)
        plain += run[whole:]
    if not parts:
        return bytes(plain)
    _add_plain(parts, plain)
    return b"".join([MARK, *parts])


def _add_plain(parts: list[bytes | bytearray], plain: bytearray) -> None:
    if plain:
        parts += (len(plain).to_bytes(4), bytes(plain))
        plain.clear()


def pack_json(value: Any, pieces: Pieces) -> bytes:
    """``value`` as JSON, without secrets. In an object each long value is cut from its own start, whatever the others beside it say."""
    data = encode(value)
    if len(data) < PIECE:
        return redact(data)
    return pack(_runs_of_object(value) if isinstance(value, dict) else [redact(data)], pieces)


def _runs_of_object(value: Mapping[str, Any]) -> Iterator[bytes]:
    short = bytearray(b"{")
    for name, item in value.items():
        entry = redact(encode({name: item}))[1:-1]  # with its name: that may be what tells a secret
        start = len(encode(name)) + 1
        short += entry[:start] if len(short) == 1 else b"," + entry[:start]
        if len(entry) - start >= PIECE:
            yield bytes(short)
            yield entry[start:]
            short = bytearray()
        else:
            short += entry[start:]
    yield bytes(short + b"}")


def is_packed_json(data: bytes) -> bool:
    return data.startswith(MARK)


def are_packed_ids(data: bytes) -> bool:
    return len(data) % 4 == 1


def piece_keys(packed: bytes) -> Iterator[bytes]:
    """The sha256 of each piece that ``packed`` needs, in order."""
    return (part for is_piece, part in _parts(packed) if is_piece)


def unpacked_size(data: bytes) -> int:
    """Of a value, packed or not, without its pieces: those are of one size."""
    if not data.startswith(MARK):
        return len(data)
    return sum(PIECE if is_piece else len(part) for is_piece, part in _parts(data))


def plain_json(data: bytes, pieces: Mapping[bytes, bytes]) -> bytes:
    return unpack(data, pieces) if is_packed_json(data) else data


def plain_ids(data: bytes | None, pieces: Mapping[bytes, bytes]) -> bytes | None:
    return unpack(data, pieces) if data is not None and are_packed_ids(data) else data


def unpack(packed: bytes, pieces: Mapping[bytes, bytes]) -> bytes:
    """The value again. ``pieces`` holds all of ``piece_keys(packed)``."""
    return b"".join(pieces[part] if is_piece else part for is_piece, part in _parts(packed))


def _parts(packed: bytes) -> Iterator[tuple[bool, bytes]]:
    at = 1
    while at < len(packed):
        size = int.from_bytes(packed[at : at + 4])
        at += 4
        end = at + (size or 32)
        if end > len(packed):
            raise LeydenError("a packed value in the database is cut short", "the database is damaged: restore a backup")
        yield size == 0, packed[at:end]
        at = end
