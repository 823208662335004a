"""How hard is each mix of tasks for an untouched model? A loop needs tasks that it sometimes solves: neither always nor never.

    python examples/math/calibrate.py --model models/smollm2 --tasks 96

Runs the whole agent (call the tool, then answer), one attempt a task, at temperature 1 and greedily, and prints pass rates with 95 %
Wilson intervals. A mix is fit for the demo when it passes between 0.15 and 0.6 at T=1, and at most 0.7 greedily: room at both.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tasks import MIXES, make_tasks

import leyden
from leyden.cli import reported
from leyden.environments.statistics import wilson
from leyden.errors import Unavailable, UsageError
from leyden.models.engine import EmbeddedEngine
from leyden.process import new_marker
from leyden.runners.dry_run import adev

FIT_SAMPLED, FIT_GREEDY = (0.15, 0.6), 0.7


async def measure(args: argparse.Namespace) -> None:
    marker = new_marker()
    with tempfile.TemporaryDirectory(prefix="leyden-calibrate-") as scratch:
        engine = EmbeddedEngine(args.model, log_path=Path(scratch) / "engine.log", marker=marker)
        await engine.start()
        try:
            print("| mix | T=1 | 95 % interval | greedy | 95 % interval | fit for the demo |\n|---|---|---|---|---|---|", flush=True)
            for name in args.mixes:
                print(await row(engine, name, args), flush=True)
        finally:
            await engine.stop()


async def row(engine: EmbeddedEngine, name: str, args: argparse.Namespace) -> str:
    from math_agent import math_agent  # needs the runners extra: here, its absence is one line

    tasks = make_tasks(name, args.tasks, args.seed, "train")
    rates = []
    for temperature in (1.0, 0.0):
        sampling = {"temperature": temperature, "max_tokens": args.max_tokens}
        llm = leyden.LLM(endpoint=engine.base_url, model=engine.model_name, sampling_parameters=sampling)
        results = await adev(math_agent, tasks, llm=llm, concurrency=args.concurrency)
        failed = next((result.error for result in results if result.error), None)
        if failed:
            raise Unavailable(f"an attempt failed, so the pass rate would not be true: {failed}", "try again with a lower --concurrency")
        rates.append(sum(result.reward or 0 for result in results) / len(results))
    sampled, greedy = rates
    fit = FIT_SAMPLED[0] <= sampled <= FIT_SAMPLED[1] and greedy <= FIT_GREEDY
    cells = [f"{rate:.2f} | {wilson(round(rate * args.tasks), args.tasks)}" for rate in rates]
    return f"| {name} | {' | '.join(cells)} | {'yes' if fit else 'no'} |"


def main(args: argparse.Namespace) -> None:
    unknown = [name for name in args.mixes if name not in MIXES]
    if unknown:
        raise UsageError(f"unknown mix {unknown[0]!r}", f"one of: {', '.join(MIXES)}")
    asyncio.run(measure(args))


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", type=Path, default=Path("models/smollm2"), help="a model directory (leyden models import smollm2)")
    options.add_argument("--tasks", type=int, default=96, metavar="N", help="tasks of each mix")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--max-tokens", type=int, default=64)
    options.add_argument("--concurrency", type=int, default=48)
    options.add_argument("--debug", action="store_true", help="show tracebacks")
    options.add_argument("mixes", nargs="*", default=list(MIXES), help=f"default: all of {', '.join(MIXES)}")
    parsed = options.parse_args()
    sys.exit(reported(lambda: main(parsed), parsed.debug))
