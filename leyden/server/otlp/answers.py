"""What an exporter is told, in the encoding it used."""

from __future__ import annotations

from enum import Enum

import orjson
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTracePartialSuccess, ExportTraceServiceResponse

from leyden.errors import LeydenError
from leyden.server.otlp.fields import VARINT, bytes_field, varint
from leyden.server.rejected import Rejected

# google.rpc.Code, by HTTP status
_CODES = {401: 16, 403: 7, 429: 8, 503: 14, 507: 14}
_INVALID_ARGUMENT, _INTERNAL = 3, 13


class Encoding(Enum):
    PROTOBUF = "application/x-protobuf"
    JSON = "application/json"

    @classmethod
    def of(cls, content_type: str) -> Encoding | None:
        name = content_type.partition(";")[0].strip().lower()
        return next((encoding for encoding in cls if encoding.value == name), None)


def accepted(encoding: Encoding, rejected: Rejected) -> bytes:
    """An ExportTraceServiceResponse: empty when every span is stored."""
    if not rejected.total:
        return b"{}" if encoding is Encoding.JSON else b""
    message = str(rejected)
    if encoding is Encoding.JSON:
        return orjson.dumps({"partialSuccess": {"rejectedSpans": str(rejected.total), "errorMessage": message}})
    partial = ExportTracePartialSuccess(rejected_spans=rejected.total, error_message=message)
    return ExportTraceServiceResponse(partial_success=partial).SerializeToString()


def refused(encoding: Encoding, error: LeydenError) -> bytes:
    """A google.rpc.Status."""
    code = _CODES.get(error.status, _INTERNAL if error.status >= 500 else _INVALID_ARGUMENT)
    message = error.message if error.hint is None else f"{error.message} ({error.hint})"
    if encoding is Encoding.JSON:
        return orjson.dumps({"code": code, "message": message})
    return varint(1 << 3 | VARINT) + varint(code) + bytes_field(2, message.encode(errors="replace"))
