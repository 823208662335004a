"""One attempt at a time, without a run around it."""

from __future__ import annotations

import asyncio
from typing import Any

from leyden.environments.output import RunOutput
from leyden.environments.subject import AttemptContext, Subject
from leyden.environments.subjects import as_subject
from leyden.environments.task import Task
from leyden.types import LLM, Mode, Rollout, RolloutConfig, RolloutState


def context(llm: LLM | None = None) -> AttemptContext:
    rollout = Rollout(
        id="r1", input={"task": "t1"}, mode=Mode.TEST, priority=0, state=RolloutState.RUNNING, config=RolloutConfig(), created_at=0
    )
    return AttemptContext(rollout, llm)


async def attempt(agent: Any, question: Any = "What is 2 + 2?", llm: LLM | None = None) -> RunOutput:
    """What comes of it. Raises what the agent raises."""
    subject: Subject = as_subject(agent)
    task = question if isinstance(question, Task) else Task(question, id="t1")
    subject.accept(task)
    own = context(llm)
    await subject.attempt(task, own)
    assert own.output is not None
    return own.output


def run_once(agent: Any, question: Any = "What is 2 + 2?", llm: LLM | None = None) -> RunOutput:
    return asyncio.run(attempt(agent, question, llm))
