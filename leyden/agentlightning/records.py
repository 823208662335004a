"""The recipe's records, made of ours: its field names, and its words for states."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from leyden import types as ours
from leyden.types import AttemptState, FailureKind, Resource, RolloutState

T_co = TypeVar("T_co", covariant=True)

NamedResources = Mapping[str, Resource]
RolloutMode = Literal["train", "val", "test"]
RolloutStatus = Literal["queuing", "preparing", "running", "failed", "succeeded", "cancelled", "requeuing"]
AttemptStatus = Literal["preparing", "running", "failed", "succeeded", "unresponsive", "timeout", "cancelled", "released"]

ATTEMPT_STATUS: dict[AttemptState, AttemptStatus] = {
    AttemptState.RUNNING: "running", AttemptState.SUCCEEDED: "succeeded", AttemptState.FAILED: "failed",
    AttemptState.TIMED_OUT: "timeout", AttemptState.LOST: "unresponsive", AttemptState.CANCELLED: "cancelled",
    AttemptState.RELEASED: "released",
}  # fmt: skip
RETRIES = {
    "failed": (FailureKind.AGENT, FailureKind.TOOL, FailureKind.INFRASTRUCTURE, FailureKind.VERIFIER),
    "timeout": (FailureKind.TIMEOUT,),
    "unresponsive": (FailureKind.LOST,),
}


class Dataset(Protocol[T_co]):
    """Tasks by number: a list, a Hugging Face dataset, a torch dataset."""

    def __getitem__(self, index: int, /) -> T_co: ...
    def __len__(self) -> int: ...


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True)


class RolloutConfig(_Record):
    """How a rollout is tried. ``max_attempts`` and ``retry_condition`` as in the recipe; without a config, ours apply: see the docs."""

    timeout_seconds: float | None = None
    unresponsive_seconds: float | None = None  # no effect here: a runner's heartbeat decides
    max_attempts: int = Field(1, ge=1)
    retry_condition: list[Literal["failed", "timeout", "unresponsive"]] = Field(default_factory=list)

    def ours(self) -> ours.RolloutConfig:
        """Without a timeout, our default of 30 minutes holds: nothing waits for ever."""
        if self.unresponsive_seconds is not None:
            warnings.warn("unresponsive_seconds has no effect: a runner that stops beating loses its lease after 60 s", stacklevel=3)
        kinds = tuple(kind for status in self.retry_condition for kind in RETRIES[status])
        timeout = {} if self.timeout_seconds is None else {"attempt_timeout": self.timeout_seconds}
        return ours.RolloutConfig(max_attempts=self.max_attempts, max_lost=self.max_attempts, retry_on=kinds, **timeout)  # type: ignore[arg-type]


class Attempt(_Record):
    rollout_id: str
    attempt_id: str  # its number, as text
    sequence_id: int
    start_time: float  # seconds since the epoch, as all times here
    end_time: float | None = None
    status: AttemptStatus
    worker_id: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def of(cls, attempt: ours.Attempt) -> Attempt:
        return cls(
            rollout_id=attempt.rollout_id,
            attempt_id=str(attempt.number),
            sequence_id=attempt.number,
            start_time=attempt.started_at / 1e6,
            end_time=_seconds(attempt.ended_at),
            status=ATTEMPT_STATUS[attempt.state],
            worker_id=attempt.worker_id,
        )


class Rollout(_Record):
    rollout_id: str
    input: Any
    start_time: float
    end_time: float | None = None
    mode: RolloutMode | None = None
    resources_id: str | None = None
    status: RolloutStatus
    config: Any = None  # ours: ``leyden.RolloutConfig``
    metadata: dict[str, Any] = Field(default_factory=dict)
    error: str | None = None  # of the attempt that made it final

    @classmethod
    def of(cls, rollout: ours.Rollout) -> Rollout:
        return cls(**_fields(rollout))


class AttemptedRollout(Rollout):
    """A rollout with the attempt that is under way."""

    attempt: Attempt

    @classmethod
    def at(cls, rollout: ours.Rollout, worker_id: str | None = None) -> AttemptedRollout:
        now = Attempt(
            rollout_id=rollout.id,
            attempt_id=str(rollout.attempt),
            sequence_id=rollout.attempt,
            start_time=rollout.created_at / 1e6,
            status="running",
            worker_id=worker_id,
        )
        return cls(**_fields(rollout), attempt=now)


class EnqueueRolloutRequest(_Record):
    input: Any
    mode: RolloutMode | None = None
    resources_id: str | None = None
    config: RolloutConfig | None = None
    metadata: dict[str, Any] | None = None


class ResourcesUpdate(_Record):
    """One version of the resources. A version never changes: an update is another one."""

    resources_id: str
    resources: dict[str, Any]
    create_time: float
    version: int

    @classmethod
    def of(cls, resources: ours.Resources) -> ResourcesUpdate:
        return cls(
            resources_id=resources.id,
            resources=dict(resources.resources),
            create_time=resources.created_at / 1e6,
            version=resources.version,
        )


class Triplet(_Record):
    """One call of the model: ``prompt`` and ``response`` hold ``token_ids`` and ``raw_content``; ``response`` also ``logprobs``."""

    prompt: dict[str, Any]
    response: dict[str, Any]
    reward: float | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)


def _fields(rollout: ours.Rollout) -> dict[str, Any]:
    return {
        "rollout_id": rollout.id,
        "input": rollout.input,
        "start_time": rollout.created_at / 1e6,
        "end_time": _seconds(rollout.finished_at),
        "mode": str(rollout.mode),
        "resources_id": rollout.resources_id,
        "status": _status(rollout),
        "config": rollout.config,
        "metadata": rollout.metadata,
        "error": rollout.error,
    }


def _status(rollout: ours.Rollout) -> RolloutStatus:
    match rollout.state:
        case RolloutState.QUEUED | RolloutState.SCHEDULED:
            return "requeuing" if rollout.attempt else "queuing"
        case RolloutState.RUNNING:
            return "running"
        case RolloutState.SUCCEEDED:
            return "succeeded"
        case RolloutState.FAILED:
            return "failed"
        case RolloutState.CANCELLED:
            return "cancelled"


def _seconds(microseconds: int | None) -> float | None:
    return None if microseconds is None else microseconds / 1e6
