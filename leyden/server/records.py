"""From rows to the records that leave the store."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from sqlalchemy import Row

from leyden.audit import Audit, CallAudit, Continuity, Finding
from leyden.record import checked_before
from leyden.server.codec import decode, unpack_floats, unpack_ids
from leyden.server.packing import Pieces, plain_ids, plain_json
from leyden.server.schema import rollouts
from leyden.types import (
    Attempt,
    AttemptState,
    Episode,
    FailureKind,
    Generation,
    Mode,
    Rejection,
    Resources,
    Reward,
    Rollout,
    RolloutConfig,
    RolloutState,
    Run,
    RunState,
    Span,
    Worker,
)

_ROLLOUT = tuple(rollouts.c.keys())


@lru_cache(maxsize=256)
def rollout_config(data: bytes) -> RolloutConfig:
    """Thousands of rollouts are queued with the same one."""
    return RolloutConfig.model_validate_json(data)


def failure_kind(value: str | None) -> FailureKind | None:
    return None if value is None else FailureKind(value)


class RolloutRow(SimpleNamespace):
    """A row of ``rollouts``. SQLAlchemy's own takes eight times as long for each value that is read of it (measured)."""


def rollout_rows(rows: Iterable[Row[Any]]) -> list[RolloutRow]:
    """What a ``select(rollouts)`` gave."""
    return [RolloutRow(**dict(zip(_ROLLOUT, row, strict=True))) for row in rows]


def rollout(row: Row[Any] | RolloutRow, *, claimed_at: int | None = None) -> Rollout:
    """``claimed_at``: the revision of the claim that has just taken it, of which the row does not know yet."""
    claimed = claimed_at is not None
    return checked_before(
        Rollout,
        {
            "id": row.id,
            "input": decode(row.input),
            "mode": Mode(row.mode),
            "queue": row.queue,
            "priority": row.priority,
            "state": RolloutState.RUNNING if claimed else RolloutState(row.state),
            "run_id": row.run_id,
            "iteration": row.iteration,
            "resources_id": row.resources_id,
            "config": rollout_config(row.config),
            "episode": checked_before(
                Episode,
                {
                    "environment_class_id": row.environment_class_id,
                    "episode_spec_id": row.episode_spec_id,
                    "episode_id": row.episode_id,
                    "seed": row.seed,
                },
            ),
            "group": row.group_key,
            "metadata": decode(row.metadata),
            "attempt": row.attempt + claimed,
            "failures": row.failures,
            "lost": row.lost,
            "released": row.released,
            "available_at": row.available_at,
            "failure": failure_kind(row.failure),
            "error": row.error,
            "created_at": row.created_at,
            "finished_at": row.finished_at,
            "revision": row.revision if claimed_at is None else claimed_at,
        },
    )


def attempt(row: Row[Any]) -> Attempt:
    return Attempt(
        rollout_id=row.rollout_id,
        number=row.number,
        state=AttemptState(row.state),
        failure=failure_kind(row.failure),
        error=row.error,
        worker_id=row.worker_id,
        resources_id=row.resources_id,
        started_at=row.started_at,
        ended_at=row.ended_at,
    )


def resources(row: Row[Any], now: int) -> Resources:
    return Resources.model_validate(
        {
            "id": row.id,
            "version": row.version,
            "resources": decode(row.body),
            "alive": row.retired_at is None and (row.alive_until is None or row.alive_until > now),
            "created_at": row.created_at,
        }
    )


def span(row: Row[Any], pieces: Pieces) -> Span:
    return Span(
        trace_id=row.trace_id,
        span_id=row.span_id,
        parent_id=row.parent_id,
        rollout_id=row.rollout_id,
        attempt=row.attempt,
        name=row.name,
        kind=row.kind,
        start_ns=row.start_ns,
        end_ns=row.end_ns,
        status=row.status,
        status_message=row.status_message,
        attributes=decode(plain_json(row.attributes, pieces)),
        events=decode(plain_json(row.events, pieces)),
        links=[] if row.links is None else decode(plain_json(row.links, pieces)),
        resource={} if row.resource is None else decode(plain_json(row.resource, pieces)),
        scope=row.scope,
        late=row.late,
        received_at=row.received_at,
        normalizer=row.normalizer,
        operation=row.operation,
        model=row.model,
        provider=row.provider,
        input_tokens=row.input_tokens,
        output_tokens=row.output_tokens,
        cached_tokens=row.cached_tokens,
        reasoning_tokens=row.reasoning_tokens,
        finish_reason=row.finish_reason,
        tool_name=row.tool_name,
        agent_name=row.agent_name,
        conversation_id=row.conversation_id,
        error_type=row.error_type,
    )


def generation(row: Row[Any], pieces: Pieces) -> Generation:
    return Generation(
        id=row.id,
        call_id=row.call_id,
        rollout_id=row.rollout_id,
        attempt=row.attempt,
        choice=row.choice,
        model=row.model,
        deployment=row.deployment,
        checkpoint=row.checkpoint,
        status=row.status,
        error=row.error,
        prompt_token_ids=unpack_ids(plain_ids(row.prompt_token_ids, pieces)),
        response_token_ids=unpack_ids(row.response_token_ids),
        logprobs=unpack_floats(row.logprobs),
        sampling=decode(row.sampling),
        finish_reason=row.finish_reason,
        prompt_tokens=row.prompt_tokens,
        completion_tokens=row.completion_tokens,
        request=decode(plain_json(row.request, pieces)),
        response=None if row.response is None else decode(plain_json(row.response, pieces)),
        started_at=row.started_at,
        latency=row.latency,
        audit=audit(row),
        late=row.late,
    )


def audit(row: Row[Any]) -> Audit | None:
    if row.findings is None:
        return None
    return Audit(
        findings=tuple(Finding(name) for name in row.findings.split()),
        continuity=None if row.continuity is None else Continuity(row.continuity),
        follows=row.follows,
        differs_at=row.differs_at,
        exact=row.exact,
        **decode(row.audit),
    )


def call_audit(row: Row[Any], turn: int) -> CallAudit:
    return CallAudit(
        generation_id=row.id,
        call_id=row.call_id,
        rollout_id=row.rollout_id,
        attempt=row.attempt,
        turn=turn,
        choice=row.choice,
        model=row.model,
        checkpoint=row.checkpoint,
        status=row.status,
        finish_reason=row.finish_reason,
        prompt_tokens=row.prompt_tokens,
        completion_tokens=row.completion_tokens,
        late=row.late,
        audit=audit(row),
    )


def rejection(row: Row[Any]) -> Rejection:
    return Rejection(source=row.source, reason=row.reason, n=row.n, example=row.example, last_at=row.last_at)


def reward(row: Row[Any]) -> Reward:
    return Reward(
        name=row.name,
        value=row.value,
        source=row.source,
        position=row.position,
        rollout_id=row.rollout_id,
        attempt=row.attempt,
        created_at=row.created_at,
    )


def worker(row: Row[Any], running: int) -> Worker:
    return Worker(
        id=row.id,
        name=row.name,
        pid=row.pid,
        host=row.host,
        capacity=row.capacity,
        running=running,
        started_at=row.started_at,
        last_seen_at=row.last_seen_at,
        stopped_at=row.stopped_at,
    )


def run(row: Row[Any]) -> Run:
    return Run(
        id=row.id,
        state=RunState(row.state),
        epoch=row.epoch,
        config=decode(row.config),
        summary=None if row.summary is None else decode(row.summary),
        created_at=row.created_at,
        finished_at=row.finished_at,
    )
