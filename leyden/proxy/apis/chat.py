"""Chat completions (https://platform.openai.com/docs/api-reference/chat): the engine's own form, less what the agent did not ask for."""

from __future__ import annotations

from typing import Any

import orjson

from leyden.proxy import sse
from leyden.proxy.apis.fields import flag, model_of, number_of_choices, objects, parse_object, wants_usage
from leyden.proxy.asked import Asked
from leyden.proxy.refusal import Refusal


class ChatCompletions:
    path = "/chat/completions"

    def parse(self, raw: bytes) -> Asked:
        """Raises ``Refusal`` (400) for what is not a JSON object with a model and a list of messages. What those hold is the engine's to
        judge."""
        body = parse_object(raw)
        objects(body.get("messages"), "messages")
        return Asked(
            body=body,
            model=model_of(body),
            n=number_of_choices(body),
            stream=flag(body, "stream"),
            token_ids=flag(body, "return_token_ids"),
            logprobs=body.get("logprobs") is True,
            usage=wants_usage(body),
        )

    def whole(self, asked: Asked, response: dict[str, Any]) -> bytes:
        return orjson.dumps(_show(asked, response))

    def stream(self, asked: Asked) -> ChatStream:
        return ChatStream(asked)

    def refuse(self, refusal: Refusal) -> bytes:
        return refusal.body if refusal.body is not None else orjson.dumps(refusal.as_openai())


class ChatStream:
    def __init__(self, asked: Asked) -> None:
        self._asked = asked

    def chunk(self, chunk: dict[str, Any]) -> bytes:
        chunk = _show(self._asked, chunk)
        choices = chunk.get("choices") or ()
        if not self._asked.usage:
            chunk.pop("usage", None)
            if not choices:
                return b""
        bare = all(not c.get("delta") and c.get("finish_reason") is None and c.get("logprobs") is None for c in choices)
        return b"" if bare and choices and not self._asked.token_ids else sse.encode(chunk)

    def end(self) -> bytes:
        return sse.DONE

    def refuse(self, refusal: Refusal) -> bytes:
        return sse.encode(refusal.as_openai())


def _show(asked: Asked, response: dict[str, Any]) -> dict[str, Any]:
    """The agent's view of a whole response or of one chunk. Changes ``response``."""
    response["model"] = asked.model
    if not asked.token_ids:
        response.pop("prompt_token_ids", None)
    for choice in response.get("choices") or ():
        if not asked.token_ids:
            choice.pop("token_ids", None)
        if not asked.logprobs and choice.get("logprobs") is not None:
            choice["logprobs"] = None
    return response
