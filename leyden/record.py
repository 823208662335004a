"""What all records are made of."""

from __future__ import annotations

import re
import secrets
import time
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

ID_PATTERN = r"^[A-Za-z0-9_-]{1,64}$"
Id = Annotated[str, StringConstraints(pattern=ID_PATTERN)]  # chosen by whoever creates a record, or by the store; never used as a path
# pydantic's parser keeps the last 16,384 short texts it has read: of ids, of which each is another, that is 1.5 MB of nothing (measured).
CACHE_STRINGS: Literal["keys"] = "keys"
_SURROGATE = re.compile("[\ud800-\udfff]")
_clean = BeforeValidator(lambda text: _SURROGATE.sub("\ufffd", text) if isinstance(text, str) and not text.isascii() else text)
ShortText = Annotated[str, _clean, Field(max_length=256)]  # as long as an index can hold, without lone surrogates


def new_id(digits: int = 24) -> str:
    """So many hexadecimal digits that nobody else has: 48 bits of time in milliseconds, as in a UUIDv7 (RFC 9562, 5.7), then random ones.

    What is made together lies together in an index of such ids. Without an order each would put a page of its own into every commit; a
    claim then takes half as long again, and more in a large store (measured).
    """
    return f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex((digits - 12) // 2)}"


class Record(BaseModel):
    """Base of all records: immutable, and an unknown field is an error rather than a silent loss."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants", cache_strings=CACHE_STRINGS)


R = TypeVar("R", bound=Record)
_set = object.__setattr__  # past what makes a record immutable


def checked_before(kind: type[R], values: dict[str, Any]) -> R:
    """A record of ``values``, one for each of its fields, that were checked when they came in and lie in our own database since. They are
    not checked again, which would take ten times as long; ``model_construct`` looks at each field as well."""
    record = kind.__new__(kind)
    _set(record, "__dict__", values)
    _set(record, "__pydantic_fields_set__", set(values))
    _set(record, "__pydantic_extra__", None)
    _set(record, "__pydantic_private__", None)
    return record
