"""What ``soak.py`` asks of the store all the time: a driver that queues and waits, people who read, an exporter of OpenTelemetry."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from leyden.errors import NotFound
from leyden.server.client import StoreClient
from leyden.types import NewRollout, RolloutConfig, RolloutState

KEPT, BRIEF = "soak-kept", "soak-brief"  # runs; of the second rollouts are pruned while the soak lasts
BATCH = 8  # rollouts queued at once, of which two are brief
TEXT = "what an agent says " * 20
PATIENCE = 60.0  # seconds a call goes on trying: longer than a store is ever away
CONFIG = RolloutConfig(max_lost=100, retry_delay=0.1)


class Load:
    """``async with Load(…) as load``: it runs until ``stop``. ``rate``: rollouts a second."""

    def __init__(self, url: str, token: str, rate: float, seed: int) -> None:
        self.queued: dict[str, dict[str, int]] = {KEPT: {}, BRIEF: {}}  # acknowledged: id → its number
        self.done: Counter[str] = Counter()  # what was asked, and answered
        self.unanswered = 0  # scrapes, while the store was away
        self._url, self._token = url, token
        self._rate = rate
        self._chance = random.Random(seed)
        self._stopping = asyncio.Event()
        self._stores = [StoreClient(url, PATIENCE, token) for _ in range(3)]
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Load:
        parts: list[Callable[[], Coroutine[Any, Any, None]]] = [self._queue, self._wait, self._read, self._scrape, self._export]
        self._tasks = [asyncio.create_task(part()) for part in parts]
        return self

    async def __aexit__(self, *exc: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for store in self._stores:
            await store.close()

    def check(self) -> None:
        """Raises what has ended a part of it."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def stop(self) -> None:
        """Returns once nothing more is asked."""
        self._stopping.set()
        await asyncio.gather(*self._tasks)

    async def _queue(self) -> None:
        number, due = 0, time.monotonic()
        while not self._stopping.is_set():
            new = [self._rollout(number + each) for each in range(BATCH)]
            for told, made in zip(new, await self._stores[0].enqueue(new), strict=True):
                self.queued[told.run_id or KEPT][made.id] = told.input["n"]
            number += BATCH
            due = max(due + BATCH / self._rate, time.monotonic() - 2.0)  # what was missed while the store was away comes soon, not at once
            await self._pause(due - time.monotonic())

    def _rollout(self, number: int) -> NewRollout:
        wait = self._chance.uniform(0.0, 0.3) if self._chance.random() < 0.9 else self._chance.uniform(0.3, 3.0)
        task = {"n": number, "wait": round(wait, 3), "text": f"{TEXT}{number}"}
        run = BRIEF if number % BATCH < 2 else KEPT
        return NewRollout(input=task, run_id=run, config=CONFIG, idempotency_key=f"soak-{number}")

    async def _wait(self) -> None:
        while not self._stopping.is_set():
            latest = list(self.queued[KEPT])[-BATCH:] if len(self.queued[KEPT]) < 1000 else self._latest()
            if latest:
                await self._stores[1].wait_rollouts(latest, 5.0)
                self.done["waited"] += 1
            await self._pause(0.2)

    def _latest(self) -> list[str]:
        newest = reversed(self.queued[KEPT])
        return [next(newest) for _ in range(BATCH)]

    async def _read(self) -> None:
        store, after = self._stores[2], None
        while not self._stopping.is_set():
            try:
                page = await store.list_rollouts(limit=100, after=after, state=RolloutState.SUCCEEDED)
                after = page[-1].id if len(page) == 100 else None
                newest = await store.list_rollouts(limit=20, newest_first=True)
                if newest:
                    some = self._chance.choice(newest)
                    await store.list_spans(some.id)
                    await store.list_rewards([each.id for each in newest])
                await store.count(run_id=KEPT)
                self.done["pages"] += 5
            except NotFound:  # pruned between two pages
                after = None
                self.done["pages begun again"] += 1
            await self._pause(0.5)

    async def _scrape(self) -> None:
        async with httpx.AsyncClient(headers={"authorization": f"Bearer {self._token}"}, trust_env=False) as client:
            while not self._stopping.is_set():
                try:
                    answer = await client.get(f"{self._url}/metrics")
                    answer.raise_for_status()
                    self.done["scraped"] += 1
                except httpx.TransportError:  # the store is away
                    self.unanswered += 1
                await self._pause(5.0)

    async def _export(self) -> None:
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # it tells of every store that is away, and tries again
        exporter = OTLPSpanExporter(f"{self._url}/v1/traces", headers={"authorization": f"Bearer {self._token}"}, timeout=10)
        provider = TracerProvider(resource=Resource({"service.name": "soak"}), shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=1000))
        tracer = provider.get_tracer("soak")
        while not self._stopping.is_set():
            with tracer.start_as_current_span("service", attributes={"text": TEXT}):
                for _ in range(3):
                    tracer.start_span("part", attributes={"text": TEXT}).end()
            self.done["exported"] += 4
            await self._pause(0.25)
        await asyncio.to_thread(provider.shutdown)

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), max(seconds, 0.0))
        except TimeoutError:
            return
