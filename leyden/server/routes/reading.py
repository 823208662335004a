from __future__ import annotations

from fastapi import APIRouter

from leyden.server.queries import Prune, Pruned, SpanQuery, Trace, TraceQuery
from leyden.server.wire import Call, route
from leyden.types import Span

router = APIRouter()


@route(router, "POST", "/v1/spans/query")
async def query_spans(call: Call) -> list[Span]:
    return await call.store.query_spans(await call.read(SpanQuery))


@route(router, "POST", "/v1/traces/query")
async def list_traces(call: Call) -> list[Trace]:
    return await call.store.list_traces(await call.read(TraceQuery))


@route(router, "POST", "/v1/prune")
async def prune(call: Call) -> Pruned:
    return await call.store.prune(await call.read(Prune))
