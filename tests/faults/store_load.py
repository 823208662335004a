"""Clients that use a store as runners, drivers and people do, all at once, through whatever happens to it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from store_history import Event, History, Outcome, Witness
from store_process import PATIENCE

from leyden.server.client import StoreClient
from leyden.types import (
    FailureKind,
    Generation,
    Lease,
    NewRollout,
    PromptTemplate,
    Reward,
    RolloutConfig,
    RolloutState,
    Span,
)

LEASE = 1.5  # seconds
OPEN = 80  # rollouts that may wait or run at once
QUEUES = ("default", "other", "narrow")
NARROW = 2  # attempts at once in the queue of that name
ENDINGS = ("complete",) * 12 + ("fail", "fail", "final", "release", "vanish", "return")
LARGE = "a long history " * 2000  # stored apart from its row


class Load:
    """``async with Load(urls, history) as load``: it runs until the end of the context, which waits for the calls in flight.

    Half of the clients are patient and repeat a call until it is answered; the others take no answer for one.
    """

    def __init__(self, urls: Sequence[str], history: History, workers: int = 4, producers: int = 2) -> None:
        self.urls = list(urls)
        self.history = history
        self._workers = workers
        self._producers = producers
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self._witnesses: list[Witness] = []
        self._open: dict[str, None] = {}  # acknowledged, not known to be final; the oldest first
        self._resources: list[str] = []  # ids

    async def __aenter__(self) -> Load:
        roles: list[Callable[[Witness], Coroutine[Any, Any, None]]] = [
            self._cancel,
            self._publish,
            self._watch,
            self._drive,
            self._set_limits,
        ]
        roles += [self._produce] * self._producers + [self._work] * self._workers
        for number, role in enumerate(roles):
            witness = Witness(f"{role.__name__.strip('_')}-{number}", self.history, self.urls[number % len(self.urls)], 60.0 * (number % 2))
            self._witnesses.append(witness)
            self._tasks.append(asyncio.create_task(self._until_stopped(role, witness)))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self._stopping = True
        if kind is not None:
            for task in self._tasks:
                task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        for witness in self._witnesses:
            await witness.close()
        failures = [failure for failure in ended if isinstance(failure, Exception)]
        if failures and kind is None:
            raise failures[0]

    async def until_acknowledged(self, more: int) -> None:
        """Until ``more`` calls than now have been acknowledged."""
        wanted = self.history.acknowledged + more
        deadline = time.monotonic() + PATIENCE
        while self.history.acknowledged < wanted:
            assert time.monotonic() < deadline, f"only {self.history.acknowledged} of {wanted} calls were acknowledged"
            broken = next((task for task in self._tasks if task.done()), None)
            assert broken is None or broken.cancelled() or broken.exception() is None, broken and broken.exception()
            await asyncio.sleep(0.005)

    async def _until_stopped(self, role: Callable[[Witness], Coroutine[Any, Any, None]], witness: Witness) -> None:
        """A client that can reach nobody tries another replica."""
        while not self._stopping:
            began = len(self.history.events)
            await role(witness)
            mine = [event for event in self.history.events[began:] if event.client == witness.name]
            if any(event.outcome is Outcome.UNKNOWN for event in mine):
                if len(self.urls) > 1:
                    await witness.close()
                    witness.move_to(random.choice(self.urls))
                await asyncio.sleep(0.02)

    # -- what clients do ---------------------------------------------------------------------------------------------------

    async def _produce(self, witness: Witness) -> None:
        """Queues a few rollouts; without an answer, now and then, the same again."""
        if len(self._open) >= OPEN:
            await asyncio.sleep(0.02)
            return
        batch = [self._new_rollout() for _ in range(random.randint(1, 5))]
        for _ in range(3):
            event = await witness.call("enqueue", rollouts=batch)
            if event.outcome is Outcome.OK:
                self._open.update(dict.fromkeys(rollout.id for rollout in event.answer))
            if random.random() < (0.9 if event.outcome is Outcome.OK else 0.2) or self._stopping:
                return

    def _new_rollout(self) -> NewRollout:
        number = self.history.number()
        config = RolloutConfig(max_attempts=random.choice((1, 3, 6)), max_lost=100, retry_delay=0.05)
        return NewRollout(
            input={"n": number, "text": "é\x00" if number % 50 == 0 else "x"},
            queue=random.choice(QUEUES),
            priority=random.randint(-2, 2),
            delay=random.choice((0.0, 0.0, 0.0, 0.2)),
            run_id=random.choice(("run-a", "run-b", None)),
            iteration=random.choice((None, 0, 1)),
            resources_id=random.choice((*self._resources[-2:], None)),
            group=f"g{number % 7}",
            config=config,
            idempotency_key=f"k{number}",
        )

    async def _work(self, witness: Witness) -> None:
        worker = f"{witness.name}-{random.randint(0, 1)}"
        await witness.call("register_worker", worker_id=worker, name=witness.name, capacity=4)
        asked = {"limit": random.randint(1, 4), "wait": 0.3, "lease_seconds": LEASE, "request_id": f"c{self.history.number()}"}
        claimed = await witness.call("claim", worker_id=worker, queues=QUEUES, **asked)
        for lease in claimed.answer or ():
            await self._attempt(witness, worker, lease)

    async def _attempt(self, witness: Witness, worker: str, lease: Lease) -> None:
        ref = lease.ref
        spans, generations = [self._span() for _ in range(random.randint(1, 4))], [self._generation(lease)]
        await witness.call("add_spans", ref=ref, spans=spans)
        await witness.call("add_generations", ref=ref, generations=generations)
        await witness.call("heartbeat", worker_id=worker, leases=[ref])
        await witness.call("add_rewards", ref=ref, rewards=[self._reward()])
        match random.choice(ENDINGS):
            case "complete":
                event = await witness.call("complete", ref=ref, rewards=[self._reward()])
            case "fail":
                event = await witness.call("fail", ref=ref, failure=FailureKind.TOOL, error="a tool broke")
            case "final":
                event = await witness.call("fail", ref=ref, failure=FailureKind.AGENT, error="the agent broke")
            case "release":
                event = await witness.call("release", ref=ref)
            case "vanish":  # the lease runs out
                return
            case _:  # as above, but it comes back
                await asyncio.sleep(LEASE * 1.5)
                await witness.call("add_spans", ref=ref, spans=[*spans, self._span()])
                await witness.call("add_rewards", ref=ref, rewards=[self._reward()])
                event = await witness.call("complete", ref=ref, rewards=[self._reward()])
        self._learn(event)

    async def _cancel(self, witness: Witness) -> None:
        ids = random.sample(list(self._open), min(len(self._open), 2))
        event = await witness.call("cancel", rollout_ids=ids)
        if event.outcome is Outcome.OK:
            for rollout_id in ids:
                self._open.pop(rollout_id, None)
        await asyncio.sleep(0.15)

    async def _publish(self, witness: Witness) -> None:
        template = PromptTemplate(template=f"version {self.history.number()}")
        event = await witness.call("add_resources", resources={"prompt": template}, idempotency_key=f"r{self.history.number()}")
        if event.outcome is Outcome.OK:
            self._resources.append(event.answer.id)
        await asyncio.sleep(0.1)

    async def _watch(self, witness: Witness) -> None:
        ids = list(self._open)[:20]
        event = await witness.call("wait_rollouts", ids=ids, wait=0.5, done=max(1, len(ids) // 2))
        self._learn(event)

    async def _drive(self, witness: Witness) -> None:
        await witness.call("start_run", run_id="run-a", config={"n": self.history.number()}, take_over=True)
        await asyncio.sleep(0.1)

    async def _set_limits(self, witness: Witness) -> None:
        await witness.call("set_queue", name="narrow", max_running=NARROW)
        await witness.call("count", run_id="run-a")
        await asyncio.sleep(0.2)

    def _learn(self, event: Event) -> None:
        answers = event.answer if isinstance(event.answer, list) else [event.answer]
        for rollout in answers:
            if rollout is not None and rollout.state.final:
                self._open.pop(rollout.id, None)

    # -- what they send ----------------------------------------------------------------------------------------------------

    def _span(self) -> Span:
        number = self.history.number() + 1
        attributes: dict[str, Any] = {"n": number, "gen_ai.request.model": "m"}
        if number % 20 == 0:
            attributes["gen_ai.prompt"] = LARGE
        return Span(
            trace_id=f"{number:032x}", span_id=f"{number:016x}", name="call", start_ns=number, end_ns=number + 1, attributes=attributes
        )

    def _generation(self, lease: Lease) -> Generation:
        number = self.history.number()
        return Generation(
            id=f"gen-{number}",
            call_id=f"call-{number}",
            rollout_id=lease.ref.rollout_id,
            attempt=lease.ref.attempt,
            model="m",
            prompt_token_ids=list(range(number % 300)),
            response_token_ids=[1, 2, 3],
            request={"messages": [{"role": "user", "content": LARGE if number % 20 == 0 else "hello"}]},
            started_at=1,
            latency=0.1,
        )

    def _reward(self) -> Reward:
        """At a position of its own, so that each can be told from every other."""
        number = self.history.number()
        return Reward(name="r", value=float(number), position=f"p{number}")


async def drain(url: str, history: History, queues: Sequence[str] = QUEUES) -> None:
    """A live worker does all there is to do, until every rollout is final."""
    witness = Witness("drain", history, url, PATIENCE)
    worker = f"drain-{history.number()}"
    await witness.call("register_worker", worker_id=worker, name="drain", capacity=64)
    deadline = time.monotonic() + PATIENCE
    live = [state for state in RolloutState if not state.final]
    while [state for state in live if await witness.store.list_rollouts(state=state, limit=1)]:
        assert time.monotonic() < deadline, "I4: with a live worker, some rollouts do not become final"
        request = f"c{history.number()}"
        claimed = await witness.call("claim", worker_id=worker, limit=64, wait=0.3, lease_seconds=30.0, request_id=request, queues=queues)
        await asyncio.gather(*(witness.call("complete", ref=lease.ref, rewards=[]) for lease in claimed.answer or ()))
    await witness.close()


async def read_back(url: str, history: History, attempts: int = 60) -> None:
    """What was captured in some attempts and acknowledged is answered as it was sent, whatever the store keeps it as."""
    refs = list({event.asked["ref"] for event in history.of("add_spans")})
    async with StoreClient(url) as store:
        for ref in random.sample(refs, min(len(refs), attempts)):
            spans = {span.span_id: span.attributes for span in await store.list_spans(ref.rollout_id, ref.attempt)}
            for event in history.of("add_spans"):
                if event.asked["ref"] == ref:
                    assert all(spans[span.span_id] == span.attributes for span in event.asked["spans"])
            found = {item.id: item for item in await store.list_generations([ref.rollout_id], ref.attempt)}
            for event in history.of("add_generations"):
                for sent in event.asked["generations"] if event.asked["ref"] == ref else ():
                    assert found[sent.id].model_copy(update={"late": sent.late}) == sent
