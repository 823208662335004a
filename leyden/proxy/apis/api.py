"""What the proxy asks of a request form."""

from __future__ import annotations

from typing import Any, Protocol

from leyden.proxy.asked import Asked
from leyden.proxy.refusal import Refusal


class Stream(Protocol):
    """One streamed answer in the form of its agent. Every method returns the bytes to send, perhaps none."""

    def chunk(self, chunk: dict[str, Any]) -> bytes:
        """``chunk``: a ``chat.completion.chunk``, token ids, log-probabilities and usage included; may be changed."""
        ...

    def end(self) -> bytes:
        """What closes a complete answer."""
        ...

    def refuse(self, refusal: Refusal) -> bytes:
        """What closes one that broke off: the form's own error event."""
        ...


class Api(Protocol):
    """A request form: reads what an agent posts to ``/v1`` + ``path``, and tells it the answer in the same form."""

    path: str

    def parse(self, raw: bytes) -> Asked:
        """The request, ``Asked.body`` in the form of a chat completion. Raises ``Refusal`` (400) for what the engine could not judge."""
        ...

    def whole(self, asked: Asked, response: dict[str, Any]) -> bytes:
        """The body of an answer that is not streamed. ``response``: a ``chat.completion`` as the engine gave it; may be changed."""
        ...

    def stream(self, asked: Asked) -> Stream: ...

    def refuse(self, refusal: Refusal) -> bytes:
        """The body of an answer that is an error. ``refusal.body``: the engine's own, in the form of a chat completion's error."""
        ...
