"""What one store process has done since it started, in plain numbers: cheap to count, and read only when somebody asks (``exposition``)."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COMMIT_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
BATCH_OPERATIONS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
NO_ROUTE = "none"  # of a request that no route takes


class Histogram:
    """How often a value was at most each of ``bounds``, and their sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.total = 0.0
        self._counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Upper bound (as Prometheus writes it) and how many values were not above it; the last one, ``+Inf``, holds all."""
        return list(zip([*map(str, self.bounds), "+Inf"], accumulate(self._counts), strict=True))


class Metrics:
    """Belongs to the store's event loop, which alone changes and reads it: no lock.

    ``done``: what commits did (``Changes.count``), by name and kind. ``requests``: answers by route and status.
    """

    def __init__(self) -> None:
        self.done: Counter[tuple[str, str]] = Counter()
        self.bytes = 0  # of captured data, committed
        self.commit_seconds = Histogram(COMMIT_SECONDS)
        self.batch_operations = Histogram(BATCH_OPERATIONS)
        self.requests: Counter[tuple[str, int]] = Counter()
        self.under_way = 0  # requests now, but for long polls

    def committed(self, operations: int, size: int, seconds: float, done: Mapping[tuple[str, str], int]) -> None:
        """One commit of so many operations, with ``size`` bytes of captured data, or one that failed (see ``done``)."""
        self.batch_operations.observe(operations)
        self.commit_seconds.observe(seconds)
        self.bytes += size
        for what, n in done.items():
            self.done[what] += n


class CountsAnswers:
    """Around the whole application, so that it sees what the doors before the routes refuse. A route counts under its pattern, never under
    the path that was asked for."""

    def __init__(self, app: ASGIApp, metrics: Metrics, routes: Iterable[BaseRoute]) -> None:
        self._app = app
        self._requests = metrics.requests
        self._patterns: dict[object, str] = {route.endpoint: route.path for route in routes if isinstance(route, Route)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        answered = False

        async def counted(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                answered = True
                self._requests[self._route_of(scope), message["status"]] += 1
            await send(message)

        try:
            await self._app(scope, receive, counted)
        except Exception:
            if not answered:  # Starlette answers what nobody has caught outside of any middleware
                self._requests[self._route_of(scope), 500] += 1
            raise

    def _route_of(self, scope: Scope) -> str:
        return self._patterns.get(scope.get("endpoint"), NO_ROUTE)
