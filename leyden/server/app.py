"""The store as an HTTP service."""

from __future__ import annotations

import secrets
from importlib.metadata import PackageNotFoundError, version

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from leyden.errors import LeydenError
from leyden.server.routes import capture, leases, otlp, queues, reading, resources, rollouts, runs, workers
from leyden.server.sqlstore import SQLStore
from leyden.server.wire import LOOPBACK_HOSTS, HostCheck, answer_bug, answer_error, answer_http_error, json_response


def create_app(store: SQLStore, nonce: str | None = None, hosts: frozenset[str] = LOOPBACK_HOSTS) -> FastAPI:
    """``store`` is the caller's to close. ``nonce`` tells this server from a stranger on its port; ``hosts`` are the names it serves."""
    app = FastAPI(title="Leyden store", openapi_url=None)
    app.state.store = store
    health = {"status": "ok", "name": "leyden-store", "version": _version(), "nonce": nonce or secrets.token_hex(8)}

    async def answer_health(request: Request) -> Response:
        return json_response(health)

    app.add_route("/health", answer_health, methods=["GET"])
    for module in (rollouts, leases, capture, resources, workers, runs, queues, reading, otlp):
        app.include_router(module.router)
    app.add_exception_handler(LeydenError, answer_error)
    app.add_exception_handler(HTTPException, answer_http_error)
    app.add_exception_handler(Exception, answer_bug)
    app.add_middleware(HostCheck, hosts=hosts)
    return app


def _version() -> str:
    try:
        return version("leyden")
    except PackageNotFoundError:  # run from a source tree
        return "unknown"
