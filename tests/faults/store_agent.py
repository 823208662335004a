"""The agent of the runners that get killed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from leyden.runners import rollout


@rollout
async def work(task: dict[str, Any]) -> float:
    await asyncio.sleep(task["seconds"])
    return float(task["n"])


@rollout
async def wait_for_go(task: dict[str, Any]) -> float:
    """Says that it has begun, and waits to be let go."""
    Path(task["begun"]).touch()
    while not Path(task["go"]).exists():
        await asyncio.sleep(0.02)
    return float(task["n"])
