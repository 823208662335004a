"""The program of a worker that is stopped until its leases are gone, wakes, and goes on as if nothing had happened."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from uuid import uuid4

from leyden.errors import LeydenError
from leyden.server.client import StoreClient
from leyden.types import FailureKind, Generation, LeaseRef, Reward, Span

ENDINGS = ("complete", "fail", "release")


def run(url: str, worker: str, limit: int, lease_seconds: float, held: str, go: str, said: str) -> None:
    """Writes the refs that it holds to ``held``; once ``go`` exists, acts under each of them, and writes the answers to ``said``."""
    asyncio.run(_run(url, worker, limit, lease_seconds, Path(held), Path(go), Path(said)))


async def _run(url: str, worker: str, limit: int, lease_seconds: float, held: Path, go: Path, said: Path) -> None:
    async with StoreClient(url) as store:
        await store.register_worker(worker, worker, limit)
        leases = await store.claim(worker, limit, wait=20.0, lease_seconds=lease_seconds)
        refs = [lease.ref for lease in leases]
        write_whole(held, [ref.model_dump() for ref in refs])
        while not go.exists():  # noqa: ASYNC240 (in a directory of the test)
            await store.heartbeat(worker, refs)
            await asyncio.sleep(lease_seconds / 8)
        write_whole(said, [await _act(store, worker, ref, number) for number, ref in enumerate(refs)])


async def _act(store: StoreClient, worker: str, ref: LeaseRef, number: int) -> dict[str, Any]:
    """All that a holder may do, in the order it would. Operation → the answer, or the error's code."""
    here = f"{worker}-{number}"
    span = Span(trace_id=uuid4().hex, span_id=f"{number + 1:016x}", name="late", start_ns=1, end_ns=2)
    generation = Generation(
        id=f"late-{here}", call_id=here, rollout_id=ref.rollout_id, attempt=ref.attempt, model="m", started_at=1, latency=0.1
    )
    reward = Reward(name="late", value=-1.0)
    calls = {
        "heartbeat": store.heartbeat(worker, [ref]),
        "add_spans": store.add_spans(ref, [span]),
        "add_generations": store.add_generations(ref, [generation]),
        "add_rewards": store.add_rewards(ref, [reward]),
        "complete": store.complete(ref, [reward]),
        "fail": store.fail(ref, FailureKind.AGENT, "late"),
        "release": store.release(ref),
    }
    answers: dict[str, Any] = {"ref": ref.model_dump()}
    first = ENDINGS[number % len(ENDINGS)]  # each of them is the first to come in some case
    for name in sorted(calls, key=lambda name: (name in ENDINGS, name != first)):
        try:
            answer = await calls[name]
            answers[name] = answer if isinstance(answer, list | int) or answer is None else "accepted"
        except LeydenError as error:
            answers[name] = error.code
    return answers


def write_whole(path: Path, value: Any) -> None:
    """A reader sees nothing or all of it."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(value))
    partial.replace(path)
