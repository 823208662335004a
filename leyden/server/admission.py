"""Who comes in while the store is behind: what ends work sooner than what brings more of it.

The writer's backlog is bounded (``backlog``), but a loop that has more requests than it gets through never fills it: they would wait before
it, thousands of them, each until its client has given up and asks again. So they are counted, and refused at the door while that is cheap.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from leyden.errors import Busy, LeydenError
from leyden.server.metrics import Metrics
from leyden.server.wire import answer_error

# Under way at once. A store that does 500 requests a second, on a slow machine, answers those within a second.
MOST_BEFORE_NEW_WORK = 512
MOST_BEFORE_ALL_BUT_ENDINGS = 2048

_LONG_POLLS = frozenset({"/v1/leases/claim", "/v1/rollouts/wait"})  # not counted: they wait for others, and nobody for them
_NEW_WORK = frozenset({"/v1/rollouts", "/v1/leases/claim"})
_ENDINGS = frozenset(f"/v1/leases/{name}" for name in ("heartbeat", "complete", "fail", "release", "end"))
_OPERATING = frozenset({"/health", "/ready", "/metrics"})


class Admission:
    """``forms``: see ``AccessCheck``."""

    def __init__(self, app: ASGIApp, metrics: Metrics, forms: Mapping[str, Callable[[str, LeydenError], Response]]) -> None:
        self._app = app
        self._metrics = metrics
        self._forms = forms

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        if self._metrics.under_way >= _most_before(path):
            error = Busy("the store is behind with its requests", "try again after the time it names", random.randint(1, 3))
            form = self._forms.get(path)
            said = Headers(scope=scope).get("content-type", "")
            response = await answer_error(Request(scope), error) if form is None else form(said, error)
            await response(scope, receive, send)
            return
        counted = path not in _LONG_POLLS
        self._metrics.under_way += counted
        try:
            await self._app(scope, receive, send)
        finally:
            self._metrics.under_way -= counted


def _most_before(path: str) -> float:
    if path in _ENDINGS or path in _OPERATING:
        return float("inf")
    return MOST_BEFORE_NEW_WORK if path in _NEW_WORK else MOST_BEFORE_ALL_BUT_ENDINGS
