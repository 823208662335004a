"""Completions (https://platform.openai.com/docs/api-reference/completions): a prompt, text or token ids, and how it goes on."""

from __future__ import annotations

from typing import Any

import orjson

from leyden.proxy import sse
from leyden.proxy.apis.fields import flag, invalid, model_of, number_of_choices, parse_object, unsupported, wants_usage
from leyden.proxy.asked import TEXT, Asked
from leyden.proxy.refusal import Refusal
from leyden.proxy.text_upstream import as_completion


class Completions:
    path = TEXT

    def parse(self, raw: bytes) -> Asked:
        """Raises ``Refusal`` (400) for several prompts, and for what would put tokens that were not sampled into the answer."""
        body = parse_object(raw)
        model, n = model_of(body), number_of_choices(body)
        body["prompt"] = _prompt(body.get("prompt"))
        if flag(body, "echo"):
            raise unsupported("echo", "a record holds what was sampled", "put prompt and answer together yourself")
        if body.get("best_of") not in (None, n):
            raise unsupported("best_of", "every sample is recorded", "ask for n, and choose")
        logprobs = body.get("logprobs")
        if logprobs is not None and (isinstance(logprobs, bool) or not isinstance(logprobs, int)):
            raise invalid("logprobs", "is not a whole number")
        return Asked(
            body=body,
            model=model,
            n=n,
            stream=flag(body, "stream"),
            token_ids=flag(body, "return_token_ids"),
            logprobs=logprobs is not None,
            usage=wants_usage(body),
            path=TEXT,
        )

    def whole(self, asked: Asked, response: dict[str, Any]) -> bytes:
        return orjson.dumps(_show(asked, response))

    def stream(self, asked: Asked) -> CompletionStream:
        return CompletionStream(asked)

    def refuse(self, refusal: Refusal) -> bytes:
        return refusal.body if refusal.body is not None else orjson.dumps(refusal.as_openai())


class CompletionStream:
    def __init__(self, asked: Asked) -> None:
        self._asked = asked

    def chunk(self, chunk: dict[str, Any]) -> bytes:
        chunk = _show(self._asked, chunk)
        if not self._asked.usage:
            chunk.pop("usage", None)
            if not chunk.get("choices"):
                return b""
        return sse.encode(chunk)

    def end(self) -> bytes:
        return sse.DONE

    def refuse(self, refusal: Refusal) -> bytes:
        return sse.encode(refusal.as_openai())


def _prompt(prompt: Any) -> str | list[int]:
    """One prompt: a text or token ids [P], alone or the only one of a list."""
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list) and prompt and all(isinstance(id, int) and not isinstance(id, bool) for id in prompt):
        return prompt
    if isinstance(prompt, list) and len(prompt) > 1:
        raise unsupported("prompt", "a call is one prompt's", "send a request for each")
    raise invalid("prompt", "is neither a text nor a list of token ids")


def _show(asked: Asked, response: dict[str, Any]) -> dict[str, Any]:
    """The agent's view of a whole response or of one chunk. Changes ``response``."""
    response = as_completion(response)
    response["model"] = asked.model
    for choice in response.get("choices") or ():
        if not asked.token_ids:
            choice.pop("token_ids", None)
            choice.pop("prompt_token_ids", None)
        if not asked.logprobs:
            choice["logprobs"] = None
    return response
