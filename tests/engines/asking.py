"""What an engine says to a recorded request, asked without the proxy; and what two engines' different answers come down to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx


@dataclass(frozen=True)
class Answer:
    """``prompt`` [P], ``ids`` [R]; ``lead`` [R]: how far, in log-probability, each token was ahead of the next best one."""

    prompt: list[int]
    ids: list[int]
    lead: list[float]


async def ask(base_url: str, model: str, requests: Sequence[dict[str, Any]]) -> list[Answer]:
    """Greedy answers, in order."""
    async with httpx.AsyncClient(timeout=600.0, trust_env=False) as client:
        return await asyncio.gather(*(_ask(client, base_url, model, request) for request in requests))


async def _ask(client: httpx.AsyncClient, base_url: str, model: str, request: dict[str, Any]) -> Answer:
    wanted = {"model": model, "temperature": 0.0, "stream": False, "logprobs": True, "top_logprobs": 2, "return_token_ids": True}
    response = await client.post(f"{base_url}/chat/completions", json={**request, **wanted})
    assert response.is_success, response.text
    body = response.json()
    (choice,) = body["choices"]
    tops = [sorted((top["logprob"] for top in token["top_logprobs"]), reverse=True) for token in choice["logprobs"]["content"]]
    return Answer(body["prompt_token_ids"], choice["token_ids"], [top[0] - top[1] for top in tops])


def differences(one: Sequence[Answer], other: Sequence[Answer]) -> list[tuple[int, int, float]]:
    """(request, position of the first token that differs, the smaller of the two leads there) for all answers that are not equal."""
    found = []
    for number, (a, b) in enumerate(zip(one, other, strict=True)):
        if a.ids != b.ids:
            at = next(i for i, (x, y) in enumerate(zip(a.ids, b.ids, strict=False)) if x != y)  # greedy: none is the other's beginning
            found.append((number, at, min(a.lead[at], b.lead[at])))
    return found
