"""gzip, as far as it is no bomb."""

from __future__ import annotations

import zlib

from leyden.errors import InvalidRequest, TooLarge

MAX_INFLATED = 64 << 20  # bytes
MAX_MEMBERS = 16  # gzip files in one body: what is left is copied at each
_STEP = 1 << 20
_GZIP = 31  # zlib's wbits


def inflate(data: bytes) -> bytes:
    """``data`` without its gzip. Raises ``TooLarge`` as soon as it is beyond bounds, ``InvalidRequest`` for what is not gzip."""
    parts: list[bytes] = []
    size = members = 0
    rest = data
    while rest:  # a body may be several gzip files in a row
        members += 1
        if members > MAX_MEMBERS:
            raise InvalidRequest(f"the body is more than {MAX_MEMBERS} gzip files in a row", "send it as one")
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
            if size > MAX_INFLATED:
                raise TooLarge(f"the body inflates to more than {MAX_INFLATED >> 20} MiB", "send fewer spans in one request")
            parts.append(part)
        rest = member.unused_data
    return b"".join(parts)
