"""What all records are made of."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

ID_PATTERN = r"^[A-Za-z0-9_-]{1,64}$"
Id = Annotated[str, StringConstraints(pattern=ID_PATTERN)]  # chosen by whoever creates a record, or by the store; never used as a path
_SURROGATE = re.compile("[\ud800-\udfff]")
_clean = BeforeValidator(lambda text: _SURROGATE.sub("\ufffd", text) if isinstance(text, str) and not text.isascii() else text)
ShortText = Annotated[str, _clean, Field(max_length=256)]  # as long as an index can hold, without lone surrogates


class Record(BaseModel):
    """Base of all records: immutable, and an unknown field is an error rather than a silent loss."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")
