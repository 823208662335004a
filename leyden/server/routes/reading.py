from __future__ import annotations

from starlette.routing import Router

from leyden.server.queries import Prune, Pruned, SpanQuery, Trace, TraceQuery
from leyden.server.wire import Call, route
from leyden.types import Span

router = Router()


@route(router, "POST", "/v1/spans/query")
async def query_spans(call: Call, body: SpanQuery) -> list[Span]:
    return await call.store.query_spans(body)


@route(router, "POST", "/v1/traces/query")
async def list_traces(call: Call, body: TraceQuery) -> list[Trace]:
    return await call.store.list_traces(body)


@route(router, "POST", "/v1/prune")
async def prune(call: Call, body: Prune) -> Pruned:
    return await call.store.prune(body)
