"""Between a client and a store: it lets every request through, and loses the first answer to each."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    body: bytes


@dataclass
class Relay:
    """``async with Relay(port) as relay``: a store's port becomes ``relay.url``. Answers with a status below 300 are lost, once each."""

    port: int
    lost: dict[Request, bytes] = field(default_factory=dict)  # request → the body of the answer that its client never saw
    seen: dict[Request, bytes] = field(default_factory=dict)  # the same request → the answer to the next try

    async def __aenter__(self) -> Relay:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client's connection, one request after the other. It is closed where an answer is lost."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.port)
            while True:
                head, body = await _message(reader)
                method, path = head.split(b" ", 2)[:2]
                request = Request(method.decode(), path.decode(), body)
                up_writer.write(head + body)
                answer_head, answer = await _message(up_reader)  # the store has committed by now
                if int(answer_head.split(b" ", 2)[1]) < 300 and method != b"GET":
                    if request not in self.lost:
                        self.lost[request] = answer
                        break
                    self.seen[request] = answer
                writer.write(answer_head + answer)
            up_writer.close()
        writer.close()


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The head, blank line included, and the body. Neither httpx's requests nor the store's answers come in chunks."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = 0
    for line in head.lower().split(b"\r\n"):
        name, _, value = line.partition(b":")
        assert name != b"transfer-encoding"
        if name == b"content-length":
            length = int(value)
    return head, await reader.readexactly(length)
