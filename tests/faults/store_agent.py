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
    begun, go = Path(task["begun"]), Path(task["go"])
    begun.touch()  # noqa: ASYNC240 (in a directory of the test)
    while not go.exists():  # noqa: ASYNC240
        await asyncio.sleep(0.02)
    return float(task["n"])
