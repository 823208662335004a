"""Agents that runner processes load: ``tests/runners/agents_for_tests.py:NAME``. The task says where to meet the test."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from leyden.runners import rollout


@rollout
async def answer(task: dict[str, Any]) -> float:
    return task["value"]


@rollout
async def meet(task: dict[str, Any]) -> float:
    """Says in ``DIR/started-PID-VALUE`` that it runs, and waits for ``DIR/go``."""
    place = Path(task["dir"])
    (place / f"started-{os.getpid()}-{task['value']}").touch()
    while not (place / "go").exists():
        await asyncio.sleep(0.02)
    return task["value"]


@rollout
def stubborn(task: dict[str, Any]) -> float:
    """A thread that never ends, the first time; the others wait for ``DIR/go``."""
    place = Path(task["dir"])
    first = task["stubborn"] and not (place / "was-stubborn").exists()
    (place / f"started-{os.getpid()}-{task['value']}").touch()
    if first:
        (place / "was-stubborn").touch()
    while first or not (place / "go").exists():
        time.sleep(0.02)
    return task["value"]


@rollout
async def block(task: dict[str, Any]) -> float:
    """Keeps the event loop to itself, for the value 0."""
    (Path(task["dir"]) / f"started-{os.getpid()}-{task['value']}").touch()
    if task["value"] == 0:
        time.sleep(3600)  # noqa: ASYNC251 (this is the very mistake)
    return task["value"]


@rollout
async def die(task: dict[str, Any]) -> float:
    await asyncio.sleep(0.05)  # the others beside it have begun
    if task["die"]:
        os._exit(9)
    await asyncio.sleep(0.1)
    return 1.0


@rollout
async def keys(task: Any) -> dict[str, float]:
    return {name: float(os.environ.get(name, 0)) for name in ("TOOL_API_KEY", "OTHER_API_KEY")}


@rollout
async def linger(task: dict[str, Any]) -> float:
    """Waits until it is stopped, and says so in ``DIR/stopped-VALUE``."""
    place = Path(task["dir"])
    (place / f"started-{os.getpid()}-{task['value']}").touch()
    try:
        await asyncio.Event().wait()
    finally:
        (place / f"stopped-{task['value']}").touch()
    return 1.0
