"""Large values as pieces: what goes in comes out, and a conversation that grows shares what it repeats."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leyden.errors import InvalidRequest, LeydenError
from leyden.server.codec import decode, encode, pack_ids, redact, unpack_ids
from leyden.server.packing import PIECE, Pieces, are_packed_ids, is_packed_json, pack, pack_json, piece_keys, plain_ids, plain_json

plain = st.none() | st.booleans() | st.integers() | st.text(max_size=20)
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4), max_leaves=8
)
long_texts = st.builds(lambda unit, times: unit * times, st.text(min_size=1, max_size=5), st.integers(1000, 8000))


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.text(max_size=8), values | long_texts, max_size=6) | st.lists(values | long_texts, max_size=5))
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    pieces: Pieces = {}
    packed = pack_json(value, pieces)
    assert plain_json(packed, pieces) == redact(encode(value))
    assert is_packed_json(packed) == bool(pieces) and set(piece_keys(packed) if pieces else ()) == set(pieces)
    assert all(len(piece) == PIECE for piece in pieces.values())


@pytest.mark.parametrize("n", [0, 1, 2, 255, 2047, 2048, 2049, 4096, 5000])
def test_ids_come_back_as_they_were_and_old_rows_are_never_taken_for_packed_ones(n: int) -> None:
    ids = [1, *range(n)][:n]  # the first byte of a row of ids may be 0x01
    raw = pack_ids(ids)
    assert raw is not None and not are_packed_ids(raw)
    pieces: Pieces = {}
    packed = pack([raw], pieces)
    assert are_packed_ids(packed) == (n >= 2048)
    assert unpack_ids(plain_ids(packed, pieces)) == ids and unpack_ids(plain_ids(raw, {})) == ids
    assert plain_ids(None, {}) is None


def test_a_prefix_that_repeats_is_the_same_pieces() -> None:
    messages = [{"role": "user", "content": f"message {n}: " + "word " * 500} for n in range(50)]
    pieces: Pieces = {}
    stored = 0
    for turn in range(1, 51):
        before = sum(map(len, pieces.values()))
        packed = pack_json({"model": "m" * turn, "messages": messages[:turn], "seed": turn}, pieces)
        assert decode(plain_json(packed, pieces))["messages"] == messages[:turn]
        stored += len(packed) + sum(map(len, pieces.values())) - before
    said = len(json.dumps(messages))
    assert stored < 4 * said, "linear: the whole of each turn would be 25 times what was said"


def test_a_secret_is_gone_before_pieces_are_cut() -> None:
    key = "sk-" + "a1b2c3d4e5f6g7h8i9j0k1"
    value = {
        "text": "x" * (PIECE - 20) + f" {key} " + "y" * PIECE,
        "headers": {"authorization": "z" * (2 * PIECE)},
        "api_key": "s3cret" * PIECE,
        "short": f"Bearer {key}",
    }
    pieces: Pieces = {}
    packed = pack_json(value, pieces)
    whole = plain_json(packed, pieces)
    assert decode(whole) == {
        "text": "x" * (PIECE - 20) + " [redacted] " + "y" * PIECE,
        "headers": {"authorization": "[redacted]"},
        "api_key": "[redacted]",
        "short": "Bearer [redacted]",
    }
    assert not any(secret in data for secret in (key.encode(), b"s3cret", b"zzz") for data in (packed, *pieces.values()))


def test_a_secret_in_json_within_json_is_gone() -> None:
    inner = {"headers": {"Authorization": "hush hush"}, "x-api-key": "hush", "apiKey": "hush", "api_version": "2", "monkey": "banana"}
    for text in (json.dumps(inner), json.dumps(inner, separators=(",", ":"))):
        kept = json.loads(decode(pack_json({"llm.invocation_parameters": text}, {}))["llm.invocation_parameters"])
        gone = {"headers": {"Authorization": "[redacted]"}, "x-api-key": "[redacted]", "apiKey": "[redacted]"}
        assert kept == inner | gone


def test_a_packed_value_that_is_cut_short_says_so() -> None:
    pieces: Pieces = {}
    packed = pack([b"x" * (3 * PIECE + 5)], pieces)
    for cut in (packed[:-1], packed[:20], packed[:3]):
        with pytest.raises(LeydenError, match="cut short"):
            plain_json(cut, pieces)


def test_what_json_cannot_hold_is_refused_beside_half_a_character_too() -> None:
    assert decode(encode({"half": "\ud800", "number": 1})) == {"half": "\ufffd", "number": 1}
    for value in (object(), {"half": "\ud800", "other": object()}):
        with pytest.raises(InvalidRequest, match="not JSON"):
            encode(value)


@pytest.mark.parametrize("depth", [199, 250])
def test_whatever_can_be_written_can_be_read(depth: int) -> None:
    value: Any = float("inf")
    for _ in range(depth):
        value = [value]
    assert decode(encode(value)) == value
