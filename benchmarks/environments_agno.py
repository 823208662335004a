"""agno's side of ``environments.py``, run by an interpreter that has agno 3.1: the same work, its numbers as JSON on stdout."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

from agno.agent import Agent  # type: ignore[import-not-found]
from agno.environments import Environment, Task, run_rollouts  # type: ignore[import-not-found]
from agno.models.base import Model  # type: ignore[import-not-found]
from agno.models.response import ModelResponse  # type: ignore[import-not-found]
from agno.run.agent import RunOutput  # type: ignore[import-not-found]
from agno.run.base import RunStatus  # type: ignore[import-not-found]
from agno.scorer import CodeScorer  # type: ignore[import-not-found]


@dataclass
class Instant(Model):  # type: ignore[misc]
    id: str = "instant"
    name: str = "Instant"
    provider: str = "Local"

    def invoke(self, *args: Any, **kwargs: Any) -> ModelResponse:
        return ModelResponse(role="assistant", content="42")

    async def ainvoke(self, *args: Any, **kwargs: Any) -> ModelResponse:
        return ModelResponse(role="assistant", content="42")

    def invoke_stream(self, *args: Any, **kwargs: Any) -> Iterator[ModelResponse]:
        yield ModelResponse(role="assistant", content="42")

    async def ainvoke_stream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ModelResponse]:
        yield ModelResponse(role="assistant", content="42")

    def _parse_provider_response(self, response: Any, **kwargs: Any) -> Any:
        return response

    def _parse_provider_response_delta(self, response: Any) -> Any:
        return response


class Bare:
    async def arun(self, input: str, **kwargs: Any) -> AsyncIterator[RunOutput]:
        yield RunOutput(content="42", status=RunStatus.completed, run_id="x")


async def is_right(run: Any, expected: Any) -> bool:
    return bool(run.content == expected)


def main() -> None:
    kind, tasks, k, concurrency = sys.argv[1], *map(int, sys.argv[2:5])
    asked = [Task(f"q{n}", expected="42", id=f"t{n}") for n in range(tasks)]
    agent = Bare if kind == "object" else Agent(model=Instant(), telemetry=False)
    env = Environment(name="bench", tasks=asked, scorer=CodeScorer(is_right), agent=agent)
    run_rollouts(env, k=1, tasks=[env.tasks[0]])  # what is imported and made once
    wall, cpu = time.perf_counter(), time.process_time()
    found = run_rollouts(env, k=k, concurrency=concurrency)
    numbers = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    print(json.dumps({**numbers, "scored": found.n_scored, "pass_rate": found.pass_rate, "errors": list(found.errors().items())[:1]}))


if __name__ == "__main__":
    main()
