"""Chat completions (https://platform.openai.com/docs/api-reference/chat): the engine's own form, less what the agent did not ask for."""

from __future__ import annotations

from typing import Any

import orjson

from leyden.proxy import sse
from leyden.proxy.asked import Asked
from leyden.proxy.refusal import Refusal


class ChatCompletions:
    path = "/chat/completions"

    def parse(self, raw: bytes) -> Asked:
        """Raises ``Refusal`` (400) for what is not a JSON object with a model. The rest is the engine's to judge."""
        body = parse_object(raw)
        model, n = body.get("model"), body.get("n")
        if not isinstance(model, str) or not model:
            raise Refusal(400, "missing_model", "the request names no model", param="model")
        if n is not None and (not isinstance(n, int) or n < 1):
            raise Refusal(400, "invalid_n", "n is not a whole number from 1", param="n")
        options = body.get("stream_options") or {}
        if not isinstance(options, dict):
            raise Refusal(400, "invalid_stream_options", "stream_options is not an object", param="stream_options")
        return Asked(
            body=body,
            model=model,
            n=n or 1,
            stream=body.get("stream") is True,
            token_ids=body.get("return_token_ids") is True,
            logprobs=body.get("logprobs") is True,
            usage=options.get("include_usage") is True,
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


def parse_object(raw: bytes) -> dict[str, Any]:
    """Raises ``Refusal`` (400) for what is not a JSON object."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise Refusal(400, "invalid_json", f"the request body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise Refusal(400, "invalid_json", "the request body is not a JSON object")
    return body


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
