"""gzip, as far as it is no bomb."""

from __future__ import annotations

import zlib

from leyden.errors import InvalidRequest, TooLarge

MAX_INFLATED = 64 << 20  # bytes
MAX_RATIO = 100  # of the inflated bytes beyond the first ``FREE`` to the compressed ones
FREE = 16 << 20
_STEP = 1 << 20
_GZIP = 31  # zlib's wbits


def inflate(data: bytes) -> bytes:
    """``data`` without its gzip. Raises ``TooLarge`` as soon as it is beyond bounds, ``InvalidRequest`` for what is not gzip."""
    parts: list[bytes] = []
    size, most = 0, min(MAX_INFLATED, FREE + MAX_RATIO * len(data))
    rest = data
    while rest:  # a body may be several gzip files in a row
        member = zlib.decompressobj(_GZIP)
        pending = rest
        while not member.eof:
            try:
                part = member.decompress(pending, _STEP)
            except zlib.error as error:
                raise InvalidRequest(f"the body is not gzip: {error}") from None
            pending = member.unconsumed_tail
            if not part and not pending and not member.eof:
                raise InvalidRequest("the body's gzip is cut short")
            size += len(part)
            if size > most:
                raise TooLarge(f"the body inflates to more than {most >> 20} MiB", "send fewer spans in one request")
            parts.append(part)
        rest = member.unused_data
    return b"".join(parts)
