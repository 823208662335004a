"""What goes over the wire: one request body per route that needs one. Answers are the records of ``leyden.types``."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter

from leyden.audit import CallAudit
from leyden.errors import LeydenError
from leyden.record import CACHE_STRINGS
from leyden.server.interface import MAX_CALLS, MAX_ENDS
from leyden.server.queries import MAX_IDS, Trace
from leyden.server.tokens import Token
from leyden.types import (
    DEFAULT_QUEUE,
    Attempt,
    FailureKind,
    Generation,
    Id,
    Lease,
    LeaseRef,
    NewRollout,
    Queue,
    Record,
    Rejection,
    Resource,
    Reward,
    Rollout,
    Run,
    RunState,
    Span,
    Unset,
    Verdict,
    Worker,
)

T = TypeVar("T")


class Enqueue(Record):
    rollouts: list[NewRollout]


class Claim(Record):
    worker_id: Id
    limit: int = 1
    wait: float = 0.0
    lease_seconds: float | None = None
    request_id: Id | None = None
    queues: list[Id] = Field(default_factory=lambda: [DEFAULT_QUEUE], min_length=1, max_length=64)


class Heartbeat(Record):
    worker_id: Id
    leases: list[LeaseRef]
    lease_seconds: float | None = None


class Complete(Record):
    ref: LeaseRef
    rewards: list[Reward] = Field(default_factory=list)


class End(Record):
    ref: LeaseRef
    rewards: list[Reward] = Field(default_factory=list)
    spans: list[Span] = Field(default_factory=list)
    failure: FailureKind | None = None  # None: it succeeded
    error: str | None = None


class EndAttempts(Record):
    ends: list[End] = Field(max_length=MAX_ENDS)


class Refusal(Record):
    """Why one of many was not done: what ``error`` holds where one is all there is."""

    code: str
    message: str
    hint: str | None = None

    @classmethod
    def of(cls, error: LeydenError) -> Refusal:
        return cls(**error.as_dict()["error"])


class Fail(Record):
    ref: LeaseRef
    failure: FailureKind
    error: str | None = None


class Release(Record):
    ref: LeaseRef
    delay: float = 0.0


class Cancel(Record):
    rollout_ids: list[str] = Field(default_factory=list, max_length=MAX_IDS)
    run_id: str | None = None
    group: str | None = None


class Requeue(Record):
    rollout_ids: list[str]
    request_id: Id | None = None


class SetQueue(Record):
    paused: bool | None = None  # None: as it is
    max_running: int | Unset | None = Unset.UNSET  # None: no limit; "unset": as it is


class Wait(Record):
    ids: list[str] = Field(max_length=MAX_IDS)
    wait: float = 20.0
    done: int | None = None


class AddSpans(Record):
    ref: LeaseRef
    spans: list[Span]


class AddGenerations(Record):
    ref: LeaseRef
    generations: list[Generation]
    spans: list[Span] = Field(default_factory=list)


class AddCalls(Record):
    calls: list[AddGenerations] = Field(max_length=MAX_CALLS)


class AddRewards(Record):
    ref: LeaseRef
    rewards: list[Reward]


class AddScores(Record):
    rollout_id: str
    attempt: int = Field(ge=1, lt=2**31)
    rewards: list[Reward]


class OfRollouts(Record):
    rollout_ids: list[str] = Field(max_length=MAX_IDS)
    attempt: int | None = None


class AddResources(Record):
    resources: dict[str, Resource]
    lease_seconds: float | None = None
    idempotency_key: str | None = Field(None, max_length=256)


class Keep(Record):
    lease_seconds: float


class Resolve(Record):
    key: str


class RegisterWorker(Record):
    worker_id: Id
    name: str = Field(max_length=256)
    capacity: int
    pid: int | None = None
    host: str | None = Field(None, max_length=256)


class StartRun(Record):
    config: dict[str, Any]
    lease_seconds: float = 60.0
    take_over: bool = False
    request_id: Id | None = None


class KeepRun(Record):
    epoch: int
    lease_seconds: float = 60.0


class FinishRun(Record):
    epoch: int
    state: RunState
    summary: dict[str, Any] | None = None


_CONFIG = ConfigDict(cache_strings=CACHE_STRINGS)


def _list_of(kind: type[T]) -> TypeAdapter[list[T]]:
    return TypeAdapter(list[kind], config=_CONFIG)  # type: ignore[valid-type]


ROLLOUTS = _list_of(Rollout)
ATTEMPTS = _list_of(Attempt)
LEASES = _list_of(Lease)
VERDICTS = _list_of(Verdict)
SPANS = _list_of(Span)
TRACES = _list_of(Trace)
GENERATIONS = _list_of(Generation)
AUDITS = _list_of(CallAudit)
REWARDS = _list_of(Reward)
REJECTIONS = _list_of(Rejection)
WORKERS = _list_of(Worker)
RUNS = _list_of(Run)
QUEUES = _list_of(Queue)
TOKENS = _list_of(Token)
NUMBER = TypeAdapter(int)
REFUSALS = TypeAdapter(list[Refusal | None], config=_CONFIG)
