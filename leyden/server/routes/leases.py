from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.routing import Router

from leyden.server import messages
from leyden.server.interface import AttemptEnd
from leyden.server.tokens import Scope
from leyden.server.wire import Call, route
from leyden.types import AttemptBinding, Lease, Rollout, Verdict

router = Router()


@route(router, "POST", "/v1/leases/claim")
async def claim(call: Call, body: messages.Claim) -> list[Lease]:
    """A client that goes away while it waits leaves no lease behind."""
    claiming = asyncio.create_task(
        call.store.claim(body.worker_id, body.limit, body.wait, body.lease_seconds, body.request_id, body.queues)
    )
    leaving = asyncio.create_task(_disconnect(call.request))
    try:
        await asyncio.wait({claiming, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not leaving.done():
            return await claiming
        if claiming.done():
            await call.store.hand_back(claiming.result())
        return []
    finally:
        claiming.cancel()
        leaving.cancel()


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


@route(router, "POST", "/v1/leases/heartbeat")
async def heartbeat(call: Call, body: messages.Heartbeat) -> list[Verdict]:
    return await call.store.heartbeat(body.worker_id, body.leases, body.lease_seconds)


@route(router, "POST", "/v1/leases/complete")
async def complete(call: Call, body: messages.Complete) -> Rollout:
    return await call.store.complete(body.ref, body.rewards)


@route(router, "POST", "/v1/leases/fail")
async def fail(call: Call, body: messages.Fail) -> Rollout:
    return await call.store.fail(body.ref, body.failure, body.error)


@route(router, "POST", "/v1/leases/end")
async def end_attempts(call: Call, body: messages.EndAttempts) -> list[messages.Refusal | None]:
    """Each with its spans, as if alone. Answers for each null, or why it was refused."""
    if any(end.spans for end in body.ends):
        call.caller.check(Scope.INGEST, "write spans")
    ends = [AttemptEnd(end.ref, end.rewards, end.spans, end.failure, end.error) for end in body.ends]
    return [None if error is None else messages.Refusal.of(error) for error in await call.store.end_attempts(ends)]


@route(router, "POST", "/v1/leases/release")
async def release(call: Call, body: messages.Release) -> Rollout:
    return await call.store.release(body.ref, body.delay)


@route(router, "POST", "/v1/leases/resolve")
async def resolve_key(call: Call, body: messages.Resolve) -> AttemptBinding:
    return await call.store.resolve_key(body.key)
