"""What ``test_eval_killed`` evaluates: an agent whose answers follow from task and attempt, and which writes down what it is asked."""

from __future__ import annotations

import asyncio
import os

from leyden.environments import CodeScorer, Environment, RunOutput, Score, Task
from leyden.runners import rollout
from leyden.types import Rollout


@rollout
async def agent(task: str, rollout: Rollout) -> str:
    index = rollout.input if isinstance(rollout.input, int) else int(rollout.metadata["k"])
    log = os.open(os.environ["EVAL_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, f"{task} {index}\n".encode())
    os.close(log)
    await asyncio.sleep(0.005)
    number = int(task[1:])
    if (number + index) % 11 == 0:
        raise ValueError(f"{task} {index} is none of mine")
    return str((number * 7 + index * 3) % 5)


def judge(run: RunOutput, expected: str) -> Score:
    return Score(int(run.content) / 4, run.content == expected, f"{run.content} for {expected}", dimensions={"length": 1.0})


env = Environment("killed", tuple(Task(f"q{n}", expected=str(n % 5), id=f"t{n}") for n in range(30)), CodeScorer(judge), agent)
