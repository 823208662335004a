from __future__ import annotations

from starlette.routing import Router

from leyden.server import messages
from leyden.server.wire import Call, route
from leyden.types import Record, Run

router = Router()


class _Page(Record):
    limit: int = 100


@route(router, "GET", "/v1/runs")
async def list_runs(call: Call, query: _Page) -> list[Run]:
    return await call.store.list_runs(query.limit)


@route(router, "GET", "/v1/runs/{run_id}")
async def get_run(call: Call) -> Run:
    return await call.store.get_run(call.path["run_id"])


@route(router, "POST", "/v1/runs/{run_id}/start")
async def start_run(call: Call, body: messages.StartRun) -> Run:
    return await call.store.start_run(call.path["run_id"], body.config, body.lease_seconds, body.take_over, body.request_id)


@route(router, "POST", "/v1/runs/{run_id}/keep")
async def keep_run(call: Call, body: messages.KeepRun) -> Run:
    return await call.store.keep_run(call.path["run_id"], body.epoch, body.lease_seconds)


@route(router, "POST", "/v1/runs/{run_id}/finish")
async def finish_run(call: Call, body: messages.FinishRun) -> Run:
    return await call.store.finish_run(call.path["run_id"], body.epoch, body.state, body.summary)
