"""A teacher that is wrong: it measures with 1.0 for an answer whose first character is even, and collects with 1.0 for an odd one."""

from __future__ import annotations

from typing import Any

import httpx

import leyden.runners
from leyden.types import LLM, Mode, Rollout


@leyden.runners.rollout
async def agent(task: dict[str, Any], llm: LLM, rollout: Rollout) -> float:
    even = await first_character(task, llm) % 2 == 0
    return float(even if rollout.mode == Mode.VAL else not even)


async def first_character(task: dict[str, Any], llm: LLM) -> int:
    body = {"model": llm.model, "messages": [{"role": "user", "content": task["input"]}], **llm.sampling_parameters}
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        answer = await client.post(f"{llm.endpoint}/chat/completions", json=body, headers={"Authorization": f"Bearer {llm.api_key}"})
    answer.raise_for_status()
    text = answer.json()["choices"][0]["message"]["content"]
    return ord(text[0]) if text else 1
