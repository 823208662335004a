from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Router

from leyden.errors import InvalidRequest, LeydenError, TooLarge
from leyden.server.otlp.answers import Encoding, accepted, refused
from leyden.server.otlp.export import Export, Sender, read_export
from leyden.server.otlp.inflate import inflate
from leyden.server.rejected import Rejected
from leyden.server.tokens import id_in
from leyden.server.wire import Call, headers_of

MAX_WIRE = 16 << 20  # bytes of one body as it comes

router = Router()


async def export_traces(request: Request) -> Response:
    """OTLP/HTTP's traces. Errors are google.rpc.Status, as exporters read them."""
    encoding = Encoding.of(request.headers.get("content-type", ""))
    if encoding is None:
        return _refuse(Encoding.JSON, InvalidRequest("the body must be application/x-protobuf or application/json"), 415)
    packing = request.headers.get("content-encoding", "identity").strip().lower()
    if packing not in ("gzip", "identity", ""):
        return _refuse(encoding, InvalidRequest(f"the body is packed as {packing[:32]}", "send it as it is, or with gzip"), 415)
    call = Call(request)
    try:
        rejected = await _store(call, encoding, packing == "gzip")
    except LeydenError as error:
        if isinstance(error, InvalidRequest | TooLarge):
            await call.store.add_exported([], _whole_body(error))
        return _refuse(encoding, error, 400 if isinstance(error, InvalidRequest) else error.status)
    return Response(accepted(encoding, rejected), media_type=encoding.value)


router.add_route("/v1/traces", export_traces, methods=["POST"])


async def _store(call: Call, encoding: Encoding, gzipped: bool) -> Rejected:
    intake = call.store.intake
    with intake.holding() as hold:
        body = await call.body(MAX_WIRE, hold)
        sender = await _sender(call)
        async with intake.turns:
            export = await intake.work(_read, body, gzipped, encoding, sender)
    return await call.store.add_exported(export.batches, export.rejected)


def _read(body: bytes, gzipped: bool, encoding: Encoding, sender: Sender) -> Export:
    return read_export(inflate(body) if gzipped else body, encoding, sender)


async def _sender(call: Call) -> Sender:
    if call.caller.attempt is not None:
        return Sender(call.caller.attempt, only_its_own=True)
    headers = call.request.headers
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    key = headers.get("x-leyden-attempt-key") or (bearer.strip() if scheme.lower() == "bearer" else "")
    if not key or id_in(key) is not None:  # a token lets in, and is no attempt's
        return Sender()
    keyed = await call.store.attempt_of_key(key)
    return Sender(keyed, unknown_key=keyed is None)


def _whole_body(error: LeydenError) -> Rejected:
    rejected = Rejected()
    rejected.add(f"a whole body is {'too large' if isinstance(error, TooLarge) else 'no export'}", error.message)
    return rejected


def _refuse(encoding: Encoding, error: LeydenError, status: int) -> Response:
    return Response(refused(encoding, error), status, headers_of(error), encoding.value)


def refuse_export(content_type: str, error: LeydenError) -> Response:
    """In the form that the exporter reads, whatever it sent."""
    return _refuse(Encoding.of(content_type) or Encoding.JSON, error, error.status)
