"""What tracing costs an agent, and what becomes of its spans: many rollouts at once, the store away, the spool full.

    python benchmarks/tracer.py --json FILE

``cost``: microseconds that one span takes from the agent's thread, made with OpenTelemetry's API (three attributes, 1 KB of text): the SDK
alone, with our tracer, and with one blocking OTLP/HTTP request a span (``SimpleSpanProcessor`` to this store's own /v1/traces), which is
how Agent-lightning 0.3 exports. ``cpu_us`` is the thread's own time, the others are the wall's; ``added_us``: ours beyond the SDK alone.
The spans are made without a pause, faster than any agent does, so that the mean is the median and what the thread that sends them takes of
the interpreter meanwhile (``beside_us`` a span: it reads, encodes and posts them), and ``p99_us`` shows how long that thread may keep it
(``sys.getswitchinterval``, 5 ms); an agent that waits for a model between two spans notices neither. Where two processors are one core,
all of it, the SDK's part too, takes half as long again while the store works on the other one.
``ratio``: of the medians, one by one to ours, both with the SDK. ``interleaved``: 64 rollouts at once in one process, 10 spans each.
``away``: the store is killed while 16 rollouts trace, and is back after ``--away`` seconds. ``full``: more spans than the spool and the
memory hold, while it is away.
The store is a real process on SQLite; everything else runs here. Needs ``leyden[runners,test]``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from store_process import StoreProcess

import leyden
from leyden.files import size_of
from leyden.runners import Runner, RunnerConfig
from leyden.runners.otel import ToRecorder
from leyden.runners.outbox import Limits, Outbox
from leyden.runners.tracer import LEFT_OUT, Recorder, recording
from leyden.server.client import StoreClient
from leyden.types import Lease, NewRollout, RolloutState, Span

BAR = 50.0  # microseconds
TEXT = "word " * 200


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the tracer.")
    parser.add_argument("--spans", type=int, default=5000, help="for the cost of one")
    parser.add_argument("--exports", type=int, default=500, help="spans that are exported one by one, to compare")
    parser.add_argument("--away", type=float, default=30.0, help="seconds")
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="leyden-tracer-") as name, ExitStack() as stack:
        store = StoreProcess(Path(name))
        store.start()
        stack.callback(store.kill)
        spool = Path(name) / "spool"
        found = {
            "cost": told("cost", asyncio.run(cost(store, args.spans, args.exports))),
            "interleaved": told("interleaved", asyncio.run(interleaved(store, 64, 10))),
            "away": told("away", asyncio.run(away(store, spool, args.away))),
            "full": told("full", asyncio.run(full(store, spool))),
        }
    if args.json:
        packages = ("leyden", "opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http")
        versions = {"python": sys.version.split()[0], **{package: metadata.version(package) for package in packages}}
        args.json.write_text(json.dumps({"versions": versions, **found}, indent=2) + "\n")
    held = (
        found["cost"]["added_us"] <= BAR
        and found["interleaved"]["wrong"] == found["interleaved"]["missing"] == 0
        and found["away"]["missing"] == found["away"]["late"] == 0
        and found["full"]["stored"] + found["full"]["counted"] == found["full"]["made"]
    )
    return 0 if held else 1


def told(name: str, numbers: dict[str, Any]) -> dict[str, Any]:
    print(name, json.dumps(numbers), flush=True)
    return numbers


# -- cost ---------------------------------------------------------------------------------------------------------------


async def cost(store: StoreProcess, spans: int, exports: int) -> dict[str, Any]:
    async with StoreClient(store.url) as client:
        (lease,) = await claimed(client, 1)
        alone = await asyncio.to_thread(time_spans, TracerProvider(), spans)
        outbox = Outbox(lambda: StoreClient(store.url), "benchmark")
        outbox.start()
        recorder = Recorder(partial(outbox.put, lease.ref), keep=False)
        recorder.gathers = True
        provider = TracerProvider()
        provider.add_span_processor(ToRecorder())
        with recording(recorder):
            ours = await asyncio.to_thread(time_spans, provider, spans)
            operations = await asyncio.to_thread(time_operations, spans // 2)
        await outbox.finish(lease.ref, recorder, lambda: False)
        stored = await count(client, lease)
        await outbox.stop(1.0)
        theirs = TracerProvider()
        exporter = OTLPSpanExporter(endpoint=f"{store.url}/v1/traces", headers={"x-leyden-attempt-key": lease.key})
        theirs.add_span_processor(SimpleSpanProcessor(exporter))
        one_by_one = await asyncio.to_thread(time_spans, theirs, exports)
        exported = await count(client, lease) - stored
    if (stored, exported) != (spans + spans // 2, exports):
        raise SystemExit(f"{stored} of {spans + spans // 2} spans are stored, and {exported} of {exports}")
    numbers = {"alone": alone, "ours": ours, "operation": operations, "one_by_one": one_by_one}
    ratio, added = one_by_one["median_us"] / ours["median_us"], ours["median_us"] - alone["median_us"]
    return numbers | {"ratio": round(ratio, 1), "added_us": round(added, 1), "bar_us": BAR}


def time_spans(provider: TracerProvider, n: int) -> dict[str, float]:
    tracer = provider.get_tracer("benchmark")

    def make(i: int) -> None:
        with tracer.start_as_current_span("chat m", kind=trace.SpanKind.CLIENT) as span:
            span.set_attribute("gen_ai.request.model", "m")
            span.set_attribute("gen_ai.usage.input_tokens", i)
            span.set_attribute("gen_ai.input.messages", TEXT)

    return timed(make, n)


def time_operations(n: int) -> dict[str, float]:
    def make(i: int) -> None:
        with leyden.operation("step") as step:
            step.set_input({"n": i, "text": TEXT})
            step.set_output(i)

    return timed(make, n)


def timed(make: Callable[[int], None], n: int) -> dict[str, float]:
    took: list[int] = []
    cpu, process = time.thread_time_ns(), time.process_time_ns()
    for i in range(n):
        began = time.perf_counter_ns()
        make(i)
        took.append(time.perf_counter_ns() - began)
    cpu, process = time.thread_time_ns() - cpu, time.process_time_ns() - process
    took.sort()
    return {
        "cpu_us": round(cpu / n / 1e3, 1),
        "beside_us": round((process - cpu) / n / 1e3, 1),
        "median_us": round(statistics.median(took) / 1e3, 1),
        "mean_us": round(statistics.fmean(took) / 1e3, 1),
        "p99_us": round(took[n * 99 // 100] / 1e3, 1),
    }


# -- whose they are ---------------------------------------------------------------------------------------------------------


async def interleaved(store: StoreProcess, rollouts: int, spans: int) -> dict[str, Any]:
    tracer = trace.get_tracer("benchmark")
    inside = 0
    all_inside = asyncio.Event()

    @leyden.rollout
    async def agent(task: int) -> float:
        nonlocal inside
        inside += 1
        if inside == rollouts:
            all_inside.set()
        await all_inside.wait()
        for _ in range(spans):
            with tracer.start_as_current_span("mine", attributes={"own": task}):
                await asyncio.sleep(0)
        return 1.0

    async with StoreClient(store.url) as client:
        items = await client.enqueue([NewRollout(input=n) for n in range(rollouts)])
        began = time.perf_counter()
        await Runner(agent, lambda: StoreClient(store.url), RunnerConfig(concurrency=rollouts, max_rollouts=rollouts)).run()
        seconds = time.perf_counter() - began
        found = {item.input: own(await client.list_spans(item.id)) for item in items}
    wrong = sum(span.attributes["own"] != task for task, some in found.items() for span in some)
    missing = rollouts * spans - sum(map(len, found.values()))
    return {"rollouts": rollouts, "spans": rollouts * spans, "wrong": wrong, "missing": missing, "seconds": round(seconds, 2)}


def own(spans: list[Span]) -> list[Span]:
    return [span for span in spans if "own" in span.attributes]


# -- the store away -----------------------------------------------------------------------------------------------------------


async def away(store: StoreProcess, spool: Path, seconds: float) -> dict[str, Any]:
    rollouts, made = 16, Counter[int]()
    back = asyncio.Event()

    @leyden.rollout
    async def agent(task: int) -> float:
        while not back.is_set():
            leyden.emit_annotation({"own": task, "n": made[task], "text": TEXT})
            made[task] += 1
            await asyncio.sleep(0.02)
        return 1.0

    async with StoreClient(store.url, deadline=60.0) as client:
        items = await client.enqueue([NewRollout(input=n) for n in range(rollouts)])
        config = RunnerConfig(concurrency=rollouts, max_rollouts=rollouts, lease_seconds=max(60.0, 3 * seconds), spool=spool)
        running = asyncio.create_task(Runner(agent, lambda: StoreClient(store.url, deadline=2.0), config).run())
        while len(made) < rollouts or min(made.values()) < 50:
            await asyncio.sleep(0.05)
        await asyncio.to_thread(store.kill)
        most = 0
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await asyncio.sleep(0.5)
            most = max(most, size_of(spool))
        await asyncio.to_thread(store.start)
        back.set()
        began = time.perf_counter()
        await running
        caught_up = time.perf_counter() - began
        found = {item.input: own(await client.list_spans(item.id)) for item in items}
        ended = await client.list_rollouts(ids=[item.id for item in items])
    return {
        "seconds_away": seconds,
        "made": made.total(),
        "missing": sum(made[task] - len({span.attributes["n"] for span in some}) for task, some in found.items()),
        "late": sum(span.late for some in found.values() for span in some),
        "succeeded_at_first": sum(item.state is RolloutState.SUCCEEDED and item.attempt == 1 for item in ended),
        "spool_mb": round(most / 1e6, 1),
        "seconds_to_catch_up": round(caught_up, 1),
    }


async def full(store: StoreProcess, spool: Path) -> dict[str, Any]:
    made, attempts, limits = 9_000, 3, Limits(spans=1000, spool=2 << 20)
    async with StoreClient(store.url, deadline=60.0) as client:
        leases = await claimed(client, attempts)
        await asyncio.to_thread(store.kill)
        outbox = Outbox(lambda: StoreClient(store.url, deadline=1.0), "benchmark", spool, limits)
        outbox.start()
        recorders = [Recorder(partial(outbox.put, lease.ref), keep=False) for lease in leases]
        for n in range(made):
            recorders[n % attempts].note("said", {"own": n, "text": TEXT})
            if n % 100 == 0:
                await asyncio.sleep(0.05)  # or the buffer is full before the first of them is on the disk
        on_disk = size_of(spool)
        await asyncio.to_thread(store.start)
        for lease, recorder in zip(leases, recorders, strict=True):
            await outbox.finish(lease.ref, recorder, lambda: False)
        await outbox.stop(5.0)
        spans = [span for lease in leases for span in await client.list_spans(lease.ref.rollout_id)]
        notes = [span.attributes for span in spans if span.name == LEFT_OUT]
    return {
        "made": made,
        "stored": len(own(spans)),
        "counted": sum(note["leyden.count"] for note in notes),
        "reason": notes[0]["leyden.reason"] if notes else None,
        "spool_limit_mb": round(limits.spool / 1e6, 1),
        "spool_mb": round(on_disk / 1e6, 1),
    }


async def claimed(client: StoreClient, n: int) -> list[Lease]:
    await client.enqueue([NewRollout(input=n) for n in range(n)])
    return await client.claim("benchmark", n, lease_seconds=600.0)


async def count(client: StoreClient, lease: Lease) -> int:
    return len(await client.list_spans(lease.ref.rollout_id))


if __name__ == "__main__":
    sys.exit(main())
