"""Protocol Buffers' wire format, one field at a time: https://protobuf.dev/programming-guides/encoding/.

The outer messages of an export are taken apart here, so that one span that cannot be decoded costs none of the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from leyden.errors import TooLarge

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MAX_NESTING = 100  # as the decoder has it
MAX_FIELDS = 250_000  # of one body that are looked at here


class Malformed(ValueError):
    """These bytes are not a message."""


class Field(NamedTuple):
    number: int
    wire_type: int
    value: memoryview  # of BYTES without its length, of others as it is encoded


class Walk:
    """Takes the messages of one body apart. Raises ``TooLarge`` for one with too many fields."""

    def __init__(self) -> None:
        self._left = MAX_FIELDS

    def fields(self, message: memoryview) -> Iterator[Field]:
        """Raises ``Malformed`` where it cannot go on; what came before is good."""
        at, size = 0, len(message)
        while at < size:
            self._left -= 1
            if self._left < 0:
                raise TooLarge(f"the body holds more than {MAX_FIELDS} fields", "send fewer spans in one request")
            tag, at = _varint(message, at)
            number, wire_type = tag >> 3, tag & 7
            if number == 0:
                raise Malformed("field 0")
            if wire_type == BYTES:
                length, at = _varint(message, at)
                end = at + length
            elif wire_type == VARINT:
                _, end = _varint(message, at)
            elif wire_type in (FIXED64, FIXED32):
                end = at + (8 if wire_type == FIXED64 else 4)
            else:
                raise Malformed(f"wire type {wire_type}")
            if end > size:
                raise Malformed("cut short")
            yield Field(number, wire_type, message[at:end])
            at = end

    def with_valid_text(self, message: memoryview, descriptor: Descriptor, depth: int = 0) -> bytes:
        """The same message with U+FFFD for what is not UTF-8 in its strings: decoders refuse a whole message for one such byte.

        Raises ``Malformed``.
        """
        if depth > MAX_NESTING:
            raise Malformed("nested too deep")
        parts: list[bytes] = []
        for number, wire_type, value in self.fields(message):
            kind = descriptor.fields_by_number.get(number)
            if kind is None:
                continue
            if wire_type != BYTES:
                parts += (varint(number << 3 | wire_type), bytes(value))
            elif kind.type == FieldDescriptor.TYPE_STRING:
                parts.append(bytes_field(number, bytes(value).decode(errors="replace").encode()))
            elif kind.type == FieldDescriptor.TYPE_MESSAGE:
                parts.append(bytes_field(number, self.with_valid_text(value, kind.message_type, depth + 1)))
            else:
                parts.append(bytes_field(number, bytes(value)))
        return b"".join(parts)


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise Malformed("cut short" if shift <= 63 else "a number is too long")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def bytes_field(number: int, value: bytes) -> bytes:
    return varint(number << 3 | BYTES) + varint(len(value)) + value
