"""What a store's process says on stderr: lines for people, or JSON objects for what collects them. Secrets are struck out of both."""

from __future__ import annotations

import logging
import re
import sys
from datetime import UTC, datetime
from typing import TextIO

import orjson

from leyden.server.codec import redact_text

LIFE = logging.getLogger("leyden.store")  # its beginning and its end: said whatever else is
FIELDS = ("time", "level", "logger", "pid", "thread", "message", "error")
MAX_TEXT = 16_000  # characters of a message, and of an error

_URL_PASSWORD = re.compile(r"(?<=://)([^/@\s:]*):[^/@\s]*@")


class TextLines(logging.Formatter):
    """As ``logging`` writes them, tracebacks on lines of their own."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return clean(super().format(record))


class JSONLines(logging.Formatter):
    """One object a line, always with the same ``FIELDS``: ``time`` is RFC 3339 in UTC, ``error`` a traceback or null."""

    def format(self, record: logging.LogRecord) -> str:
        error = self.formatException(record.exc_info) if record.exc_info else None
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "thread": record.threadName,
            "message": clean(record.getMessage())[:MAX_TEXT],
            "error": None if error is None else clean(error)[-MAX_TEXT:],  # its end says what it was
        }
        return orjson.dumps(fields).decode()


def clean(text: str) -> str:
    """Without what ``redact_text`` finds, nor passwords in URLs."""
    return _URL_PASSWORD.sub(r"\1:***@", redact_text(text))


def configure(as_json: bool, verbose: bool, stream: TextIO | None = None) -> None:
    """For the whole process: ours, uvicorn's, asyncio's. ``stream``: stderr."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JSONLines() if as_json else TextLines())
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler], force=True)
    LIFE.setLevel(logging.INFO)
