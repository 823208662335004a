"""Server-sent events (WHATWG HTML, section 9.2). OpenAI's chat uses data lines only and ends with ``[DONE]``; other forms name events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import orjson

DONE = b"data: [DONE]\n\n"


def encode(value: Any) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


def encode_named(value: dict[str, Any]) -> bytes:
    """An event whose name is its ``type``."""
    return b"event: " + value["type"].encode() + b"\n" + encode(value)


async def decode(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The data of each complete event. Lines end at LF or CRLF only: ``str.splitlines`` would cut at a U+2028 in the JSON."""
    rest = b""
    data: list[bytes] = []
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
            elif not line and data:
                yield b"\n".join(data)
                data = []
