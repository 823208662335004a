"""An agent that a random model sometimes pleases: reward 1.0 for an answer whose first character is even."""

from __future__ import annotations

from typing import Any

import httpx

import leyden.runners
from leyden.types import LLM


@leyden.runners.rollout
async def agent(task: dict[str, Any], llm: LLM) -> float:
    text = await ask(task["input"], llm)
    return float(ord(text[0]) % 2 == 0) if text else 0.0


@leyden.runners.rollout
async def never(task: dict[str, Any], llm: LLM) -> float:
    await ask(task["input"], llm)
    return 0.0


@leyden.runners.rollout
async def breaks(task: dict[str, Any], llm: LLM) -> float:
    raise leyden.runners.InfrastructureFailure("the disk is on fire")


async def ask(question: str, llm: LLM) -> str:
    body = {"model": llm.model, "messages": [{"role": "user", "content": question}], **llm.sampling_parameters}
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        answer = await client.post(f"{llm.endpoint}/chat/completions", json=body, headers={"Authorization": f"Bearer {llm.api_key}"})
    answer.raise_for_status()
    return answer.json()["choices"][0]["message"]["content"] or ""
