"""The same from a program that has an event loop already: more attempts at once change the time it takes, and nothing else.

python examples/environments/async_rollouts.py
"""

from __future__ import annotations

import asyncio

from capitals import SAMPLING, env

import leyden
from leyden.environments import arun_rollouts


async def main() -> None:
    async with leyden.aserve_model("smollm2", SAMPLING) as llm:
        result = await arun_rollouts(env, k=4, model=llm, concurrency=8)
    print(result)
    for task in result.task_results:
        print(f"{task.task.id}: pass rate {task.pass_rate}")


if __name__ == "__main__":
    asyncio.run(main())
