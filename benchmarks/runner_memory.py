"""What one runner process keeps of the rollouts it has run: nothing, or it would not last a week.

    python benchmarks/runner_memory.py --rollouts 50000 --json FILE

A runner with 16 rollouts at once, in this process, on a real ``leyden store``; the agent is the soak's (three operations, a message, two
rewards). Printed as it goes: resident memory and how many objects Python's collector knows, after a collection. The first thousands fill
caches and the allocator's free lists; from there on neither may grow. Texts are no objects to the collector: memory tells of them.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import tempfile
from pathlib import Path

import machine
import psutil
from store_process import StoreProcess

from leyden.runners import openai_agents
from leyden.runners.guard import EventLoop
from leyden.runners.loading import load_agent
from leyden.runners.runner import Runner, RunnerConfig
from leyden.server.client import StoreClient
from leyden.types import NewRollout

AGENT = f"{Path(__file__).with_name('soak_agent.py')}:work"
LOOKS = 16
AT_ONCE = 200  # queued


def main() -> int:
    parser = argparse.ArgumentParser(description="A runner's memory over many rollouts.")
    parser.add_argument("--rollouts", type=int, default=50_000)
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    args = parser.parse_args()
    found_on = machine.examine()
    print(machine.told(found_on), flush=True)
    openai_agents.watch()  # as a runner's process does
    with asyncio.Runner(loop_factory=EventLoop) as loop:
        looks = loop.run(measure(args.rollouts))
    if args.json:
        args.json.write_text(json.dumps({"machine": found_on, "looks": looks}, indent=2) + "\n")
    return 0


async def measure(rollouts: int) -> list[dict[str, float]]:
    looks = []
    with tempfile.TemporaryDirectory(prefix="leyden-bench-") as directory:
        store = StoreProcess(Path(directory))
        store.start()
        try:
            runner = Runner(load_agent(AGENT), lambda: StoreClient(store.url), RunnerConfig(concurrency=16))
            running = asyncio.create_task(runner.run())
            async with StoreClient(store.url) as client:
                for done in range(0, rollouts, AT_ONCE):
                    await run(client, min(AT_ONCE, rollouts - done))
                    if (done // AT_ONCE) % max(1, rollouts // AT_ONCE // LOOKS) == 0:
                        looks.append(look(min(done + AT_ONCE, rollouts)))
            runner.drain()
            await running
        finally:
            store.kill()
    return looks


async def run(client: StoreClient, n: int) -> None:
    task = {"wait": 0.01, "text": "a few words " * 10}
    waiting = {item.id for item in await client.enqueue([NewRollout(input=task | {"n": i}) for i in range(n)])}
    while waiting:
        waiting -= {item.id for item in await client.wait_rollouts(sorted(waiting))}


def look(rollouts: int) -> dict[str, float]:
    gc.collect()
    found = {"rollouts": rollouts, "mb": psutil.Process().memory_info().rss / 1e6, "objects": len(gc.get_objects())}
    print(f"{rollouts} rollouts: {found['mb']:.2f} MB, {found['objects']} objects", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
