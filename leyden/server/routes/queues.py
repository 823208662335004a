from __future__ import annotations

from fastapi import APIRouter

from leyden.server import messages
from leyden.server.wire import Call, route
from leyden.types import Counts, Mode, Queue, Record

router = APIRouter()


class _Slice(Record):
    run_id: str | None = None
    iteration: int | None = None
    mode: Mode | None = None
    queue: str | None = None


@route(router, "GET", "/v1/counts")
async def count(call: Call) -> Counts:
    part = call.query(_Slice)
    return await call.store.count(part.run_id, part.iteration, part.mode, part.queue)


@route(router, "GET", "/v1/queues")
async def list_queues(call: Call) -> list[Queue]:
    return await call.store.list_queues()


@route(router, "POST", "/v1/queues/{name}")
async def set_queue(call: Call) -> Queue:
    body = await call.read(messages.SetQueue)
    return await call.store.set_queue(call.path["name"], body.paused, body.max_running)
