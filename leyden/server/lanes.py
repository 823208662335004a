"""An httpx transport for many small requests at once to one server."""

from __future__ import annotations

import ssl

import httpx

KEEPALIVE = 60.0  # seconds an idle connection is kept


class LanesTransport(httpx.AsyncBaseTransport):
    """Each request in flight has a connection of its own, taken from a stack of idle ones; answers are read whole.

    httpx's own pool looks at every connection for every request, twice: at 32 requests in flight that is 90 % of a client's time.
    """

    def __init__(self, secure: bool) -> None:
        self._verify: ssl.SSLContext | bool = httpx.create_ssl_context(trust_env=False) if secure else False
        self._idle: list[httpx.AsyncHTTPTransport] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        lane = self._idle.pop() if self._idle else self._open()
        try:
            response = await lane.handle_async_request(request)
            content = await response.aread()
        except BaseException:
            await lane.aclose()  # a request that was cancelled while it connected takes up httpcore's only connection for good
            raise
        self._idle.append(lane)
        return httpx.Response(response.status_code, headers=response.headers, content=content, extensions=response.extensions)

    def _open(self) -> httpx.AsyncHTTPTransport:
        return httpx.AsyncHTTPTransport(
            verify=self._verify,
            trust_env=False,
            limits=httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=KEEPALIVE),
        )

    async def aclose(self) -> None:
        for lane in self._idle:
            await lane.aclose()
        self._idle.clear()
