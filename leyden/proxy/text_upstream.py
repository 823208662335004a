"""An engine's completions, told as chat completions while they pass, so that they are captured like everything else.

The fields of the completion stay where they are; those that a chat completion has are put beside them, and ``as_completion`` takes them
out again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from leyden.proxy.asked import TEXT
from leyden.proxy.deployments import Deployment, Dialect
from leyden.proxy.passthrough import PassThrough
from leyden.proxy.refusal import Refusal


class TextUpstream:
    """The same two calls as ``PassThrough``, at an engine's ``/completions``. Raises ``Refusal`` (400) for a provider that has none."""

    def __init__(self, passthrough: PassThrough) -> None:
        self._passthrough = passthrough

    async def complete(self, deployment: Deployment, body: dict[str, Any]) -> dict[str, Any]:
        _check(deployment)
        return _as_chat(await self._passthrough.complete(deployment, body, TEXT), "message")

    async def stream(self, deployment: Deployment, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        _check(deployment)
        async with aclosing(self._passthrough.stream(deployment, body, TEXT)) as chunks:
            async for chunk in chunks:
                yield _as_chat(chunk, "delta")


def as_completion(response: dict[str, Any]) -> dict[str, Any]:
    """Undo what ``TextUpstream`` added. Changes ``response``."""
    response.pop("prompt_token_ids", None)
    for choice in response.get("choices") or ():
        choice.pop("message", None)
        choice.pop("delta", None)
        (choice.get("logprobs") or {}).pop("content", None)
    return response


def _as_chat(response: dict[str, Any], part: str) -> dict[str, Any]:
    for choice in response.get("choices") or ():
        if choice.get("prompt_token_ids") is not None:
            response["prompt_token_ids"] = choice["prompt_token_ids"]
        choice[part] = {"content": choice.get("text") or ""}
        if (logprobs := choice.get("logprobs")) is not None:
            pairs = zip(logprobs.get("tokens") or (), logprobs.get("token_logprobs") or (), strict=False)
            logprobs["content"] = [{"token": token, "logprob": logprob} for token, logprob in pairs]
    return response


def _check(deployment: Deployment) -> None:
    if deployment.dialect is Dialect.LITELLM:
        message = f"{deployment.model_name} is reached through litellm, which is asked for chat completions only"
        raise Refusal(400, "unsupported_api", message, "use POST /v1/chat/completions", param="model")
