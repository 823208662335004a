"""Connections, kept for the next request."""

from __future__ import annotations

import asyncio
import ssl
from collections import defaultdict, deque
from functools import cache, lru_cache
from typing import NamedTuple
from urllib.parse import quote, urlsplit
from weakref import WeakSet

from leyden.http.connection import Connection, Response

CONNECT = 15.0  # seconds; a port where nobody listens refuses at once: this is for a machine that is away, or a loop that was held up
KEEP_ALIVE = 4.0  # seconds, less than the 5 after which uvicorn, and so vLLM, closes an idle connection: it may do so just as we send


class NotConnected(ConnectionError):
    """No connection was to be had: nothing was sent."""


class Origin(NamedTuple):
    tls: bool
    host: str
    port: int


class Connections:
    """Use it in one event loop. How many there are is for its callers to say: every request in flight has one.

    ``keep_alive``: seconds that an idle one is kept; less than the server does.
    """

    def __init__(self, keep_alive: float = KEEP_ALIVE) -> None:
        self._keep_alive = keep_alive
        self._idle: dict[Origin, deque[Connection]] = defaultdict(deque)  # of each, the one used last at the end
        self._open: WeakSet[Connection] = WeakSet()

    async def request(self, method: str, url: str, headers: dict[str, str], body: bytes = b"") -> Response:
        """Send it, and have its answer's beginning to wait for. Raises ``NotConnected``, ``ValueError`` for what cannot be sent."""
        origin, host, path = _parse(url)
        lines = [f"{method} {path} HTTP/1.1", f"host: {host}", *(f"{name}: {value}" for name, value in headers.items())]
        if body:
            lines.append(f"content-length: {len(body)}")
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        if head.count(b"\n") != len(lines) + 1:
            raise ValueError("a header has more than one line")
        connection = self._take(origin) or await self._connect(origin)
        return connection.send(head, body)

    def close(self) -> None:
        for connection in list(self._open):
            connection.abort()

    def _take(self, origin: Origin) -> Connection | None:
        idle = self._idle[origin]
        oldest = asyncio.get_running_loop().time() - self._keep_alive
        while idle and idle[0].idle_since < oldest:
            idle.popleft().abort()
        while idle:
            connection = idle.pop()
            if not connection.closed:
                return connection
        return None

    async def _connect(self, origin: Origin) -> Connection:
        loop = asyncio.get_running_loop()

        def keep(connection: Connection) -> None:
            connection.idle_since = loop.time()
            self._idle[origin].append(connection)

        try:
            async with asyncio.timeout(CONNECT):
                _, connection = await loop.create_connection(
                    lambda: Connection(keep), origin.host, origin.port, ssl=_trust() if origin.tls else None
                )
        except TimeoutError as error:
            raise NotConnected(f"no connection in {CONNECT:.0f} s") from error
        except (OSError, UnicodeError) as error:
            raise NotConnected(str(error) or type(error).__name__) from error
        self._open.add(connection)
        return connection


@cache
def _trust() -> ssl.SSLContext:
    return ssl.create_default_context()


@lru_cache(maxsize=1024)
def _parse(url: str) -> tuple[Origin, str, str]:
    """Whom to ask, what its ``Host`` header says, and the path. Raises ``ValueError``."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is not an http URL")
    if parts.username is not None:
        raise ValueError("names and passwords in a URL are not sent")
    tls = parts.scheme == "https"
    origin = Origin(tls, parts.hostname, parts.port or (443 if tls else 80))
    shown = f"[{origin.host}]" if ":" in origin.host else origin.host.encode("idna").decode()
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~") + (f"?{parts.query}" if parts.query else "")
    return origin, shown if parts.port is None else f"{shown}:{origin.port}", path
