"""The store as an HTTP service."""

from __future__ import annotations

import secrets
from functools import cache
from importlib.metadata import PackageNotFoundError, version

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from leyden.errors import LeydenError
from leyden.server.access import Access
from leyden.server.admission import Admission
from leyden.server.exposition import CONTENT_TYPE, expose
from leyden.server.metrics import CountsAnswers
from leyden.server.openapi import make_document
from leyden.server.readiness import Readiness
from leyden.server.routes import capture, leases, otlp, queues, reading, resources, rollouts, runs, tokens, workers
from leyden.server.sqlstore import SQLStore
from leyden.server.wire import (
    LOOPBACK_HOSTS,
    AccessCheck,
    PageCheck,
    answer_bug,
    answer_error,
    answer_http_error,
    answer_nobody,
    json_response,
)

ROUTERS = tuple(module.router for module in (rollouts, leases, capture, resources, workers, runs, queues, reading, tokens, otlp))


def create_app(store: SQLStore, nonce: str | None = None, hosts: frozenset[str] | None = LOOPBACK_HOSTS) -> Starlette:
    """``store`` is the caller's to close. ``nonce`` tells this server from a stranger on its port; ``hosts`` are the names it serves;
    None: it can be reached from other machines, under whatever name, and asks everybody for a token."""
    health = {"status": "ok", "name": "leyden-store", "version": _version(), "nonce": nonce or secrets.token_hex(8)}

    async def answer_health(request: Request) -> Response:
        return json_response(health)

    readiness = Readiness(store)

    async def answer_ready(request: Request) -> Response:
        await readiness.check()
        return json_response({"status": "ready"})

    async def answer_metrics(request: Request) -> Response:
        return Response(expose(await store.measure(), health["version"]), media_type=CONTENT_TYPE)

    @cache
    def document() -> bytes:
        return orjson.dumps(make_document(routes(), health["version"]))

    async def answer_document(request: Request) -> Response:
        return Response(document(), media_type="application/json")

    served = [
        Route("/health", answer_health),
        Route("/ready", answer_ready),
        Route("/metrics", answer_metrics),
        Route("/openapi.json", answer_document),
        *routes(),
    ]
    access = Access(store, always=hosts is None)
    forms = {"/v1/traces": otlp.refuse_export}
    app = Starlette(
        routes=served,
        middleware=[  # the first one is the first to see a request
            Middleware(CountsAnswers, metrics=store.metrics, routes=served),
            Middleware(PageCheck, hosts=hosts),
            Middleware(Admission, metrics=store.metrics, forms=forms),
            Middleware(AccessCheck, access=access, forms=forms),
        ],
        exception_handlers={
            LeydenError: answer_error,
            HTTPException: answer_http_error,
            ClientDisconnect: answer_nobody,
            Exception: answer_bug,
        },
    )
    app.state.store, app.state.access = store, access
    return app


def routes() -> list[BaseRoute]:
    return [route for router in ROUTERS for route in router.routes]


def _version() -> str:
    try:
        return version("leyden")
    except PackageNotFoundError:  # run from a source tree
        return "unknown"
