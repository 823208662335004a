"""An agent that says N things, waits for ``DIR/away``, says N more, and waits for ``DIR/go``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import leyden


@leyden.rollout
async def talk(task: dict[str, Any]) -> float:
    place = Path(task["dir"])
    say(task, "before")
    (place / f"before-{task['value']}").touch()
    await seen(place / "away")
    say(task, "away")
    (place / f"during-{task['value']}").touch()
    await seen(place / "go")
    say(task, "after")
    return 1.0


def say(task: dict[str, Any], when: str) -> None:
    for n in range(task["n"]):
        leyden.emit_annotation({"value": task["value"], "when": when, "n": n, "key": "sk-0123456789abcdefghijklmnop"})


async def seen(path: Path) -> None:
    while not path.exists():  # noqa: ASYNC240 (a look)
        await asyncio.sleep(0.02)
