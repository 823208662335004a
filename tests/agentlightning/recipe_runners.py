"""The recipe's runners script: one process for each worker."""

from __future__ import annotations

import asyncio
import multiprocessing
import sys

from recipe_agent import math_agent

import leyden.agentlightning as agl


def run_rollout(store: agl.LightningStore, worker_id: int) -> None:
    # Since the server side has already used LiteLLM proxy to collect traces,
    # a simple OtelTracer to collect the rewards is enough.
    tracer = agl.OtelTracer()
    runner = agl.LitAgentRunner(tracer=tracer)
    with runner.run_context(agent=math_agent, store=store, worker_id=worker_id):
        asyncio.run(runner.iter())


def spawn_runners(store: agl.LightningStore, n_runners: int) -> None:
    runners = [multiprocessing.Process(target=run_rollout, args=(store, worker_id)) for worker_id in range(n_runners)]
    for runner in runners:
        runner.start()
    for runner in runners:
        runner.join()


if __name__ == "__main__":
    store = agl.LightningStoreClient(sys.argv[1])
    spawn_runners(store=store, n_runners=2)
