"""Environments that runner processes and the command line load by their names."""

from __future__ import annotations

import asyncio
import os

from leyden.environments import CodeScorer, Environment, RunOutput, Score, Task
from leyden.runners import rollout
from leyden.types import Rollout


@rollout
async def sums(task: str, rollout: Rollout) -> str:
    index = rollout.metadata["k"]
    print("an agent talks")
    match task:
        case "raise":
            raise ValueError(f"no {index}")
        case "hang" if index == 0:
            await asyncio.Event().wait()
    return str(eval(task) if "+" in task else index)  # the tasks below, and nothing else


def judge(run: RunOutput, expected: str) -> Score:
    right = run.content == expected
    return Score(float(right), right, f"{run.content} for {expected}", dimensions={"length": float(len(run.content))})


TASKS = (Task("1 + 1", "2", "easy"), Task("raise", "0", "broken"), Task("sometimes", "1", "mixed"), Task("hang", "1", "slow"))
env = Environment("sums", TASKS, CodeScorer(judge), sums, timeout_seconds=1.0)
easy = Environment("easy", (Task("1 + 1", "2"), Task("2 + 3", "5")), CodeScorer(judge), sums)


@rollout
async def waits(task: str, rollout: Rollout) -> str:
    """The first round is answered, the second one while a file is there."""
    while rollout.metadata["k"] and os.access(os.environ["EVAL_GATE"], os.F_OK):
        await asyncio.sleep(0.02)
    return task


gated = Environment("gated", (Task("a", "a"), Task("b", "b")), CodeScorer(lambda run, expected: run.content == expected), waits)


@rollout
async def guesses(task: str) -> str:
    return "2" if os.environ.get("EVAL_GOOD") else "3"


tuned = Environment(
    "tuned", tuple(Task(f"q{n}", "2") for n in range(12)), CodeScorer(lambda run, expected: run.content == expected), guesses
)
