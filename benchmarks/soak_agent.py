"""The agent of ``soak.py``: three steps with a span each, a message, and two rewards."""

from __future__ import annotations

import asyncio
from typing import Any

import leyden


@leyden.operation("step")
async def step(number: int, seconds: float) -> int:
    await asyncio.sleep(seconds)
    return number


@leyden.rollout
async def work(task: dict[str, Any]) -> float:
    for number in range(3):
        await step(number, task["wait"] / 3)
    leyden.emit_message(task["text"])
    leyden.emit_reward(3.0, "steps")
    return float(task["n"])
