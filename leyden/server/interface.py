"""The store's one interface. ``SQLStore`` implements it on a database, ``StoreClient`` over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Unpack

from leyden.audit import AuditCounts, CallAudit
from leyden.errors import LeydenError
from leyden.record import new_id
from leyden.server.queries import Prune, Pruned, RolloutFilters, SpanQuery, Trace, TraceQuery
from leyden.types import (
    DEFAULT_QUEUE,
    Attempt,
    AttemptBinding,
    Counts,
    FailureKind,
    Generation,
    Lease,
    LeaseRef,
    Mode,
    NewRollout,
    Queue,
    Rejection,
    Resource,
    Resources,
    Reward,
    Rollout,
    RolloutState,
    Run,
    RunState,
    Span,
    Unset,
    Verdict,
    Worker,
)

TOKEN = "LEYDEN_TOKEN"  # in the environment: what a client shows to a store that asks for a token
MAX_WAIT = 20.0  # seconds a long poll may last
MAX_CLAIM = 512  # rollouts in one claim
MAX_ENDS = 512  # attempts that end in one request
MAX_CALLS = 64  # calls of a model in one request


def new_key() -> str:
    """For a request that may be sent, or run, more than once: what it makes is made once."""
    return new_id(32)


def with_keys(rollouts: Sequence[NewRollout]) -> tuple[NewRollout, ...]:
    """Each with an idempotency key, its own or a new one."""
    return tuple(item if item.idempotency_key is not None else item.model_copy(update={"idempotency_key": new_key()}) for item in rollouts)


@dataclass(frozen=True)
class AttemptEnd:
    """How the holder of ``ref`` ended its attempt: without a ``failure`` it succeeded. ``spans``, given as such or as JSON, are stored with
    it."""

    ref: LeaseRef
    rewards: Sequence[Reward] = ()
    spans: Sequence[Span | bytes] = ()
    failure: FailureKind | None = None
    error: str | None = None

    @property
    def encoded_bytes(self) -> int:
        """Of the spans given as JSON."""
        return sum(len(span) for span in self.spans if isinstance(span, bytes))


class Store(Protocol):
    """A durable queue of rollouts with everything captured about them. A call that returned is committed.

    Raises (all of ``leyden.errors``): ``NotFound`` for an unknown id, ``Conflict`` for a different value under a used key,
    ``LeaseLost`` for a stale fence, ``InvalidRequest`` for a bad argument, ``Busy`` when behind, ``Unavailable`` when not reachable.
    """

    busy_until: float
    """In ``time.monotonic()``: until then it has asked for patience (429), by its last such answer."""

    # -- queue -----------------------------------------------------------------------------------------------------
    async def enqueue(self, rollouts: Sequence[NewRollout]) -> list[Rollout]:
        """Queue all or none. A used idempotency key returns the rollout it made; with a different body, ``Conflict``.

        Another ``resources_id`` alone is no different body: a rollout that is not final moves to the resources named now, if they are
        alive. An attempt that runs keeps those it was claimed with; the next one uses the new ones.
        """
        ...

    async def claim(
        self,
        worker_id: str,
        limit: int = 1,
        wait: float = 0.0,
        lease_seconds: float | None = None,
        request_id: str | None = None,
        queues: Sequence[str] = (DEFAULT_QUEUE,),
    ) -> list[Lease]:
        """Take up to ``limit`` rollouts of ``queues`` (≤ 64), best priority first, then oldest. Waits ≤ ``wait`` (≤ 20) s for the first
        one. The same ``request_id`` returns the same leases while they are held (a lost answer leaks nothing). Refused with ``Busy``
        sooner than what ends attempts: who would bring more work waits first."""
        ...

    async def heartbeat(self, worker_id: str, leases: Sequence[LeaseRef], lease_seconds: float | None = None) -> list[Verdict]:
        """Extend leases; one verdict each, in order. With no lease it only says that the worker lives."""
        ...

    async def complete(self, ref: LeaseRef, rewards: Sequence[Reward] = ()) -> Rollout:
        """End the attempt as succeeded, with its last rewards, in one transaction. Repeating it is a no-op."""
        ...

    async def fail(self, ref: LeaseRef, failure: FailureKind, error: str | None = None) -> Rollout:
        """End the attempt; the rollout is retried (queued or scheduled) or final, by its config. Repeating it is a no-op."""
        ...

    async def end_attempts(self, ends: Sequence[AttemptEnd]) -> list[LeydenError | None]:
        """``add_spans``, then ``complete`` or ``fail``, of many attempts in one request. What came of each: None, or why it was refused,
        and then nothing of it is stored. One that is refused costs the others nothing. Repeating it is a no-op. Raises ``InvalidRequest``
        where one of the spans is none."""
        ...

    async def release(self, ref: LeaseRef, delay: float = 0.0) -> Rollout:
        """Hand an unharmed rollout back; the attempt does not count. Queued again after ``delay`` (≤ 3600) seconds."""
        ...

    async def cancel(self, rollout_ids: Sequence[str] = (), run_id: str | None = None, group: str | None = None) -> int:
        """Cancel by id; and by run, by group, or what is in both. Waiting ones are final at once; running holders learn it at their next
        beat and their lease is void. Returns how many became cancelled."""
        ...

    async def requeue(self, rollout_ids: Sequence[str], request_id: str | None = None) -> list[Rollout]:
        """Queue final rollouts again, all or none, each for a new attempt as if none had failed or been lost. ``Conflict`` for one that is
        not final. The same ``request_id`` queues them once."""
        ...

    async def get_rollout(self, rollout_id: str) -> Rollout: ...

    async def list_rollouts(self, **filters: Unpack[RolloutFilters]) -> list[Rollout]:
        """Those for which all the filters hold (``queries.RolloutQuery``), at most ``limit`` (1000; ≤ 10,000). Page on with ``after``, the
        last one's id: what is queued meanwhile moves no page.

        In order of creation (``newest_first``: backwards). With ``changed_after``: in order of their last change, as far as no change can
        come before it any more; go on with the last one's ``revision`` and, as ``after``, its id.
        """
        ...

    async def list_attempts(self, rollout_id: str) -> list[Attempt]: ...

    async def wait_rollouts(self, ids: Sequence[str], wait: float = MAX_WAIT, done: int | None = None) -> list[Rollout]:
        """The final ones among ``ids``, as soon as at least ``done`` (default: all) are final or ``wait`` (≤ 20) s passed."""
        ...

    async def count(
        self, run_id: str | None = None, iteration: int | None = None, mode: Mode | None = None, queue: str | None = None
    ) -> Counts: ...

    async def set_queue(self, name: str, paused: bool | None = None, max_running: int | Unset | None = Unset.UNSET) -> Queue:
        """Pause or resume a queue, limit how many of its attempts run at once over all workers, or lift its limit (None). Nothing is
        claimed from a paused one, nor beyond the limit, at any instant; what runs goes on."""
        ...

    async def list_queues(self) -> list[Queue]:
        """By name: those that hold rollouts, and those that were paused or limited once."""
        ...

    # -- capture ---------------------------------------------------------------------------------------------------
    async def add_spans(self, ref: LeaseRef, spans: Sequence[Span]) -> int:
        """Deduplicated on (trace id, span id); under a lost lease kept and marked late. Returns how many are new."""
        ...

    async def add_encoded_spans(self, ref: LeaseRef, spans: Sequence[bytes]) -> int:
        """The same for spans that are JSON already: over HTTP they go out as they are."""
        ...

    async def add_generations(self, ref: LeaseRef, generations: Sequence[Generation], spans: Sequence[Span] = ()) -> None:
        """All or none, the call's ``spans`` with them; the same id again is a no-op. Under a lost lease: kept, marked late."""
        ...

    async def add_rewards(self, ref: LeaseRef, rewards: Sequence[Reward]) -> None:
        """Unique on (rollout, attempt, name, source, position): same value no-op, different value ``Conflict``."""
        ...

    async def add_scores(self, rollout_id: str, attempt: int, rewards: Sequence[Reward]) -> None:
        """Rewards of an attempt that has ended, by somebody who holds no lease: all or none, unique as above. Each names its ``source``,
        which is not "agent". Raises ``Conflict`` while the attempt runs."""
        ...

    async def list_spans(self, rollout_id: str, attempt: int | None = None) -> list[Span]: ...
    async def query_spans(self, query: SpanQuery) -> list[Span]:
        """In order of arrival, at most ``limit`` (≤ 10,000); page on with ``after``, the last one's ``trace_id-span_id``."""
        ...

    async def list_traces(self, query: TraceQuery) -> list[Trace]:
        """Newest first, by the first span that came; at most ``limit`` (≤ 1000). Page on with ``after``, the last one's id."""
        ...

    async def list_generations(self, rollout_ids: Sequence[str], attempt: int | None = None) -> list[Generation]:
        """In order of start. ``attempt`` None: each rollout's latest attempt, late ones left out."""
        ...

    async def list_audits(self, rollout_ids: Sequence[str], attempt: int | None = None) -> list[CallAudit]:
        """What was found of each call, without its ids and texts: of every attempt, or of one; late ones too."""
        ...

    async def count_audits(self, run_id: str | None = None, iteration: int | None = None, mode: Mode | None = None) -> AuditCounts:
        """Calls by what was found, of all their attempts; nothing is scanned for it."""
        ...

    async def list_rewards(self, rollout_ids: Sequence[str], attempt: int | None = None) -> list[Reward]:
        """``attempt`` None: each rollout's latest attempt."""
        ...

    async def list_rejections(self) -> list[Rejection]:
        """What was sent and not stored, by reason, the latest first."""
        ...

    # -- resources -------------------------------------------------------------------------------------------------
    async def add_resources(
        self, resources: dict[str, Resource], lease_seconds: float | None = None, idempotency_key: str | None = None
    ) -> Resources:
        """A new immutable version, which becomes the latest. With ``lease_seconds`` it stays alive only while kept so."""
        ...

    async def keep_resources(self, resources_id: str, lease_seconds: float) -> Resources:
        """Extend the life of a version made with ``lease_seconds``; a retired one raises ``LeaseLost``."""
        ...

    async def retire_resources(self, resources_id: str) -> Resources:
        """Nothing is claimed for this version any more; attempts that hold it go on."""
        ...

    async def get_resources(self, resources_id: str | None = None) -> Resources:
        """None: the latest version."""
        ...

    async def resolve_key(self, key: str) -> AttemptBinding:
        """The attempt whose lease has this key. Raises ``LeaseLost`` for a key whose lease ended, ``NotFound`` if never issued."""
        ...

    async def resolve_attempt(self, rollout_id: str, attempt: int) -> AttemptBinding:
        """The same for an attempt named by its number. Raises ``LeaseLost`` once it has ended, ``NotFound`` if it never began."""
        ...

    # -- workers and runs ------------------------------------------------------------------------------------------
    async def register_worker(
        self, worker_id: str, name: str, capacity: int, pid: int | None = None, host: str | None = None
    ) -> Worker: ...
    async def stop_worker(self, worker_id: str) -> Worker: ...
    async def list_workers(self, alive_within: float | None = None) -> list[Worker]:
        """``alive_within``: seen within so many seconds and not stopped."""
        ...

    async def start_run(self, run_id: str, config: dict[str, Any], lease_seconds: float = 60.0, take_over: bool = False) -> Run:
        """Create the run, or go on with it under the next epoch. ``Conflict`` if its driver still beats, unless ``take_over``."""
        ...

    async def keep_run(self, run_id: str, epoch: int, lease_seconds: float = 60.0) -> Run:
        """The driver's heartbeat. Raises ``LeaseLost`` under an older epoch."""
        ...

    async def finish_run(self, run_id: str, epoch: int, state: RunState, summary: dict[str, Any] | None = None) -> Run: ...
    async def get_run(self, run_id: str) -> Run: ...
    async def list_runs(self, limit: int = 100) -> list[Run]: ...

    # -- retention -------------------------------------------------------------------------------------------------
    async def prune(self, query: Prune) -> Pruned:
        """Delete up to 500 rollouts that are final and ended ``older_than`` seconds ago, with everything recorded about them, and what
        nothing names any more. Call it again while ``more``. Nothing of a run that is running is touched.

        Their idempotency keys are forgotten with them. Raises ``Conflict`` for the ``run_id`` of a run that is running.
        """
        ...

    async def close(self) -> None: ...


class LocalStore(Store, Protocol):
    """A store in this process. It can do a little more than one over HTTP."""

    async def end_many(self, ends: Sequence[AttemptEnd]) -> list[RolloutState | None]:
        """End attempts with their spans and rewards, all in one transaction, at half the cost of one by one. Returns what each rollout
        became; None where the lease was lost, of which nothing is stored. Raises ``Conflict`` as ``add_rewards`` does, for all of them."""
        ...


async def open_store(path: Path) -> LocalStore:
    """The store on a file, in this process and in the event loop that calls. Raises ``UsageError`` for one that is open elsewhere."""
    from leyden.server.sqlstore import SQLStore

    return await SQLStore.open(path)
