"""JSON that every reader takes: databases' own JSON functions refuse or cut what Python and some senders call JSON."""

from __future__ import annotations

from math import isfinite, isnan
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
        clean = clean_text(value)
        return value if clean == value else clean
    if kind is int:
        return value if value in _INTEGERS else _digits(value)
    if kind is float:
        return value if isfinite(value) else "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if kind is list or kind is dict:
        if depth == MAX_DEPTH:
            raise InvalidRequest(f"a value is nested deeper than {MAX_DEPTH}")
        if kind is list:
            items = [canonical(item, depth + 1) for item in value]
            return value if all(map(_same, items, value)) else items
        fields = {canonical(name): canonical(item, depth + 1) for name, item in value.items()}
        return value if all(map(_same, fields, value)) and all(map(_same, fields.values(), value.values())) else fields
    return value


def canonical_attributes(attributes: dict[str, Any], **others: Any) -> dict[str, Any]:
    """``attributes`` made harmless, and marked where that changed them; ``others`` are named there too if they had to be changed."""
    fields = canonical(attributes)
    altered = [] if fields is attributes else [name for name, item in fields.items() if attributes.get(name) is not item]
    altered += [name for name, item in others.items() if canonical(item) is not item]
    return {**fields, ALTERED: altered} if altered else fields


def _same(one: Any, other: Any) -> bool:
    return one is other


def _digits(value: int) -> str:
    return str(value) if value.bit_length() <= 4096 else hex(value)  # Python refuses to print very long ones in tens
