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
    """The answer to one call. Its writer calls ``form`` and ``whole``, or ``write`` and ``end``, or ``refuse``; readers see all of it."""

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
        self._changed: asyncio.Event | None = None  # where somebody waits

    def form(self, response: dict[str, Any]) -> bytes:
        """The body for ``whole``. ``response``: a ``chat.completion`` as the engine gave it."""
        return self._api.whole(self._asked, response)

    def whole(self, body: bytes) -> None:
        self._body(200, {"content-type": "application/json"}, body)

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

    async def read(self) -> AsyncIterator[tuple[bytes, bool]]:
        """What is there, in one piece; then what has come since, as it comes; and whether that is the last."""
        position, ended = 0, False
        while not ended:
            end, ended = len(self.parts), self.ended
            if end > position or ended:
                yield self.parts[position] if end == position + 1 else b"".join(self.parts[position:end]), ended
                position = end
            else:
                self._changed = self._changed or asyncio.Event()
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
        if self._changed is not None:
            self._changed.set()
            self._changed = None


class Reader:
    """One client's view of an answer, as an ASGI response. Nothing leaves before there is a status; a client that goes away leaves it."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        answer.join()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.current_task()
        assert sending is not None
        watching = asyncio.create_task(self._leave_with_client(receive, sending))
        try:
            await self._send(send)
        except asyncio.CancelledError:
            if not self._gone:  # not by us
                raise
        finally:
            watching.cancel()
            self._answer.leave()

    _gone = False

    async def _leave_with_client(self, receive: Receive, sending: asyncio.Task[Any]) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        sending.cancel()

    async def _send(self, send: Send) -> None:
        started = False
        async for part, is_last in self._answer.read():
            if not started:
                started = True
                headers = [(name.encode(), value.encode("latin-1")) for name, value in self._answer.headers.items()]
                await send({"type": "http.response.start", "status": self._answer.status, "headers": headers})
            await send({"type": "http.response.body", "body": part, "more_body": not is_last})


class Answers:
    """Recent answers by fingerprint, for requests marked as a retry. Failed ones are not remembered: their retry is a new sample."""

    def __init__(self) -> None:
        self._live: dict[Fingerprint, Answer] = {}
        self._recent: OrderedDict[Fingerprint, Answer] = OrderedDict()  # ended, the oldest first
        self._size = 0  # bytes of them

    def find(self, fingerprint: Fingerprint) -> Answer | None:
        self._forget()
        answer = self._live.get(fingerprint) or self._recent.get(fingerprint)
        return None if answer is None or answer.failed or answer.abandoned else answer

    def begin(self, fingerprint: Fingerprint, answer: Answer) -> None:
        self._live[fingerprint] = answer

    def settle(self, fingerprint: Fingerprint, answer: Answer) -> None:
        """It has ended."""
        if self._live.get(fingerprint) is answer:
            del self._live[fingerprint]
        if (before := self._recent.pop(fingerprint, None)) is not None:
            self._size -= before.size
        if not answer.failed:
            self._recent[fingerprint] = answer
            self._size += answer.size
        self._forget()

    def _forget(self) -> None:
        oldest = time.monotonic() - REMEMBER_SECONDS
        while self._recent and (
            len(self._recent) > REMEMBER_ANSWERS or self._size > REMEMBER_BYTES or next(iter(self._recent.values())).ended_at < oldest
        ):
            self._size -= self._recent.popitem(last=False)[1].size
