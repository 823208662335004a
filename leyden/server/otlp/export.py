"""From the body of one export to rows that are ready to be written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from leyden.errors import TooLarge
from leyden.server.otlp.answers import Encoding
from leyden.server.otlp.json_body import read_json
from leyden.server.otlp.protobuf_body import read_protobuf
from leyden.server.otlp.sent import Attempt, Refused, to_span
from leyden.server.rejected import Rejected
from leyden.server.rows import Batch, span_batches
from leyden.types import Span

MAX_SPANS = 100_000  # of one export, good or bad
MAX_ROWS_BYTES = 128 << 20  # of all rows of one export: 64,000 spans, if they are small


@dataclass
class Export:
    batches: list[Batch] = field(default_factory=list)
    rejected: Rejected = field(default_factory=Rejected)


@dataclass(frozen=True)
class Sender:
    """``keyed``: the attempt whose key came with the request. ``unknown_key``: one came that is nobody's. ``only_its_own``: the key is all
    that let the request in."""

    keyed: Attempt | None = None
    unknown_key: bool = False
    only_its_own: bool = False


def read_export(body: bytes, encoding: Encoding, sender: Sender) -> Export:
    """Takes as long as the body is large: call it in a thread.

    Raises ``InvalidRequest`` for a body that is no export, ``TooLarge`` for one with too much in it.
    """
    export = Export()
    spans = _spans(body, encoding, sender, export.rejected)
    size = 0
    for batch in span_batches(spans):
        size += batch.size
        if size > MAX_ROWS_BYTES:
            raise TooLarge(f"the spans take more than {MAX_ROWS_BYTES >> 20} MiB", "send fewer spans in one request")
        if batch.rows:
            export.batches.append(batch)
    return export


def _spans(body: bytes, encoding: Encoding, sender: Sender, rejected: Rejected) -> Iterator[Span]:
    read = read_json if encoding is Encoding.JSON else read_protobuf
    for n, sent in enumerate(read(body)):
        if n == MAX_SPANS:
            raise TooLarge(f"the body holds more than {MAX_SPANS} spans", "send fewer in one request")
        try:
            if isinstance(sent, Refused):
                raise sent
            span = to_span(*sent, sender.keyed)
            if span.rollout_id is None and sender.unknown_key:
                raise Refused("the attempt key was never issued", f"span {span.trace_id}-{span.span_id}")
            if sender.only_its_own and (span.rollout_id, span.attempt) != sender.keyed:
                raise Refused("it names another attempt than that of its key", f"span {span.trace_id}-{span.span_id}")
        except Refused as refused:
            rejected.add(refused.reason, refused.detail)
        else:
            yield span
