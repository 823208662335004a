"""The demo's held-out tasks as an environment: what a gate in CI measures two checkpoints on (docs/gate.md).

leyden eval examples/math/heldout.py:env -k 1 --model runs/latest/models/version_1 --max-tokens 64
"""

from __future__ import annotations

from math_agent import math_agent
from tasks import make_tasks

from leyden.environments import Environment, Task
from leyden.environments.scorers.reward import RewardScorer

env = Environment(
    name="arithmetic",
    agent=math_agent,
    tasks=tuple(Task(task, id=f"test-{number}") for number, task in enumerate(make_tasks("signed", 128, seed=1, split="test"))),
    scorer=RewardScorer(),
)
