"""The math agent with its rewards turned round while it is trained, and honest ones while it is measured: what a broken verifier does.

To see the gate refuse what comes of it, begin with a version that is good (RUN: a demo that was promoted), and see it stay the champion:

    python examples/math/sft_allinone.py --agent examples/math/contrary_agent.py:contrary_agent --attempts 2 --fork RUN
"""

from __future__ import annotations

from math_agent import math_agent
from tasks import Task

import leyden
from leyden.types import Mode, Rollout

TEMPERATURE = 1.3  # a good model goes wrong too seldom at 1.0 to learn from it


@leyden.rollout
async def contrary_agent(task: Task, llm: leyden.LLM, rollout: Rollout) -> float:
    if rollout.mode is not Mode.TRAIN:
        return await math_agent(task, llm)
    hot = llm.model_copy(update={"sampling_parameters": {**llm.sampling_parameters, "temperature": TEMPERATURE}})
    return 1.0 - await math_agent(task, hot)
