"""The recipe's store, in front of ours: its methods, their argument names, and its records."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from leyden.agentlightning.offered import NotOffered
from leyden.agentlightning.records import (
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    EnqueueRolloutRequest,
    ResourcesUpdate,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
)
from leyden.agentlightning.spans import Span, in_order, rewards_of
from leyden.errors import Conflict, NotFound, UsageError
from leyden.server.client import StoreClient
from leyden.server.interface import MAX_WAIT, Store
from leyden.types import FailureKind, LeaseRef, Mode, NewRollout, Resource, Reward

BY_HAND = 3600.0  # seconds a rollout taken with ``dequeue_rollout`` is ours: nobody beats for it
FIRST = -1_000_000  # the priority that is claimed before all others

NOT_OFFERED = {
    "start_attempt": "a retry is the store's: RolloutConfig(max_attempts=..., retry_condition=[...])",
    "query_resources": "get_latest_resources() and get_resources_by_id(...)",
    "update_resources": "a version never changes, so that an attempt is pinned to what it was claimed with: add_resources({...})",
    "get_next_span_sequence_id": "query_spans(...) numbers its spans",
    "get_many_span_sequence_ids": "query_spans(...) numbers its spans",
    "query_workers": "`await leyden.StoreClient(url).list_workers()`",
    "get_worker_by_id": "`await leyden.StoreClient(url).list_workers()`",
    "update_worker": "a runner says by itself that it lives",
    "statistics": "`leyden runs show`, or `await leyden.StoreClient(url).count(run_id)`",
    "otlp_traces_endpoint": "spans reach the store through the runner that holds the attempt: OtelTracer",
}


class LightningStore:
    """A store at a URL. Works in any thread and event loop, and goes to another process as its URL."""

    capabilities: Mapping[str, bool] = {"thread_safe": True, "async_safe": True, "zero_copy": True, "otlp_traces": False}

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, StoreClient] = WeakKeyDictionary()
        self._taken: dict[tuple[str, str], LeaseRef] = {}  # by hand: rollout and attempt id → what shows that they are ours
        self._earned: dict[tuple[str, str], dict[str, float]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return LightningStoreClient, (self.url,)

    def __getattr__(self, name: str) -> Any:
        if name in NOT_OFFERED:
            raise NotOffered(f"the store does not offer {name}", NOT_OFFERED[name])
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def inner(self) -> Store:
        """Our client of it, for the running event loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            self._clients[loop] = StoreClient(self.url)
        return self._clients[loop]

    async def close(self) -> None:
        """Close this event loop's connections. The store itself goes on."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    # -- queue -----------------------------------------------------------------------------------------------------

    async def enqueue_rollout(
        self,
        input: Any,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Rollout:
        """Queue a task. Without ``resources_id`` it runs with the latest resources at its claim. Raises ``NotFound`` for an unknown id."""
        request = EnqueueRolloutRequest(input=input, mode=mode, resources_id=resources_id, config=config, metadata=metadata)
        return (await self.enqueue_many_rollouts([request]))[0]

    async def enqueue_many_rollouts(self, rollouts: Sequence[EnqueueRolloutRequest]) -> list[Rollout]:
        """All or none."""
        return [Rollout.of(rollout) for rollout in await self.inner.enqueue([new_rollout(request) for request in rollouts])]

    async def start_rollout(
        self,
        input: Any,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        worker_id: str | None = None,
    ) -> AttemptedRollout:
        """Queue a task and take it at once. Raises ``Conflict`` when a runner was faster."""
        request = EnqueueRolloutRequest(input=input, mode=mode, resources_id=resources_id, config=config, metadata=metadata)
        (queued,) = await self.inner.enqueue([new_rollout(request, FIRST)])
        taken = await self.dequeue_rollout(worker_id)
        if taken is None or taken.rollout_id != queued.id:
            if taken is not None:
                await self.inner.release(self._taken.pop((taken.rollout_id, taken.attempt.attempt_id)))
            raise Conflict("a runner of this store took the rollout first", "use enqueue_rollout, or a store without runners")
        return taken

    async def dequeue_rollout(self, worker_id: str | None = None) -> AttemptedRollout | None:
        """Take the next task, for at most an hour; None when there is none. End it with ``update_attempt``."""
        taken = await self.dequeue_many_rollouts(limit=1, worker_id=worker_id)
        return taken[0] if taken else None

    async def dequeue_many_rollouts(self, *, limit: int = 1, worker_id: str | None = None) -> list[AttemptedRollout]:
        """Take up to ``limit`` tasks, as ``dequeue_rollout`` does."""
        worker = worker_id or "by-hand"
        await self.inner.register_worker(worker, worker, limit)
        taken = []
        for lease in await self.inner.claim(worker, limit, 0.0, BY_HAND):
            taken.append(AttemptedRollout.at(lease.rollout, worker))
            self._taken[(lease.ref.rollout_id, str(lease.ref.attempt))] = lease.ref
        return taken

    async def wait_for_rollouts(self, *, rollout_ids: Sequence[str], timeout: float | None = None) -> list[Rollout]:
        """The ended ones, as soon as all have ended or ``timeout`` seconds have passed (None: no limit). It waits without polling."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = MAX_WAIT if deadline is None else max(0.0, deadline - time.monotonic())
            ended = await self.inner.wait_rollouts(rollout_ids, wait=min(MAX_WAIT, left))
            if len(ended) == len(set(rollout_ids)) or (left <= MAX_WAIT and deadline is not None):
                return [Rollout.of(rollout) for rollout in ended]

    async def query_rollouts(
        self,
        *,
        status_in: Sequence[RolloutStatus] | None = None,
        rollout_id_in: Sequence[str] | None = None,
        status: Sequence[RolloutStatus] | None = None,
        rollout_ids: Sequence[str] | None = None,
    ) -> list[Rollout]:
        """In order of creation. ``status`` and ``rollout_ids`` are the older names of the first two."""
        ids = rollout_ids if rollout_id_in is None else rollout_id_in
        wanted = status if status_in is None else status_in
        found: list[Rollout] = []
        after = None
        while page := await self.inner.list_rollouts(ids=ids, after=after):
            found += [Rollout.of(rollout) for rollout in page]
            after = page[-1].id
        return [rollout for rollout in found if wanted is None or rollout.status in wanted]

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | None:
        try:
            return Rollout.of(await self.inner.get_rollout(rollout_id))
        except NotFound:
            return None

    async def query_attempts(self, rollout_id: str) -> list[Attempt]:
        return [Attempt.of(attempt) for attempt in await self.inner.list_attempts(rollout_id)]

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        attempts = await self.query_attempts(rollout_id)
        return attempts[-1] if attempts else None

    async def update_rollout(self, rollout_id: str, *, status: RolloutStatus | None = None, **other: Any) -> Rollout:
        """``status="cancelled"`` cancels it. All else about a rollout is settled when it is queued, or by its attempts."""
        if other or status != "cancelled":
            what = f"{next(iter(other))}=..." if other else f"status={status!r}"
            raise UsageError(f"update_rollout({what}) is not offered", "a rollout's state follows its attempts: update_attempt(...)")
        await self.inner.cancel([rollout_id])
        return Rollout.of(await self.inner.get_rollout(rollout_id))

    async def update_attempt(self, rollout_id: str, attempt_id: str, *, status: AttemptStatus | None = None, **other: Any) -> Attempt:
        """End an attempt that was taken by hand: "succeeded" (with what ``add_span`` told of rewards), "failed" or "timeout"."""
        if other or status not in ("running", "succeeded", "failed", "timeout"):
            what = f"{next(iter(other))}=..." if other else f"status={status!r}"
            raise UsageError(f"update_attempt({what}) is not offered", 'status is "running", "succeeded", "failed" or "timeout"')
        ref = await self._mine(rollout_id, attempt_id)
        earned = self._earned.get((rollout_id, attempt_id), {})
        if status == "succeeded":
            await self.inner.complete(ref, [Reward(name=name, value=value) for name, value in earned.items()])
        elif status != "running":
            await self.inner.fail(ref, FailureKind.TIMEOUT if status == "timeout" else FailureKind.AGENT, "as reported by hand")
        if status != "running":
            self._taken.pop((rollout_id, attempt_id), None)
            self._earned.pop((rollout_id, attempt_id), None)
        return next(attempt for attempt in await self.query_attempts(rollout_id) if attempt.attempt_id == attempt_id)

    # -- spans -----------------------------------------------------------------------------------------------------

    async def add_span(self, span: Span) -> Span | None:
        """Add to an attempt that was taken by hand; None if it is there already."""
        added = await self.add_many_spans([span])
        return added[0] if added else None

    async def add_many_spans(self, spans: Sequence[Span]) -> list[Span]:
        """Those that are new, or all when some of one attempt's are."""
        added: list[Span] = []
        by_attempt: dict[tuple[str, str], list[Span]] = {}
        for span in spans:
            by_attempt.setdefault((span.rollout_id, span.attempt_id), []).append(span)
        for key, some in by_attempt.items():
            ref = await self._mine(*key)
            if await self.inner.add_spans(ref, [span.ours() for span in some]):
                added += some
            self._earned.setdefault(key, {}).update(pair for span in some for pair in rewards_of(span))
        return added

    async def add_otel_span(self, rollout_id: str, attempt_id: str, readable_span: Any, sequence_id: int | None = None) -> Span | None:
        """``add_span`` for a span of OpenTelemetry's SDK."""
        from leyden.runners.otel import to_span

        return await self.add_span(Span.of(to_span(readable_span)).model_copy(update={"rollout_id": rollout_id, "attempt_id": attempt_id}))

    async def query_spans(self, rollout_id: str, attempt_id: str | None = None) -> list[Span]:
        """What a tracer gathered, every call of the model with its exact token ids, and the rewards, in order.

        ``attempt_id``: one attempt, or "latest"; None: all of them. Raises ``NotFound`` for an unknown rollout.
        """
        store = self.inner
        numbers = [attempt.number for attempt in await store.list_attempts(rollout_id)]
        if attempt_id is not None:
            numbers = numbers[-1:] if attempt_id == "latest" else [number for number in numbers if str(number) == attempt_id]
        found: list[Span] = []
        for number in numbers:
            spans, generations, rewards = await asyncio.gather(
                store.list_spans(rollout_id, number), store.list_generations([rollout_id], number), store.list_rewards([rollout_id], number)
            )
            found += in_order((span for span in spans if not span.late), (item for item in generations if not item.late), rewards)
        return found

    # -- resources -------------------------------------------------------------------------------------------------

    async def add_resources(self, resources: Mapping[str, Resource]) -> ResourcesUpdate:
        """A new version, which becomes the latest."""
        return ResourcesUpdate.of(await self.inner.add_resources(dict(resources)))

    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        return await self._resources(resources_id)

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        return await self._resources(None)

    async def _resources(self, resources_id: str | None) -> ResourcesUpdate | None:
        try:
            return ResourcesUpdate.of(await self.inner.get_resources(resources_id))
        except NotFound:
            return None

    async def _mine(self, rollout_id: str, attempt_id: str) -> LeaseRef:
        ref = self._taken.get((rollout_id, attempt_id))
        if ref is None:
            raise UsageError(f"attempt {attempt_id} of {rollout_id} is not ours to change", "take it with dequeue_rollout or start_rollout")
        return ref


class LightningStoreClient(LightningStore):
    """A store that is served somewhere, such as ``leyden store --port 4747``."""

    def __init__(self, server_address: str) -> None:
        super().__init__(server_address)


def new_rollout(request: EnqueueRolloutRequest, priority: int = 0) -> NewRollout:
    config = {"config": request.config.ours()} if request.config else {}
    return NewRollout(
        input=request.input,
        mode=Mode(request.mode or "train"),
        priority=priority,
        resources_id=request.resources_id,
        metadata=request.metadata or {},
        **config,  # type: ignore[arg-type]
    )
