from __future__ import annotations

from starlette.routing import Router

from leyden.server import messages
from leyden.server.wire import Call, route
from leyden.types import Counts, Mode, Queue, Record

router = Router()


class _Slice(Record):
    run_id: str | None = None
    iteration: int | None = None
    mode: Mode | None = None
    queue: str | None = None


@route(router, "GET", "/v1/counts")
async def count(call: Call, query: _Slice) -> Counts:
    return await call.store.count(query.run_id, query.iteration, query.mode, query.queue)


@route(router, "GET", "/v1/queues")
async def list_queues(call: Call) -> list[Queue]:
    return await call.store.list_queues()


@route(router, "POST", "/v1/queues/{name}")
async def set_queue(call: Call, body: messages.SetQueue) -> Queue:
    return await call.store.set_queue(call.path["name"], body.paused, body.max_running)
