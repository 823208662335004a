"""One measurement of Agent-lightning 0.3.0's store: a job as JSON on stdin, what was found as JSON on stdout. See ``store.py``.

Run it with an interpreter that has ``agentlightning``; ``their_environment.py`` makes one.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # or its import goes to the network

import agentlightning as agl
import aiohttp
import psutil
from opentelemetry import trace
from store_spans import BATCH, SENDERS, json_lines, otlp_body, percentiles, processor_seconds, renewed, send_for

SPANS = 5
POLL = 0.01  # seconds between two looks of an idle runner; 5 is their default. They take no less, and look for a stop every 0.1 s meanwhile
DEFAULT_POLL = 5.0
CALLS = 16  # of their client at once, which sends one span a call


def main() -> None:
    job = json.load(sys.stdin)
    found = PARTS[job.pop("part")](**job)
    sys.__stdout__.write("\n@" + json.dumps(found) + "\n")
    sys.__stdout__.flush()
    os._exit(0)  # its threads do not all end by themselves


def spans(form: str, seconds: float) -> dict[str, float]:
    with store() as url:
        return asyncio.run(_spans(url, form, seconds))


async def _spans(url: str, form: str, seconds: float) -> dict[str, float]:
    client = agl.LightningStoreClient(url)
    rollouts = [await client.start_rollout(input=n) for n in range(SENDERS)]
    owners = [(one.rollout_id, one.attempt.attempt_id) for one in rollouts]
    lines = json_lines(BATCH)
    bodies = [otlp_body(BATCH, {"agentlightning.rollout_id": rollout, "agentlightning.attempt_id": attempt}) for rollout, attempt in owners]

    async with aiohttp.ClientSession() as http:

        async def send_otlp(number: int) -> int:
            body, headers = renewed(bodies[number % SENDERS], number), {"content-type": "application/x-protobuf"}
            async with http.post(f"{url}/v1/traces", data=body, headers=headers) as answer:
                answer.raise_for_status()
            return BATCH

        async def send_one(number: int) -> int:
            sent = json.loads(renewed(lines[number % BATCH], number))
            rollout, attempt = owners[number % SENDERS]
            span = agl.Span.from_attributes(
                rollout_id=rollout, attempt_id=attempt, sequence_id=number, attributes=sent["attributes"], name=sent["name"],
                trace_id=sent["trace_id"], span_id=sent["span_id"], start_time=1e9, end_time=1e9 + 1e-6,
            )  # fmt: skip
            return int(await client.add_span(span) is not None)

        found = await (send_for(seconds, CALLS, send_one) if form == "client" else send_for(seconds, SENDERS, send_otlp))
    stored = (await client.statistics())["total_spans"]
    await client.close()
    if stored != found["stored"]:
        raise SystemExit(f"{stored} spans are stored, not {found['stored']}")
    return found


def rollouts(n: int, runners: int, warm: int) -> dict[str, Any]:
    found: dict[str, Any] = {}

    @agl.rollout
    async def five_spans(task: int, llm: agl.LLM) -> float:
        tracer = trace.get_tracer("benchmark")
        for i in range(SPANS):
            with tracer.start_as_current_span("step", attributes={"own": task, "n": i, "text": "word " * 40}):
                pass
        return 1.0

    async def algorithm(store: agl.LightningStore) -> None:
        await _run(store, warm)
        seconds, ids = await _run(store, n)
        traces = [await store.query_spans(one) for one in ids[:: max(1, n // 50)]]
        own = {len([span for span in spans if span.name == "step"]) for spans in traces}
        if own != {SPANS} or any(agl.find_final_reward(list(spans)) != 1.0 for spans in traces):
            raise SystemExit(f"spans {sorted(own)}")
        found["per_second"] = n / seconds

    train(five_spans, algorithm, runners)
    return found


def latency(samples: int, runners: int) -> dict[str, Any]:
    found: dict[str, Any] = {}

    @agl.rollout
    async def first_line(task: float, llm: agl.LLM) -> float:
        return time.monotonic() - task

    async def algorithm(store: agl.LightningStore) -> None:
        await _run(store, 4 * runners)
        seconds = []
        for _ in range(samples):
            await asyncio.sleep(0.02)
            item = await store.enqueue_rollout(input=time.monotonic(), mode="train")
            while (await store.get_rollout_by_id(item.rollout_id)).status != "succeeded":
                await asyncio.sleep(0.005)
            seconds.append(agl.find_final_reward(list(await store.query_spans(item.rollout_id))))
        found.update(percentiles(seconds))

    train(first_line, algorithm, runners)
    return found


def idle(seconds: float, runners: int) -> dict[str, Any]:
    found: dict[str, Any] = {}

    @agl.rollout
    async def nothing(task: int, llm: agl.LLM) -> float:
        return 1.0

    async def algorithm(store: agl.LightningStore) -> None:
        await _run(store, 4 * runners)
        await asyncio.sleep(2.0)
        pids = [os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))]
        began, before = time.perf_counter(), sum(map(processor_seconds, pids))
        await asyncio.sleep(seconds)
        used = sum(map(processor_seconds, pids)) - before
        found.update(percent=100 * used / (time.perf_counter() - began), processes=len(pids))

    train(nothing, algorithm, runners, DEFAULT_POLL)
    return found


def claims(n: int, limit: int, at_once: int) -> dict[str, float]:
    with store() as url:
        return asyncio.run(_claims(url, n, limit, at_once))


async def _claims(url: str, n: int, limit: int, at_once: int) -> dict[str, float]:
    client = agl.LightningStoreClient(url)
    for start in range(0, n, 1000):
        await client.enqueue_many_rollouts([agl.EnqueueRolloutRequest(input=i) for i in range(start, min(n, start + 1000))])
    claimed: set[str] = set()

    async def claimer(number: int) -> None:
        while leases := await client.dequeue_many_rollouts(limit=limit, worker_id=f"benchmark-{number}"):
            claimed.update(lease.rollout_id for lease in leases)

    began = time.perf_counter()
    await asyncio.gather(*map(claimer, range(at_once)))
    seconds = time.perf_counter() - began
    await client.close()
    if len(claimed) != n:
        raise SystemExit(f"{len(claimed)} of {n} were claimed")
    return {"per_second": n / seconds}


async def _run(store: agl.LightningStore, n: int) -> tuple[float, list[str]]:
    """Seconds from queueing ``n`` rollouts until all of them have succeeded."""
    began = time.perf_counter()
    items = await store.enqueue_many_rollouts([agl.EnqueueRolloutRequest(input=i, mode="train") for i in range(n)])
    ids = [item.rollout_id for item in items]
    for one in ids:
        while (await store.get_rollout_by_id(one)).status != "succeeded":
            await asyncio.sleep(0.02)
    return time.perf_counter() - began, ids


def train(agent: Any, algorithm: Any, runners: int, poll: float = POLL) -> None:
    """Their whole system as their Trainer runs it: the store in this process, runners in theirs."""

    class Benchmark(agl.Algorithm):
        async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            store = self.get_store()
            await store.add_resources({"llm": agl.LLM(endpoint="http://127.0.0.1:9/v1", model="none")})
            await algorithm(store)

    trainer = agl.Trainer(
        n_runners=runners,
        algorithm=Benchmark(),
        tracer=agl.OtelTracer(),
        runner={"type": "agentlightning.LitAgentRunner", "poll_interval": poll, "interval_jitter": 0.0},
        strategy=agl.ClientServerExecutionStrategy(n_runners=runners, server_port=free_port(), graceful_timeout=2.0),
    )
    trainer.fit(agent)


@contextmanager
def store() -> Iterator[str]:
    port = free_port()
    command = [str(Path(sys.executable).with_name("agl")), "store", "--host", "127.0.0.1", "--port", str(port), "--log-level", "WARNING"]
    running = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
            except OSError:
                if running.poll() is not None:
                    raise SystemExit("their store did not start") from None
                time.sleep(0.1)
            else:
                break
        yield f"http://127.0.0.1:{port}"
    finally:
        running.kill()
        running.wait()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


PARTS = {part.__name__: part for part in (spans, rollouts, latency, idle, claims)}

if __name__ == "__main__":
    main()
