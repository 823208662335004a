"""Quarantined calls with what was said in them, one JSON object a line: for a person to read, or a script to look through."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from leyden.algorithm.quarantine import Chosen
from leyden.algorithm.refusals import Quarantined
from leyden.algorithm.replay import read_attempts
from leyden.algorithm.sft.collect import READ_BATCH, batches
from leyden.files import disk_errors, sync
from leyden.server.interface import Store
from leyden.types import Generation


async def export_calls(store: Store, chosen: Chosen, path: Path, on_entry: Callable[[], None] = lambda: None) -> int:
    """Write them to ``path`` (see ``check_output``), whole or not at all; how many lines. A call that the store does not hold any more is a
    line without text. Raises ``DiskError``.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    written = 0
    with disk_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                async for line in _lines(store, chosen, on_entry):
                    file.write(json.dumps(line, ensure_ascii=False).encode(errors="replace") + b"\n")
                    written += 1
            sync(temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        sync(path.parent)
    return written


async def _lines(store: Store, chosen: Chosen, on_entry: Callable[[], None]) -> AsyncIterator[dict[str, Any]]:
    for quarantine, entries in chosen:
        for batch in batches(entries, READ_BATCH):
            generations, _ = await read_attempts(store, batch)
            by_id = {generation.id: generation for generation in generations}
            for entry in batch:
                for call in entry.generation_ids:
                    yield _line(quarantine.iteration, entry, call, by_id.get(call))
                on_entry()


def _line(iteration: int, entry: Quarantined, call: str, said: Generation | None) -> dict[str, Any]:
    line = {
        "iteration": iteration, "reason": entry.reason, "detail": entry.detail, "task": entry.task, "rollout_id": entry.rollout_id,
        "attempt": entry.attempt, "generation_id": call, "missing": said is None,
    }  # fmt: skip
    if said is None:
        return line
    answer = [] if said.response is None else [said.response]
    return line | {
        "status": said.status, "error": said.error, "finish_reason": said.finish_reason, "model": said.model,
        "checkpoint": said.checkpoint, "messages": [*said.request.get("messages", ()), *answer], "tools": said.request.get("tools"),
        "prompt_token_ids": said.prompt_token_ids, "response_token_ids": said.response_token_ids,
        "audit": None if said.audit is None else said.audit.model_dump(mode="json"),
    }  # fmt: skip
