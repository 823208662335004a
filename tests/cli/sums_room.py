"""An environment without a model: its agent's answers come from the task, some right and some wrong."""

from __future__ import annotations

import itertools

from pydantic import BaseModel

import leyden
from leyden.environments.environment import Environment
from leyden.environments.output import RunOutput
from leyden.environments.score import Score
from leyden.environments.scorers import CodeScorer
from leyden.environments.task import Task


class Answer(BaseModel):
    number: int


class Asked(Exception):
    pass


_turns: dict[str, itertools.count] = {}


@leyden.rollout
def agent(task: str) -> RunOutput:
    """Right every second time at "mixed" tasks; "broken" ones raise."""
    turn = next(_turns.setdefault(task, itertools.count()))
    if "broken" in task:
        raise Asked("no answer")
    right = "easy" in task or ("mixed" in task and turn % 2 == 0)
    text = f"it is {42 if right else 41 - turn}, mail me at joe@acme.org"
    return RunOutput(content=text, messages=({"role": "user", "content": task}, {"role": "assistant", "content": text}))


def right(run, expected):
    return "42" in run.content


def lenient(run, expected):
    return "it is" in run.content


class Moody:
    """Another verdict each time, under one name."""

    def __init__(self) -> None:
        self._turn = itertools.count()

    def digest(self) -> str:
        return "moody"

    async def ascore(self, run, expected=None):
        value = next(self._turn) % 10 / 10
        return Score(value, value > 0.5)


class Nameless:
    async def ascore(self, run, expected=None):
        return Score(1.0, True)


class Typed:
    def digest(self) -> str:
        return "typed"

    async def ascore(self, run, expected=None):
        assert isinstance(run.content, Answer), type(run.content)
        return Score(1.0, run.content.number == expected)


env = Environment(
    name="sums",
    tasks=[
        Task("an easy sum", id="easy"),
        Task("a mixed sum", id="mixed"),
        Task("a hard sum", id="hard"),
        Task("a broken one", id="broken"),
    ],
    scorer=CodeScorer(right),
    agent=agent,
)
right_again, passes_all, moody, nameless, typed = CodeScorer(right), CodeScorer(lenient), Moody(), Nameless(), Typed()
