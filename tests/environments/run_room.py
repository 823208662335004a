"""What the tests of runs share: agents that do as a test says, and results made by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from leyden.environments import (
    AttemptResult,
    CodeScorer,
    Environment,
    EnvironmentRunResult,
    Fingerprint,
    RunOutput,
    Score,
    StopReason,
    Task,
    TaskResult,
)
from leyden.environments.subject import AttemptContext, Components

Act = Callable[[Task, int, AttemptContext], Awaitable[Any]]


class Acting:
    """A subject: ``act(task, index, context)`` commits by itself, or returns the answer."""

    name = "acting"

    def __init__(self, act: Act, policy: str = "p", needs_llm: bool = False) -> None:
        self.act = act
        self.needs_llm = needs_llm
        self._policy = policy

    def accept(self, task: Task) -> None: ...

    async def check(self) -> None: ...

    async def attempt(self, task: Task, context: AttemptContext) -> None:
        answer = await self.act(task, context.rollout.input["attempt"], context)
        if context.output is None and answer is not None:
            context.commit(answer if isinstance(answer, RunOutput) else RunOutput(content=answer))

    def question(self) -> Components:
        return {}

    def policy(self, llm: Any) -> Components:
        return {"agent": lambda: self._policy}


def equals(run: RunOutput, expected: Any) -> bool:
    return bool(run.content == expected)


def environment(act: Act, tasks: Iterable[Task] | int = 2, scorer: Any = None, **more: Any) -> Environment:
    asked = [Task(f"q{n}", expected="yes") for n in range(1, tasks + 1)] if isinstance(tasks, int) else list(tasks)
    subject = Acting(act, policy=more.pop("policy", "p"), needs_llm=more.pop("needs_llm", False))
    return Environment("room", tuple(asked), scorer or CodeScorer(equals), subject, **more)


async def say_yes(task: Task, index: int, context: AttemptContext) -> str:
    return "yes"


class Reverse:
    """Lets the attempts of a run end in the reverse order of their names: all must be under way at once."""

    def __init__(self, keys: Sequence[tuple[str, int]]) -> None:
        self._last = list(keys)
        self._turn = asyncio.Condition()
        self.ended: list[tuple[str, int]] = []

    async def act(self, task: Task, index: int, context: AttemptContext) -> str:
        async with self._turn:
            await self._turn.wait_for(lambda: self._last[-1] == (task.id, index))
            self.ended.append(self._last.pop())
            self._turn.notify_all()
        return f"{task.id} {index}"


def scored(value: float | None, index: int = 0, **more: Any) -> AttemptResult:
    """None: the scorer crashed. From 0.5 on it passes."""
    run = RunOutput(content="an answer", messages=({"role": "user", "content": "q"}, {"role": "assistant", "content": "an answer"}))
    if value is None:
        broken = {"stop_reason": StopReason.COMPLETED, "error": "scorer: ValueError: no", "error_type": "ValueError"} | more
        return AttemptResult(index=index, run=run, score=None, duration_seconds=0.1, **broken)
    return AttemptResult(
        index=index, run=run, score=Score(value, value >= 0.5), duration_seconds=0.1, **{"stop_reason": StopReason.COMPLETED} | more
    )


def result(tasks: dict[str, Sequence[float | None]], k: int | None = None, env: str = "e", policy: str = "p") -> EnvironmentRunResult:
    """Made by hand: the values of the attempts by task."""
    return EnvironmentRunResult(
        env_name="room",
        k=max(map(len, tasks.values())) if k is None else k,
        env_fingerprint=Fingerprint(f"env1:{env}", {"tasks": env, "scorer": "s"}),
        policy_fingerprint=Fingerprint(f"policy1:{policy}", {"model": policy}),
        task_results=tuple(
            TaskResult(Task(f"do {name}", "yes", name), tuple(scored(value, index) for index, value in enumerate(values)))
            for name, values in tasks.items()
        ),
        duration_seconds=1.5,
        run_id="an-eval",
    )
