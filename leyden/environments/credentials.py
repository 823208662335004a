"""Keys, and where they hide: none is digested, and none is printed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from leyden.errors import InvalidRequest

# Keys, whatever else may carry one, connections: never a part of who answers.
CREDENTIAL = re.compile(r"key|secret|password|credential|authorization|header|client|proxy|token$", re.IGNORECASE)
SHORTEST = 8  # letters: a shorter key is no secret, but may be a word


def place_of(url: str) -> str:
    """The address without user and password, and without those parts of its query that are called like a key."""
    place, mark, query = re.sub(r"//[^/?#]*@", "//", url).partition("?")
    kept = "&".join(part for part in query.split("&") if not CREDENTIAL.search(part.partition("=")[0]))
    return place.rstrip("/") + (mark + kept if kept else "")


def without_credentials(values: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is called like a key; further down only texts count as one, for a schema may have a property of such a name."""
    return {name: _cleaned(value) for name, value in values.items() if not CREDENTIAL.search(name)}


def _cleaned(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _cleaned(part) for name, part in value.items() if not (isinstance(part, str) and CREDENTIAL.search(str(name)))}
    return [_cleaned(part) for part in value] if isinstance(value, list | tuple) else value


def masked(text: str, key: str | None) -> str:
    """What somebody answered, who may have repeated the key."""
    return text.replace(key, "***") if key and len(key) >= SHORTEST else text


def check_key(key: str | None) -> None:
    """Raises ``InvalidRequest`` for a key that no header can carry; the HTTP client would print it."""
    if key and not (key.isascii() and key.isprintable() and key.strip() == key):
        raise InvalidRequest("the api key holds a character that no header can carry", "is there a line break or a space at its end?")
