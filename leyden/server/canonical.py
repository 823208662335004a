"""JSON that every reader takes: databases' own JSON functions refuse or cut what Python and some senders call JSON."""

from __future__ import annotations

from math import isfinite, isnan
from operator import is_
from typing import Any

from leyden.errors import InvalidRequest
from leyden.server.codec import clean_text

ALTERED = "leyden.altered"  # attribute: the names of those that are not as they were sent
MAX_DEPTH = 64
_INTEGERS = range(-(2**63), 2**63)


def canonical(value: Any, depth: int = 0) -> Any:
    """``value`` itself where it is harmless. Otherwise with NUL and lone surrogates as U+FFFD, and with numbers that are not finite or
    beyond 64 bits as strings. Raises ``InvalidRequest`` for what is nested deeper than ``MAX_DEPTH``."""
    kind = type(value)
    if kind is str:
        if value.isascii() and "\0" not in value:
            return value
        clean = clean_text(value)
        return value if clean == value else clean
    if kind is int:
        return value if value in _INTEGERS else _digits(value)
    if kind is float:
        return value if isfinite(value) else "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if kind is list or kind is tuple:
        items = [canonical(item, _deeper(depth)) for item in value]
        return value if all(map(is_, items, value)) else items
    if kind is dict:
        deeper = _deeper(depth)
        fields = {canonical(name): canonical(item, deeper) for name, item in value.items()}
        return value if all(map(is_, fields, value)) and all(map(is_, fields.values(), value.values())) else fields
    return value


def _deeper(depth: int) -> int:
    if depth == MAX_DEPTH:
        raise InvalidRequest(f"a value is nested deeper than {MAX_DEPTH}")
    return depth + 1


def mark_altered(attributes: dict[str, Any], sent: dict[str, Any], others: dict[str, tuple[Any, Any]]) -> dict[str, Any]:
    """The canonical ``attributes`` with a list of those that are not as they were ``sent``, if there are any. ``others``: what else of the
    same span was made canonical, and from what, by name."""
    altered = [] if attributes is sent else [name for name, item in attributes.items() if sent.get(name) is not item]
    altered += [name for name, (now, before) in others.items() if now is not before]
    return {**attributes, ALTERED: altered} if altered else attributes


def _digits(value: int) -> str:
    return str(value) if value.bit_length() <= 4096 else hex(value)  # Python refuses to print very long ones in tens
