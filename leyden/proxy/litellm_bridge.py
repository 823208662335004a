"""Providers that do not speak OpenAI, through litellm. It is imported at the first call, not before: that takes seconds."""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import AsyncGenerator
from functools import cache
from typing import Any

import httpx

from leyden.proxy.deployments import Deployment
from leyden.proxy.passthrough import FIRST_BYTE
from leyden.proxy.refusal import Refusal, engine_gone

# What an agent may pass on. litellm takes api_base, mock_response and the like from the same arguments: with those in its hands
# an agent could send the provider's key wherever it likes.
_ALLOWED = {
    "messages", "tools", "tool_choice", "parallel_tool_calls", "response_format", "functions", "function_call",
    "temperature", "top_p", "max_tokens", "max_completion_tokens", "n", "stop", "seed", "presence_penalty", "frequency_penalty",
    "logit_bias", "logprobs", "top_logprobs", "stream", "stream_options", "user", "reasoning_effort",
}  # fmt: skip


class LiteLLMBridge:
    """The same two calls as ``PassThrough``. Token ids are not to be had here."""

    async def complete(self, deployment: Deployment, body: dict[str, Any]) -> dict[str, Any]:
        return _plain((await self._call(deployment, body)).model_dump(mode="json"))

    async def stream(self, deployment: Deployment, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        try:
            async for chunk in await self._call(deployment, body):
                yield _plain(chunk.model_dump(mode="json"))
        except Refusal:
            raise
        except Exception as error:
            raise _refusal(deployment, error) from error

    async def _call(self, deployment: Deployment, body: dict[str, Any]) -> Any:
        if unknown := {name for name, value in body.items() if value is not None} - _ALLOWED - {"model"}:
            message = f"{deployment.model_name} does not take {', '.join(sorted(unknown))}"
            raise Refusal(400, "unsupported_parameter", message, param=min(unknown))
        litellm = await asyncio.to_thread(_load)
        target = {"api_base": deployment.api_base, "api_key": deployment.api_key, **deployment.options}
        timeout = min(FIRST_BYTE, deployment.timeout)
        try:
            return await litellm.acompletion(**body, **target, drop_params=True, num_retries=0, max_retries=0, timeout=timeout)
        except Exception as error:  # litellm raises a family of classes of its own and of its providers
            raise _refusal(deployment, error) from error


@cache
def _load() -> Any:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else the import goes to the network
    litellm: Any = importlib.import_module("litellm")
    litellm.suppress_debug_info = True  # else it prints to stdout at each failure
    return litellm


def _plain(value: Any) -> Any:
    """Without the nulls that litellm adds for every provider's fields."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items() if item is not None}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _refusal(deployment: Deployment, error: Exception) -> Refusal:
    if _caused_by(error, httpx.NetworkError, httpx.ConnectTimeout, httpx.RemoteProtocolError, ConnectionError):
        return engine_gone(f"cannot reach {deployment.model_name}: {type(error).__name__}: {str(error)[:500]}")
    if _caused_by(error, httpx.TimeoutException, TimeoutError):
        return Refusal(504, "upstream_timeout", f"{deployment.model_name} did not answer in time")
    status = getattr(error, "status_code", None)
    message = getattr(error, "message", None) or f"{type(error).__name__}: {error}"
    return Refusal(status if isinstance(status, int) and 400 <= status < 600 else 502, "upstream_error", str(message)[:2000])


def _caused_by(error: BaseException | None, *kinds: type[BaseException]) -> bool:
    """Whether nobody answered, say: litellm gives such errors many names, and status 500, but keeps what they came from."""
    while error is not None:
        if isinstance(error, kinds):
            return True
        error = error.__cause__ or error.__context__
    return False
