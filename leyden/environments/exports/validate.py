"""The judge of what was written: it reads the file, and shares nothing with those who make rows but the format's own ``check``."""

from __future__ import annotations

import json
from pathlib import Path

from leyden.environments.exports.format import Format
from leyden.environments.exports.profile import Profile
from leyden.errors import UsageError


class InvalidDataset(UsageError):
    """A dataset's file is not of its format; the message names the line."""

    code = "invalid_dataset"


def validate(path: Path, format: Format, profile: Profile | None = None) -> int:
    """The number of rows in ``path``. Raises ``InvalidDataset`` with the first line that is not of ``format``, or if there are
    more than ``profile`` takes."""
    rows = size = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            rows, size = rows + 1, size + len(line)
            if problem := _problem(line, format):
                raise InvalidDataset(f"{path.name}, line {number}: {problem}")
    if rows == 0:
        raise InvalidDataset(f"{path.name} is empty")
    if profile is not None and (rows > (profile.max_rows or rows) or size > (profile.max_bytes or size)):
        raise InvalidDataset(f"{path.name} has {rows} rows and {size} bytes, more than {profile.name} takes")
    return rows


def _problem(line: bytes, format: Format) -> str | None:
    if not line.endswith(b"\n"):
        return "it does not end"
    try:
        text = line.decode()
        row = json.loads(text)
    except ValueError as error:
        return f"not JSON in UTF-8: {error}"
    if len(text.splitlines()) != 1:
        return "a reader that splits lines as str.splitlines() does would see two"
    return format.check(row) if isinstance(row, dict) else "a row is an object"
