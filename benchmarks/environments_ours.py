"""Leyden's side of ``environments.py``: one run in a process of its own, its numbers as JSON on stdout."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from leyden.environments import CodeScorer, Environment, RunOutput, Task, run_rollouts
from leyden.runners import rollout


async def is_right(run: RunOutput, expected: Any) -> bool:
    return bool(run.content == expected)


@rollout
async def bare(task: str) -> str:
    return "42"


def real() -> Any:
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


async def alone(runs: int, concurrency: int) -> dict[str, float]:
    """The Agents SDK by itself, without an environment: nothing is isolated, scored or kept."""
    from agents import RunConfig, Runner

    agent, config, slots = real(), RunConfig(tracing_disabled=True), asyncio.Semaphore(concurrency)

    async def one() -> None:
        async with slots:
            await Runner.run(agent, "q", run_config=config)

    await one()
    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(one() for _ in range(runs)))
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}


def main() -> None:
    kind, tasks, k, concurrency = sys.argv[1], *map(int, sys.argv[2:5])
    if kind == "alone":
        print(json.dumps({**asyncio.run(alone(tasks * k, concurrency)), "scored": tasks * k, "pass_rate": 1.0}))
        return
    asked = [Task(f"q{n}", expected="42", id=f"t{n}") for n in range(tasks)]
    env = Environment("bench", tuple(asked), CodeScorer(is_right), bare if kind == "bare" else real())
    with tempfile.TemporaryDirectory() as directory:
        run_rollouts(env, k=1, tasks=["t0"], evals=Path(directory), quiet=True)  # what is imported and made once
        wall, cpu = time.perf_counter(), time.process_time()
        found = run_rollouts(env, k=k, concurrency=concurrency, evals=Path(directory), quiet=True)
        numbers = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    print(json.dumps({**numbers, "scored": found.n_scored, "pass_rate": found.pass_rate, "errors": list(found.errors().items())[:1]}))


if __name__ == "__main__":
    main()
