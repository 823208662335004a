"""Leyden's side of ``environments.py``: one run in a process of its own, its numbers as JSON on stdout."""

from __future__ import annotations

import asyncio
import copy
import json
import sqlite3
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from leyden.environments import CodeScorer, Environment, RunOutput, Task, run_rollouts
from leyden.runners import rollout
from leyden.server.interface import open_store


async def is_right(run: RunOutput, expected: Any) -> bool:
    return bool(run.content == expected)


@rollout
async def function(task: str) -> str:
    return "42"


def sdk_agent() -> Any:
    """An Agents SDK agent on a model object that answers at once."""
    from agents import Agent, Model, ModelResponse, Usage
    from openai.types.responses import ResponseOutputMessage, ResponseOutputText

    class Instant(Model):
        async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
            text = ResponseOutputText(text="42", type="output_text", annotations=[])
            said = ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed", type="message")
            return ModelResponse(output=[said], usage=Usage(), response_id=None)

        def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            raise NotImplementedError

    return Agent(name="instant", instructions="Answer.", model=Instant())


async def sdk_alone(runs: int, concurrency: int) -> dict[str, float]:
    """The Agents SDK by itself, without an environment: nothing is isolated, scored or kept. Each run has an agent of its own: the SDK
    compares all runs that share one with each other."""
    from agents import RunConfig, Runner

    agent, config, slots = sdk_agent(), RunConfig(tracing_disabled=True), asyncio.Semaphore(concurrency)

    async def one() -> None:
        async with slots:
            await Runner.run(copy.copy(agent), "q", run_config=config)

    await one()
    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(one() for _ in range(runs)))
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}


def rows_alone(made: Path, empty: Path) -> dict[str, float]:
    """What a run left in its store, inserted into an empty one in ten commits: no queue, no claim, no change of state."""
    with sqlite3.connect(made) as source, sqlite3.connect(empty, isolation_level=None) as target:
        tables = {name: source.execute(f"SELECT * FROM {name}").fetchall() for name in ("rollouts", "attempts", "spans", "rewards")}
        for pragma in ("journal_mode = WAL", "synchronous = FULL"):
            target.execute(f"PRAGMA {pragma}").close()
        wall, cpu = time.perf_counter(), time.process_time()
        for part in range(10):
            target.execute("BEGIN IMMEDIATE")
            for name, rows in tables.items():
                target.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(rows[0]))})", rows[part::10])
            target.execute("COMMIT")
        return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}


def main() -> None:
    kind, tasks, k, concurrency = sys.argv[1], *map(int, sys.argv[2:5])
    if kind == "sdk alone":
        print(json.dumps({**asyncio.run(sdk_alone(tasks * k, concurrency)), "scored": tasks * k, "pass_rate": 1.0}))
        return
    asked = [Task(f"q{n}", expected="42", id=f"t{n}") for n in range(tasks)]
    env = Environment("bench", tuple(asked), CodeScorer(is_right), sdk_agent() if kind == "sdk" else function)
    with tempfile.TemporaryDirectory() as directory:
        evals, empty = Path(directory, "evals"), Path(directory, "empty.db")
        run_rollouts(env, k=1, tasks=["t0"], evals=evals, quiet=True)  # what is imported and made once
        wall, cpu = time.perf_counter(), time.process_time()
        found = run_rollouts(env, k=k, concurrency=concurrency, evals=evals, quiet=True)
        numbers = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        if kind == "rows alone":
            asyncio.run(make_store(empty))
            numbers = rows_alone(evals / str(found.run_id) / "store.db", empty)
    print(json.dumps({**numbers, "scored": found.n_scored, "pass_rate": found.pass_rate, "errors": list(found.errors().items())[:1]}))


async def make_store(path: Path) -> None:
    await (await open_store(path)).close()


if __name__ == "__main__":
    main()
