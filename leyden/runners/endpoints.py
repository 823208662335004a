"""Whether an attempt failed because nobody answers at its LLM's endpoint. That is nobody's failure: the rollout is handed back.

An engine that answers with an error of its own is there, however ill: that attempt has failed, as infrastructure.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from contextlib import suppress
from urllib.parse import urlsplit

from leyden.runners.failures import GONE_CODES, causes, class_names, refusal_code
from leyden.types import LLM

PATIENCE = 240  # times a rollout is handed back before it fails after all: about half an hour
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 15.0  # seconds
_PROBE_TIME = 1.0  # seconds; only a refusal counts, and that comes at once

# A connection that could not be made, or that broke before the answer was whole. A read that took too long is something else.
_BROKEN_OFF = {
    "openai.APIConnectionError", "anthropic.APIConnectionError", "builtins.ConnectionError",
    "httpx.NetworkError", "httpx.ConnectTimeout", "httpx.RemoteProtocolError",
}  # fmt: skip
_TOO_SLOW = {"openai.APITimeoutError", "anthropic.APITimeoutError"}  # kinds of the SDKs' connection errors

Place = tuple[str, int]


def pause(released: int) -> float:
    """Seconds until a rollout that was handed back ``released`` times is queued again: exponential, with full jitter."""
    return random.uniform(0.0, min(_FIRST_PAUSE * 2.0 ** min(released, 10), _LONGEST_PAUSE))


async def is_gone(error: BaseException, llms: Iterable[LLM]) -> bool:
    """True if the proxy said so, if the connection to one of the endpoints broke off, or if one of them refuses connections now."""
    places = {place for llm in llms if (place := _place(llm.endpoint))}
    for cause in causes(error):
        if refusal_code(cause) in GONE_CODES or (_broke_off(cause) and _asked(cause) in places):
            return True
    return any(await asyncio.gather(*(_refuses(place) for place in places)))


def _broke_off(error: BaseException) -> bool:
    names = class_names(error)
    return bool(names & _BROKEN_OFF) and not names & _TOO_SLOW


def _asked(error: BaseException) -> Place | None:
    """Whom a client's error is about, where it says so: a tool's server may break off too."""
    with suppress(RuntimeError):  # httpx: an error without its request
        url = getattr(getattr(error, "request", None), "url", None)
        return None if url is None else _place(str(url))
    return None


def _place(url: str) -> Place | None:
    """None for what is no URL of a server: nobody can be gone from there."""
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return None
    return (parts.hostname, port) if parts.hostname else None


async def _refuses(place: Place) -> bool:
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(*place), _PROBE_TIME)
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError, UnicodeError):  # no network, no such name, none that could be: nothing is known
        return False
    writer.close()
    return False
