"""The environment that the scripts beside this one run: questions that a 135M model answers sometimes.

leyden eval examples/environments/capitals.py:env -k 8 --model smollm2 --max-tokens 64
"""

from __future__ import annotations

import re

from agents import Agent

from leyden.environments import CodeScorer, Environment, RunOutput, Task


def names_it(run: RunOutput, expected: str) -> bool:
    """The expected word stands in the answer, in any case."""
    return expected.casefold() in re.findall(r"\w+", str(run.content).casefold())


env = Environment(
    name="capitals",
    agent=Agent(name="geographer", instructions="Answer briefly, with the answer only."),
    tasks=(
        Task("What is the capital of France? Answer with one word.", "Paris", id="france"),
        Task("What is the capital of Italy? Answer with one word.", "Rome", id="italy"),
        Task("What is the capital of Japan? Answer with one word.", "Tokyo", id="japan"),
        Task("What is the capital of Spain? Answer with one word.", "Madrid", id="spain"),
        Task("What is the opposite of hot? Answer with one word.", "cold", id="hot"),
        Task("What is the plural of mouse? Answer with one word.", "mice", id="mouse"),
    ),
    scorer=CodeScorer(names_it),
    timeout_seconds=120,
)

SAMPLING = {"temperature": 1.0, "max_tokens": 64}
