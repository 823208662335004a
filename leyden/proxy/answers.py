"""Answers in the making: one writer, any number of readers, and a short memory for the SDKs' retries."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Any

from starlette.types import Receive, Scope, Send

from leyden.proxy.apis import Api
from leyden.proxy.asked import Asked
from leyden.proxy.refusal import Refusal

REMEMBER_SECONDS = 60.0  # OpenAI's SDKs wait at most 8 s between tries
REMEMBER_ANSWERS = 256
REMEMBER_BYTES = 32 * 2**20

DISCONNECTED = "disconnected"

Fingerprint = tuple[str, int, bytes]
"""Rollout, attempt, sha256 of the body."""


class Answer:
    """The answer to one call. Its writer calls ``whole``, or ``write`` and ``end``, or ``refuse``; readers see all of it."""

    def __init__(self, api: Api, asked: Asked) -> None:
        self._api = api
        self._asked = asked
        self.stream = api.stream(asked)
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.parts: list[bytes] = []
        self.size = 0
        self.ended = False
        self.ended_at = 0.0  # monotonic seconds
        self.failed = False
        self.settling = False  # the sample is complete and being committed: too late to abandon
        self.abandoned: Refusal | None = None
        self.task: asyncio.Task[None] | None = None
        self._readers = 0
        self._changed = asyncio.Event()

    def whole(self, response: dict[str, Any]) -> None:
        """``response``: a ``chat.completion`` as the engine gave it."""
        self._body(200, {"content-type": "application/json"}, self._api.whole(self._asked, response))

    def write(self, part: bytes) -> None:
        """A part of a stream; its first one begins the answer."""
        if self.status is None:
            self.status, self.headers = 200, {"content-type": "text/event-stream", "cache-control": "no-cache"}
        self._add(part)

    def end(self) -> None:
        self.ended = True
        self.ended_at = time.monotonic()
        self._wake()

    def refuse(self, refusal: Refusal) -> None:
        """Answer with an error; in a stream that has begun, as its last event."""
        self.failed = True
        if self.status is None:
            self._body(refusal.status, refusal.headers, self._api.refuse(refusal))
        else:
            self._add(self.stream.refuse(refusal))
            self.end()

    def abandon(self, why: Refusal) -> None:
        """Nobody waits for it any more: stop its writer, unless all that is left is to commit."""
        if self.task is None or self.ended or self.settling or self.abandoned:
            return
        self.abandoned = why
        self.task.cancel()

    def join(self) -> None:
        self._readers += 1

    def leave(self) -> None:
        self._readers -= 1
        if not self._readers:
            self.abandon(Refusal(499, DISCONNECTED, "the client went away"))

    async def read(self) -> AsyncIterator[bytes]:
        position = 0
        while True:
            while position < len(self.parts):
                yield self.parts[position]
                position += 1
            if self.ended:
                return
            await self._changed.wait()

    def _body(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers = status, {**headers, "content-length": str(len(body))}
        self._add(body)
        self.end()

    def _add(self, part: bytes) -> None:
        self.parts.append(part)
        self.size += len(part)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class Reader:
    """One client's view of an answer, as an ASGI response. Nothing leaves before there is a status; a client that goes away leaves it."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        answer.join()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send(send))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            sending.cancel()
            gone.cancel()
            self._answer.leave()

    async def _send(self, send: Send) -> None:
        started = False
        async for part in self._answer.read():
            if not started:
                started = True
                headers = [(name.encode(), value.encode("latin-1")) for name, value in self._answer.headers.items()]
                await send({"type": "http.response.start", "status": self._answer.status, "headers": headers})
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class Answers:
    """Recent answers by fingerprint, for requests marked as a retry. Failed ones are not remembered: their retry is a new sample."""

    def __init__(self) -> None:
        self._recent: OrderedDict[Fingerprint, Answer] = OrderedDict()

    def find(self, fingerprint: Fingerprint) -> Answer | None:
        self._forget()
        answer = self._recent.get(fingerprint)
        return None if answer is None or answer.failed or answer.abandoned else answer

    def remember(self, fingerprint: Fingerprint, answer: Answer) -> None:
        self._recent[fingerprint] = answer
        self._recent.move_to_end(fingerprint)
        self._forget()

    def _forget(self) -> None:
        oldest = time.monotonic() - REMEMBER_SECONDS
        size = sum(answer.size for answer in self._recent.values())
        for fingerprint, answer in list(self._recent.items()):
            if answer.ended and (answer.ended_at < oldest or size > REMEMBER_BYTES or len(self._recent) > REMEMBER_ANSWERS):
                size -= answer.size
                del self._recent[fingerprint]


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
