"""Between Python values and what lies in the database: exact JSON bytes, packed token ids, text any dialect can hold, no secrets."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from array import array
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, from_json, to_json

from leyden.errors import InvalidRequest
from leyden.record import CACHE_STRINGS

_SURROGATE = re.compile("[\ud800-\udfff]")
_REPLACEMENT = "\ufffd"

# Sought in lower-cased bytes; patterns that begin with plain letters are found at 2 GB/s, a hundred times as fast as others (measured).
_SECRETS = (
    # Of any name that ends so (http.request.header.authorization, x-api-key): a text, or a list of texts.
    re.compile(rb'authorization":(\[)?"(?P<secret>(?:[^"\\]|\\.)*(?(1)(?:","(?:[^"\\]|\\.)*)*))"'),
    re.compile(rb'api[_-]?key":(\[)?"(?P<secret>(?:[^"\\]|\\.)*(?(1)(?:","(?:[^"\\]|\\.)*)*))"'),
    # The same in JSON that is itself text in JSON, as tracers write what they saw.
    re.compile(rb'authorization\\"\s{0,2}:\s{0,2}\[?\s{0,2}\\"(?P<secret>[^"\\]+)'),
    re.compile(rb'api[_-]?key\\"\s{0,2}:\s{0,2}\[?\s{0,2}\\"(?P<secret>[^"\\]+)'),
    # With a digit somewhere: "the bearer documents" is no secret.
    re.compile(rb"bearer (?=[a-z._~+/=-]*\d)(?=(?P<secret>[a-z0-9._~+/=-]{16,}))"),
    re.compile(rb"(?P<secret>sk-(?<![a-z0-9_-]sk-)(?=[a-z_-]*\d)[a-z0-9_-]{20,})"),
)


def encode(value: Any) -> bytes:
    """``value`` as compact JSON that ``decode`` gives back exactly; lone surrogates become U+FFFD.

    NaN and infinities keep their names (``NaN``, ``Infinity``), integers their size. Raises ``InvalidRequest`` for what JSON cannot hold.
    """
    try:
        try:
            return to_json(value, inf_nan_mode="constants")
        except PydanticSerializationError as error:
            if "surrogates not allowed" not in str(error):
                raise
            return to_json(without_surrogates(value), inf_nan_mode="constants")
    except PydanticSerializationError as error:
        raise InvalidRequest(f"not JSON: {error}") from error


def decode(data: bytes) -> Any:
    try:
        return from_json(data, cache_strings=CACHE_STRINGS)
    except ValueError:  # it stops at a depth of 200, ``encode`` at 254
        return json.loads(data)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def clean_text(text: str) -> str:
    """Text that every database takes: PostgreSQL refuses NUL, and UTF-8 has no lone surrogates."""
    if text.isascii():
        return text.replace("\0", _REPLACEMENT) if "\0" in text else text
    return _SURROGATE.sub(_REPLACEMENT, text).replace("\0", _REPLACEMENT)


def without_surrogates(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return without_surrogates(value.model_dump())
    if isinstance(value, str):
        return _SURROGATE.sub(_REPLACEMENT, value)
    if isinstance(value, dict):
        return {without_surrogates(key): without_surrogates(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_surrogates(item) for item in value]
    return value


def redact(data: bytes) -> bytes:
    """JSON bytes without the secrets people send by accident: Authorization headers, ``api_key`` fields, ``sk-…`` keys, bearer tokens."""
    lowered = data.lower()
    if not _may_hold_secrets(lowered):
        return data
    found = sorted((match.start("secret"), -match.end("secret")) for pattern in _SECRETS for match in pattern.finditer(lowered))
    if not found:
        return data
    parts: list[bytes] = []
    done = 0
    for start, minus_end in found:
        if start >= done:  # else a secret inside the one before
            parts += (data[done:start], b"[redacted]")
            done = -minus_end
    return b"".join([*parts, data[done:]])


def _may_hold_secrets(lowered: bytes) -> bool:
    """Whether there is one of the words that are in all that the patterns find. To ask first costs a tenth; a loop would double that."""
    return (
        b"sk-" in lowered
        or b"bearer " in lowered
        or b"authorization" in lowered
        or b"api_key" in lowered
        or b"api-key" in lowered
        or b"apikey" in lowered
    )


def redact_text(text: str) -> str:
    """The same for text that stands alone, and perhaps is JSON itself; cleaned too."""
    text = clean_text(text)
    if not _may_hold_secrets(text.lower().encode()):
        return text
    encoded = encode(text)
    redacted = redact(encoded)
    return text if redacted is encoded else str(decode(redacted))


def pack_ids(ids: Sequence[int] | None) -> bytes | None:
    """Token ids as int32, native order (little-endian on every machine torch runs on). Raises ``InvalidRequest`` beyond int32."""
    if ids is None:
        return None
    try:
        return int32_array(ids).tobytes()
    except OverflowError as error:
        raise InvalidRequest(f"a token id is not an int32: {error}") from error


def int32_array(ids: Sequence[int]) -> array[int]:
    """Raises ``OverflowError``. ``array("i", ids)`` takes three times as long: it reads each id as a function would read an argument."""
    try:
        return array("i", struct.pack(f"{len(ids)}i", *ids))
    except struct.error as error:
        raise OverflowError(str(error)) from error


def unpack_ids(data: bytes | None) -> list[int] | None:
    return None if data is None else array("i", data).tolist()


def pack_floats(values: Sequence[float] | None) -> bytes | None:
    """Log-probabilities as float32."""
    return None if values is None else array("f", values).tobytes()


def unpack_floats(data: bytes | None) -> list[float] | None:
    return None if data is None else array("f", data).tolist()
