"""One HTTP/1.1 connection (RFC 9112): a request at a time, its answer parsed by llhttp as it comes.

A general HTTP client costs as much as all else that the proxy does for a call (measured with aiohttp), and half as much again with httpx to
the store. Of what such a client can do little is needed: no redirects, cookies, compression or proxies.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import httptools

MAX_HEAD = 64 << 10  # bytes of an answer's status line and headers
MAX_AHEAD = 1 << 20  # bytes of a body that may wait to be read; then the server has to


class BrokenOff(ConnectionError):
    """The connection ended before the answer did, or what came is no HTTP."""


class Response:
    """An answer while it comes. It has one reader: when that is cancelled while it waits, the answer is closed."""

    def __init__(self, connection: Connection) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}  # by lower-case name
        self.ended = False
        self._connection = connection
        self._parts: deque[bytes] = deque()
        self._size = 0  # bytes of them
        self._failure: BrokenOff | None = None
        self._changed: asyncio.Future[None] | None = None

    async def begin(self) -> None:
        """Once ``status`` and ``headers`` are there. Raises ``BrokenOff``."""
        while not self.status:
            await self._wait()

    async def read(self) -> bytes:
        """All of the body that is left. Raises ``BrokenOff``."""
        parts = []
        while part := await self.read_some():
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def read_some(self) -> bytes:
        """What has come, as soon as something has; nothing at the end. Raises ``BrokenOff``."""
        while not self._parts:
            if self.ended:
                return b""
            await self._wait()
        part = self._parts.popleft() if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        if self._size > MAX_AHEAD:
            self._connection.go_on()
        self._size = 0
        return part

    def close(self) -> None:
        """An engine stops an answer whose connection is closed."""
        if not self.ended:
            self._connection.abort()

    async def _wait(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._changed = asyncio.get_running_loop().create_future()
        try:
            await self._changed
        except asyncio.CancelledError:
            self.close()
            raise

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    # -- from the connection -------------------------------------------------------------------------------------------

    def begun(self, status: int) -> None:
        self.status = status
        self._wake()

    def add(self, part: bytes) -> bool:
        """Whether there is room for more."""
        self._parts.append(part)
        self._size += len(part)
        self._wake()
        return self._size <= MAX_AHEAD

    def end(self) -> None:
        self.ended = True
        self._wake()

    def fail(self, why: str) -> None:
        self._failure = BrokenOff(why)
        self._wake()


class Connection(asyncio.Protocol):
    """``let_go`` is called with it when its answer has ended and it can be used again."""

    def __init__(self, let_go: Callable[[Connection], None]) -> None:
        self.closed = False
        self.idle_since = 0.0  # the event loop's time
        self._let_go = let_go
        self._response: Response | None = None
        self._head = 0  # bytes of the answer before its body
        self._lasts = True  # until its headers say otherwise, a body lasts until the connection ends
        self._paused = False

    def send(self, *data: bytes) -> Response:
        """A request, whole. The answer before must have ended."""
        assert self._response is None
        self._response = response = Response(self)
        self._head, self._lasts = 0, True
        self._transport.writelines(data)
        return response

    def abort(self) -> None:
        self.closed = True
        self._transport.abort()

    def go_on(self) -> None:
        if self._paused and not self.closed:
            self._paused = False
            self._transport.resume_reading()

    # -- from the event loop -------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._transport: Any = transport
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        if self._response is None:  # nobody asked: the server says why it is about to close, or it is none
            self.abort()
            return
        if not self._response.status:
            self._head += len(data)
            if self._head > MAX_HEAD + MAX_AHEAD:
                self._fail("it sends headers without end")
                return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(f"what it sent is not HTTP: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        response, self._response = self._response, None
        if response is None:
            return
        if response.status and self._lasts and error is None:
            response.end()
        else:
            response.fail(str(error or "it closed the connection before its answer was whole"))

    def _fail(self, why: str) -> None:
        response, self._response = self._response, None
        if response is not None:
            response.fail(why)
        self.abort()

    # -- from the parser -----------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._response is None:  # a second answer to one request: whatever comes next would be taken for the next one's
            self.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._response is not None:
            lowered = name.lower()
            self._lasts = self._lasts and lowered not in (b"content-length", b"transfer-encoding")
            self._response.headers[lowered.decode("latin-1")] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._response is None:
            return
        if status < 200:  # an interim answer: the one that counts is to come
            self._response.headers.clear()
        else:
            self._response.begun(status)

    def on_body(self, body: bytes) -> None:
        if self._response is not None and not self._response.add(body) and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        response = self._response
        if response is None or not response.status:
            return
        self._response = None
        response.end()
        self.go_on()
        if self._parser.should_keep_alive() and not self.closed:
            self._let_go(self)
        else:
            self.closed = True
            self._transport.close()
