"""What a caller of the store in this process may give: over HTTP, the messages check most of it again."""

from __future__ import annotations

import math
import re

from leyden.errors import InvalidRequest
from leyden.types import ID_PATTERN

MAX_LEASE = 86_400.0  # seconds
_ID = re.compile(ID_PATTERN)


def check_id(name: str, value: str) -> None:
    if not _ID.fullmatch(value):
        raise InvalidRequest(f"{name}: {value!r} is not an id: letters, digits, _ and -, at most 64")


def check_range(name: str, value: float, low: float, high: float) -> None:
    if math.isnan(value) or not low <= value <= high:
        raise InvalidRequest(f"{name}: must be between {low:g} and {high:g}, not {value:g}")


def checked_lease(value: float | None) -> float | None:
    if value is not None:
        check_range("lease_seconds", value, 0.001, MAX_LEASE)
    return value
