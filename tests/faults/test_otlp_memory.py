"""The largest bodies that an export may have, filled with what takes the most memory to read: it stays bounded."""

from __future__ import annotations

import subprocess
import sys

BOMBS = """
import json, resource, sys
from leyden.errors import LeydenError
from leyden.server.otlp.answers import Encoding
from leyden.server.otlp.export import Sender, read_export
from leyden.server.otlp.fields import bytes_field
from leyden.server.otlp.inflate import MAX_INFLATED

MB = 1 << 20

def alone(span):
    return bytes_field(1, bytes_field(2, bytes_field(2, span)))

ids = bytes_field(1, b"t" * 16) + bytes_field(2, b"s" * 8)
nested = bytes_field(5, bytes_field(1, bytes_field(5, b"")) * MB)
bombs = {
    "a span of nothing but empty events": alone(ids + bytes_field(11, b"") * (7 * MB)),
    "a span of nothing but empty attributes": alone(ids + bytes_field(9, b"") * (7 * MB)),
    "a list of empty lists": alone(ids + bytes_field(9, bytes_field(1, b"k") + bytes_field(2, nested))),
    "empty spans": bytes_field(1, bytes_field(2, bytes_field(2, b"") * (MAX_INFLATED // 2 - 100))),
    "small spans": bytes_field(1, bytes_field(2, bytes_field(2, ids) * 70_000)),
    "empty groups": bytes_field(1, b"") * (MAX_INFLATED // 2),
}
texts = {
    "empty lists": b'{"resourceSpans":[' + b"[]," * (20 * MB) + b"[]]}",
    "small numbers": b'{"resourceSpans":[' + b"1.5," * (15 * MB) + b"1]}",
    "small objects": b'{"resourceSpans":[' + b'{"a":1},' * (MB) + b"1]}",
    "small texts": b'{"resourceSpans":[' + b'"a",' * (7 * MB) + b"1]}",
    "no text": b'{"resourceSpans":["' + bytes([0xFF]) * (60 * MB) + b'"]}',
    "one number": b'{"resourceSpans":[' + b"9" * (60 * MB) + b"]}",
}
for encoding, bodies in ((Encoding.PROTOBUF, bombs), (Encoding.JSON, texts)):
    for name, body in bodies.items():
        assert len(body) <= MAX_INFLATED, name
        try:
            export = read_export(body, encoding, Sender())
            told = f"{sum(len(batch.rows) for batch in export.batches)} stored, {export.rejected.total} rejected"
            del export
        except LeydenError as error:
            told = error.code
        print(name, "|", told, "|", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, flush=True)
"""


def test_no_body_within_bounds_takes_more_than_a_bounded_amount_of_memory() -> None:
    done = subprocess.run([sys.executable, "-c", BOMBS], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line.split(" | ") for line in done.stdout.splitlines()]
    assert len(lines) == 12
    for name, told, peak in lines:
        assert int(peak) < 2000, f"{name} ({told}): {peak} MiB"
