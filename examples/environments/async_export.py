"""Attempts, selection and export without leaving the event loop.

python examples/environments/async_export.py
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from capitals import SAMPLING, env

import leyden
from leyden.environments import arun_rollouts, ato_sft_jsonl

OUTPUT = Path(__file__).parent / "data" / "learning_zone.jsonl"


async def main() -> None:
    async with leyden.aserve_model("smollm2", SAMPLING) as llm:
        result = await arun_rollouts(env, k=4, model=llm, concurrency=8)
    print(result)

    zone = result.learning_zone()
    report = await ato_sft_jsonl(zone, OUTPUT)
    print(f"learning-zone tasks: {len(zone.task_results)}")
    print(f"training rows written: {report.n_written}")
    print(f"dataset: {OUTPUT.relative_to(Path.cwd()) if OUTPUT.is_relative_to(Path.cwd()) else OUTPUT}")


if __name__ == "__main__":
    asyncio.run(main())
