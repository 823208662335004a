"""What goes over the wire: one request body per route that needs one. Answers are the records of ``leyden.types``."""

from __future__ import annotations

from typing import Any

from pydantic import Field, TypeAdapter

from leyden.audit import CallAudit
from leyden.errors import LeydenError
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


ROLLOUTS = TypeAdapter(list[Rollout])
ATTEMPTS = TypeAdapter(list[Attempt])
LEASES = TypeAdapter(list[Lease])
VERDICTS = TypeAdapter(list[Verdict])
SPANS = TypeAdapter(list[Span])
TRACES = TypeAdapter(list[Trace])
GENERATIONS = TypeAdapter(list[Generation])
AUDITS = TypeAdapter(list[CallAudit])
REWARDS = TypeAdapter(list[Reward])
REJECTIONS = TypeAdapter(list[Rejection])
WORKERS = TypeAdapter(list[Worker])
RUNS = TypeAdapter(list[Run])
QUEUES = TypeAdapter(list[Queue])
TOKENS = TypeAdapter(list[Token])
NUMBER = TypeAdapter(int)
REFUSALS = TypeAdapter(list[Refusal | None])
