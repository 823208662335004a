"""What can be asked of a store: one record a question, the same in Python, over HTTP and on the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, TypeVar

from pydantic import BaseModel, Field, ValidationError

from leyden.errors import InvalidRequest
from leyden.types import FailureKind, Id, Mode, Record, RolloutState

MAX_LIST = 10_000  # records in one answer
MAX_IDS = 100_000  # rollouts that one request may name

M = TypeVar("M", bound=BaseModel)


def asked(model: type[M], values: Mapping[str, Any]) -> M:
    """``values`` as a question. Raises ``InvalidRequest`` that names the value that is none."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InvalidRequest(f"{'.'.join(map(str, first['loc'])) or 'query'}: {first['msg']}") from error


class RolloutFilters(TypedDict, total=False):
    """Of a ``RolloutQuery``."""

    run_id: str | None
    iteration: int | None
    mode: Mode | None
    state: RolloutState | None
    queue: str | None
    group: str | None
    failure: FailureKind | None
    ids: Sequence[str] | None
    id_prefix: str | None
    created_from: int | None
    created_to: int | None
    changed_after: int | None
    newest_first: bool
    after: str | None
    limit: int


class RolloutQuery(Record):
    """Rollouts for which all of it holds. They come in order of creation; see ``Store.list_rollouts``."""

    run_id: str | None = None
    iteration: int | None = None
    mode: Mode | None = None
    state: RolloutState | None = None
    queue: str | None = None
    group: str | None = None
    failure: FailureKind | None = None
    ids: Sequence[str] | None = Field(None, max_length=MAX_IDS)
    id_prefix: str | None = None  # how the id begins; they then come in order of their ids
    created_from: int | None = None  # microseconds, inclusive
    created_to: int | None = None  # microseconds, exclusive
    changed_after: int | None = None  # a revision
    newest_first: bool = False
    after: str | None = None  # a rollout id: go on behind it
    limit: int = 1000


class SpanQuery(Record):
    """Spans for which all of it holds, in order of arrival."""

    trace_id: str | None = None
    rollout_id: str | None = None
    attempt: int | None = None
    name: str | None = None
    operation: str | None = None
    model: str | None = None
    status: str | None = None
    received_from: int | None = None  # microseconds, inclusive
    received_to: int | None = None  # microseconds, exclusive
    newest_first: bool = False
    after: str | None = None  # "trace id-span id": go on behind it
    limit: int = 1000


class TraceQuery(Record):
    """Traces by their first span, newest first."""

    rollout_id: str | None = None
    id_prefix: str | None = None  # how the trace id begins; they then come in order of their ids
    received_from: int | None = None  # microseconds, inclusive
    received_to: int | None = None  # microseconds, exclusive
    after: str | None = None  # a trace id: go on behind it
    limit: int = 100


class Prune(Record):
    """What to delete: final rollouts that ended long ago, with everything recorded about them."""

    older_than: float = Field(ge=0, le=100 * 366 * 86_400)  # seconds since they ended
    state: RolloutState | None = None
    run_id: Id | None = None
    dry_run: bool = False  # only count


class Trace(Record):
    """One trace, summed up. Tokens are those of its model calls; None: none was counted."""

    trace_id: str
    name: str  # of the root, or of the span that came first while there is no root
    rollout_id: str | None
    attempt: int | None
    start_ns: int
    end_ns: int
    spans: int
    errors: int
    input_tokens: int | None
    output_tokens: int | None
    received_at: int  # its first span; microseconds


class Pruned(Record):
    """What one call deleted, or would delete. ``more``: call again."""

    rollouts: int = 0
    attempts: int = 0
    spans: int = 0
    generations: int = 0
    rewards: int = 0
    blobs: int = 0
    workers: int = 0
    resources: int = 0
    more: bool = False
