from __future__ import annotations

from starlette.routing import Router

from leyden.server import messages
from leyden.server.wire import Call, route
from leyden.types import Record, Worker

router = Router()


class _Filter(Record):
    alive_within: float | None = None


@route(router, "POST", "/v1/workers")
async def register_worker(call: Call, body: messages.RegisterWorker) -> Worker:
    return await call.store.register_worker(body.worker_id, body.name, body.capacity, body.pid, body.host)


@route(router, "GET", "/v1/workers")
async def list_workers(call: Call, query: _Filter) -> list[Worker]:
    return await call.store.list_workers(query.alive_within)


@route(router, "POST", "/v1/workers/{worker_id}/stop")
async def stop_worker(call: Call) -> Worker:
    return await call.store.stop_worker(call.path["worker_id"])
