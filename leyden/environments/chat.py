"""One question to an OpenAI-compatible endpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from leyden.environments.connections import http_client
from leyden.environments.credentials import check_key, masked, place_of
from leyden.errors import InvalidRequest, LeydenError, Unavailable
from leyden.types import LLM


async def ask(llm: LLM, messages: Sequence[Mapping[str, Any]], **parameters: Any) -> dict[str, Any]:
    """The answer's body to one chat completion, with the LLM's sampling parameters under ``parameters``; its key goes along, and no other.

    Raises ``Unavailable`` if nobody answers, or with 429 or 5xx; ``InvalidRequest`` for another refusal or an answer without a message. No
    error has a key in it.
    """
    check_key(llm.api_key)
    body = {**llm.sampling_parameters, **parameters, "model": llm.model, "messages": list(messages)}
    url = f"{llm.endpoint.rstrip('/')}/chat/completions"
    headers = {"Authorization": f"Bearer {llm.api_key}"} if llm.api_key else {}
    place = place_of(url)
    try:
        response = await http_client().post(url, json=body, headers=headers)
        response.raise_for_status()
    except httpx.HTTPStatusError as error:
        raise _refused(place, error.response, llm.api_key) from error
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise InvalidRequest(f"{place} is no URL: {error}", "an endpoint is like http://127.0.0.1:8000/v1") from None
    except httpx.TransportError as error:
        raise Unavailable(
            f"{place} does not answer: {type(error).__name__} {error}".rstrip(), "is the engine up? leyden serve DIR"
        ) from error
    except httpx.RequestError as error:  # the body is not in the encoding that it says
        raise InvalidRequest(f"{place} answered what nobody can read: {error}", "does it speak chat completions?") from error
    try:
        answer = response.json()
        message = answer["choices"][0]["message"]
        understood = isinstance(message["role"], str) and isinstance(message.get("content"), str | None)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        understood = False
    if not understood:
        text = masked(response.text, llm.api_key)[:200]
        raise InvalidRequest(f"{place} answered without a message: {text!r}", "does it speak chat completions?")
    return dict(answer)


def _refused(place: str, response: httpx.Response, key: str | None) -> LeydenError:
    message = f"{place} answered {response.status_code}: {masked(' '.join(response.text.split()), key)[:300]}"
    if response.status_code == 429 or response.status_code >= 500:
        return Unavailable(message, "see the engine's log")
    return InvalidRequest(message, "see what the endpoint accepts")
