"""One question to an OpenAI-compatible endpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from leyden.environments.connections import http_client
from leyden.errors import InvalidRequest, LeydenError, Unavailable
from leyden.types import LLM


async def ask(llm: LLM, messages: Sequence[Mapping[str, Any]], **parameters: Any) -> dict[str, Any]:
    """The answer's body to one chat completion, with the LLM's sampling parameters under ``parameters``; its key goes along, and no other.

    Raises ``Unavailable`` if nobody answers, or with 429 or 5xx; ``InvalidRequest`` for another refusal or an answer without choices.
    """
    body = {**llm.sampling_parameters, **parameters, "model": llm.model, "messages": list(messages)}
    url = f"{llm.endpoint.rstrip('/')}/chat/completions"
    headers = {"Authorization": f"Bearer {llm.api_key}"} if llm.api_key else {}
    try:
        response = await http_client().post(url, json=body, headers=headers)
        response.raise_for_status()
    except httpx.HTTPStatusError as error:
        raise _refused(url, error.response) from error
    except httpx.InvalidURL as error:
        raise InvalidRequest(f"{llm.endpoint!r} is no URL: {error}", "an endpoint is like http://127.0.0.1:8000/v1") from error
    except httpx.TransportError as error:
        raise Unavailable(
            f"{url} does not answer: {type(error).__name__} {error}".rstrip(), "is the engine up? leyden serve DIR"
        ) from error
    try:
        answer = response.json()
        answer["choices"][0]["message"]["role"]
    except (ValueError, KeyError, IndexError, TypeError):
        raise InvalidRequest(f"{url} answered without a message: {response.text[:200]!r}", "does it speak chat completions?") from None
    return answer


def _refused(url: str, response: httpx.Response) -> LeydenError:
    message = f"{url} answered {response.status_code}: {' '.join(response.text.split())[:300]}"
    if response.status_code == 429 or response.status_code >= 500:
        return Unavailable(message, "see the engine's log")
    return InvalidRequest(message, "see what the endpoint accepts")
