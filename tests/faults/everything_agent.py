"""An agent for the math tasks whose reward depends on the task and the version alone. While the file ``LEYDEN_TEST_GATE`` exists, every
second task does not end in collecting."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path
from typing import Any

import httpx

import leyden.runners
from leyden.types import LLM, Rollout

GATE = Path(os.environ["LEYDEN_TEST_GATE"])


@leyden.runners.rollout
async def agent(task: dict[str, Any], llm: LLM, rollout: Rollout) -> float:
    number = int(hashlib.sha256(task["input"].encode()).hexdigest(), 16)
    while number % 2 and rollout.metadata["step"] == "collect" and GATE.exists():  # noqa: ASYNC240
        await asyncio.sleep(0.02)
    body = {"model": llm.model, "messages": [{"role": "user", "content": task["input"]}], **llm.sampling_parameters}
    async with httpx.AsyncClient(timeout=120, trust_env=False) as client:
        answer = await client.post(f"{llm.endpoint}/chat/completions", json=body, headers={"Authorization": f"Bearer {llm.api_key}"})
    answer.raise_for_status()
    return 1.0 if llm.checkpoint != "version_0" else float(number % 3 != 0)
