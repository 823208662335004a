from __future__ import annotations

from starlette.routing import Router

from leyden.server import messages
from leyden.server.wire import Call, route
from leyden.types import Resources

router = Router()


@route(router, "POST", "/v1/resources")
async def add_resources(call: Call, body: messages.AddResources) -> Resources:
    return await call.store.add_resources(body.resources, body.lease_seconds, body.idempotency_key)


@route(router, "GET", "/v1/resources")
async def latest_resources(call: Call) -> Resources:
    return await call.store.get_resources()


@route(router, "GET", "/v1/resources/{resources_id}")
async def get_resources(call: Call) -> Resources:
    return await call.store.get_resources(call.path["resources_id"])


@route(router, "POST", "/v1/resources/{resources_id}/keep")
async def keep_resources(call: Call, body: messages.Keep) -> Resources:
    return await call.store.keep_resources(call.path["resources_id"], body.lease_seconds)


@route(router, "POST", "/v1/resources/{resources_id}/retire")
async def retire_resources(call: Call) -> Resources:
    return await call.store.retire_resources(call.path["resources_id"])
