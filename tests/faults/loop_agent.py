"""An agent whose reward depends on the task and the version alone, so that a run that was killed earns what an undisturbed one does.

It waits at gates: as long as the file ``<GATES>/<step>`` exists, tasks that are marked ``gated`` do not end in that step.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import httpx

import leyden.runners
from leyden.types import LLM, Rollout

GATES = "LEYDEN_TEST_GATES"


@leyden.runners.rollout
async def agent(task: dict[str, Any], llm: LLM, rollout: Rollout) -> float:
    gate = Path(os.environ[GATES]) / rollout.metadata["step"]
    while task["gated"] and gate.exists():
        await asyncio.sleep(0.02)
    body = {"model": llm.model, "messages": [{"role": "user", "content": task["input"]}], **llm.sampling_parameters}
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        answer = await client.post(f"{llm.endpoint}/chat/completions", json=body, headers={"Authorization": f"Bearer {llm.api_key}"})
    answer.raise_for_status()
    return 1.0 if llm.checkpoint != "version_0" else float(task["easy"])
