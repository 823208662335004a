"""The records every room shares.

Instants are integer microseconds since the Unix epoch, read from the store's one clock; durations are float seconds.
Ids match ``ID_PATTERN``. Every record is immutable: a change is a new record that the store hands out.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field

from leyden.audit import Audit
from leyden.record import ID_PATTERN as ID_PATTERN
from leyden.record import Id as Id
from leyden.record import Record as Record
from leyden.record import ShortText as ShortText

DEFAULT_QUEUE = "default"


class Mode(StrEnum):
    """What a rollout is for: its data may be learnt from, tunes choices, or measures."""

    TRAIN = "train"
    VAL = "val"
    TEST = "test"


class RolloutState(StrEnum):
    QUEUED = "queued"
    SCHEDULED = "scheduled"  # a retry that waits for its time
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self in (RolloutState.SUCCEEDED, RolloutState.FAILED, RolloutState.CANCELLED)


class AttemptState(StrEnum):
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    LOST = "lost"
    CANCELLED = "cancelled"
    RELEASED = "released"  # handed back unharmed by a runner that stops; does not count against max_attempts


class FailureKind(StrEnum):
    """Why an attempt ended without success. Each kind has its own retry rule; none of them is a reward of 0."""

    AGENT = "agent"
    TOOL = "tool"
    INFRASTRUCTURE = "infrastructure"
    TIMEOUT = "timeout"
    LOST = "lost"
    CANCELLED = "cancelled"
    VERIFIER = "verifier"


class RolloutConfig(Record):
    """How the attempts of one rollout are run."""

    attempt_timeout: float = Field(1800.0, gt=0, le=86_400)  # seconds, from claim to end
    max_attempts: int = Field(3, ge=1, le=100)  # failed ones; those lost or released do not count
    max_lost: int = Field(3, ge=1, le=100)  # attempts whose runner went away
    retry_on: tuple[FailureKind, ...] = (FailureKind.INFRASTRUCTURE, FailureKind.TOOL, FailureKind.LOST)
    retry_delay: float = Field(1.0, ge=0, le=3600)  # seconds; full jitter over delay * 2**(failures - 1)
    retry_delays: dict[FailureKind, Annotated[float, Field(ge=0, le=3600)]] = Field(default_factory=dict)  # instead, for these kinds


class Episode(Record):
    """What makes a rollout replayable: the same class, spec and seed is the same task instance."""

    environment_class_id: ShortText | None = None
    episode_spec_id: ShortText | None = None  # equal for all K samples of one task and seed
    episode_id: ShortText | None = None  # spec + rollout
    seed: int | None = None


class NewRollout(Record):
    """A task to queue. ``idempotency_key`` makes a repeated enqueue return the first rollout."""

    input: Any
    mode: Mode = Mode.TRAIN
    queue: Id = DEFAULT_QUEUE
    priority: int = Field(0, ge=-1_000_000, le=1_000_000)  # lower runs first
    delay: float = Field(0.0, ge=0, le=366 * 86_400)  # seconds before it may be claimed
    run_id: Id | None = None
    iteration: int | None = Field(None, ge=0)
    resources_id: Id | None = None  # None: the latest version at the claim
    config: RolloutConfig = RolloutConfig()
    episode: Episode = Episode()
    group: ShortText | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    idempotency_key: str | None = Field(None, max_length=256)


class Rollout(Record):
    """A queued task and what has become of it."""

    id: Id
    input: Any
    mode: Mode
    queue: Id = DEFAULT_QUEUE
    priority: int
    state: RolloutState
    run_id: Id | None = None
    iteration: int | None = None
    resources_id: Id | None = None
    config: RolloutConfig
    episode: Episode = Episode()
    group: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    attempt: int = 0  # number of the latest attempt; 0 before the first claim
    failures: int = 0  # attempts that failed, since it was queued or requeued
    lost: int = 0  # attempts whose runner went away, since then
    released: int = 0  # attempts that were handed back unharmed: they do not count
    available_at: int | None = None  # of a scheduled one
    failure: FailureKind | None = None  # of the attempt that made it final
    error: str | None = None
    created_at: int
    finished_at: int | None = None
    revision: int = 0  # grows with every change: what changed since another one is ``list_rollouts(changed_after=...)``


class Attempt(Record):
    rollout_id: Id
    number: int
    state: AttemptState
    failure: FailureKind | None = None
    error: str | None = None
    worker_id: str
    resources_id: Id | None = None
    started_at: int
    ended_at: int | None = None


class LeaseRef(Record):
    """What a holder must show with every write. ``token`` is the fence: a stale one gets ``LeaseLost``."""

    rollout_id: Id
    attempt: int
    token: int


class LLM(Record):
    """An OpenAI-compatible endpoint. ``proxied``: the api key is the attempt's own, put in by the runner at the claim."""

    kind: Literal["llm"] = "llm"
    endpoint: str  # base URL ending in /v1
    model: str
    api_key: str | None = Field(None, repr=False)
    sampling_parameters: dict[str, Any] = Field(default_factory=dict)
    proxied: bool = False
    deployment: str | None = None  # which entry of the proxy's model list answers: pins an attempt to one checkpoint
    checkpoint: str | None = None  # e.g. "version_1"


class PromptTemplate(Record):
    """A prompt with ``{named}`` gaps."""

    kind: Literal["prompt_template"] = "prompt_template"
    template: str
    engine: Literal["f-string"] = "f-string"

    def format(self, **values: Any) -> str:
        return self.template.format(**values)


class JSONResource(Record):
    kind: Literal["json"] = "json"
    value: Any


Resource = Annotated[LLM | PromptTemplate | JSONResource, Field(discriminator="kind")]


class Resources(Record):
    """One immutable version of named resources. Rollouts are claimed for it only while ``alive``."""

    id: Id
    version: int
    resources: dict[str, Resource]
    alive: bool = True  # False once its lease ran out or it was retired: nothing is claimed for it
    created_at: int


class Lease(Record):
    """A claimed rollout: its task, the fence, the attempt's own key for the proxy, and the resources it is pinned to."""

    ref: LeaseRef
    rollout: Rollout
    resources: Resources | None = None
    key: str = Field(repr=False)  # random, stored hashed; binds LLM calls to this attempt
    lease_seconds: float  # beat well within this
    timeout_seconds: float  # until the attempt's deadline


class Verdict(StrEnum):
    """The store's answer to one heartbeat."""

    HELD = "held"
    LOST = "lost"  # stop: somebody else has it, or it is final
    CANCEL = "cancel"  # stop and report cancelled


class Span(Record):
    """One traced operation, named and shaped as OpenTelemetry does. Times are the tracer's own nanoseconds."""

    trace_id: str = Field(pattern=r"^[0-9a-f]{32}$")
    span_id: str = Field(pattern=r"^[0-9a-f]{16}$")
    parent_id: str | None = Field(None, pattern=r"^[0-9a-f]{16}$")
    rollout_id: Id | None = None
    attempt: int | None = None
    name: str
    kind: str = "internal"
    start_ns: int
    end_ns: int
    status: str = "unset"  # unset | ok | error
    status_message: str | None = None
    attributes: dict[str, Any] = Field(default_factory=dict)
    events: list[dict[str, Any]] = Field(default_factory=list)
    links: list[dict[str, Any]] = Field(default_factory=list)
    resource: dict[str, Any] = Field(default_factory=dict)  # attributes of the process that sent it
    scope: str | None = None  # the instrumentation library
    # All below is the store's to fill: how it arrived, and what the normaliser of that version read out of the attributes.
    late: bool = False  # arrived under a lease that was already lost
    received_at: int | None = None
    normalizer: int | None = None  # None: stored before there was one
    operation: str | None = None  # chat, execute_tool, invoke_agent, ... (OpenTelemetry's names)
    model: str | None = None
    provider: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None  # of the input tokens
    reasoning_tokens: int | None = None  # of the output tokens
    finish_reason: str | None = None
    tool_name: str | None = None
    agent_name: str | None = None
    conversation_id: str | None = None
    error_type: str | None = None


class Generation(Record):
    """One choice of one LLM call, exactly as the engine saw and sampled it.

    ``prompt_token_ids`` has shape [P], ``response_token_ids`` [R] (the sampled stop token included), ``logprobs`` [R],
    natural log, before temperature. ``call_id`` joins the choices of one call with ``n > 1``.
    """

    id: Id
    call_id: Id
    rollout_id: Id
    attempt: int
    choice: int = 0
    model: str
    deployment: str | None = None
    checkpoint: str | None = None
    status: Literal["ok", "error", "disconnected"] = "ok"
    error: str | None = None
    prompt_token_ids: list[int] | None = None
    response_token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    sampling: dict[str, Any] = Field(default_factory=dict)  # the parameters in effect
    finish_reason: str | None = None
    prompt_tokens: int | None = None  # the engine's own usage
    completion_tokens: int | None = None
    request: dict[str, Any] = Field(default_factory=dict)
    response: dict[str, Any] | None = None  # the message, not the envelope
    started_at: int
    latency: float = Field(allow_inf_nan=False)  # seconds until the last byte
    audit: Audit | None = None  # None: recorded before there was one, or through an engine that gives no ids
    late: bool = False


class Rejection(Record):
    """What was sent and not stored, counted by ``reason``, with the latest example."""

    source: str  # e.g. "otlp"
    reason: str
    n: int
    example: str
    last_at: int


class Reward(Record):
    """One number about an attempt. ``position`` is a generation id, a span id, or "end"."""

    name: str = Field("reward", min_length=1, max_length=128)
    value: float = Field(allow_inf_nan=False)
    source: str = Field("agent", max_length=128)  # who said so: the agent, or a verifier's digest
    position: str = Field("end", max_length=64)
    rollout_id: Id | None = None  # filled by the store
    attempt: int | None = None
    created_at: int | None = None


class Worker(Record):
    id: Id  # new at every start of a runner process: a name reused is not a fence
    name: str
    pid: int | None = None
    host: str | None = None
    capacity: int = 1
    running: int = 0
    started_at: int
    last_seen_at: int
    stopped_at: int | None = None


class RunState(StrEnum):
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Run(Record):
    """One training run. ``epoch`` is the driver's fence: a second driver bumps it, and the older one gets ``LeaseLost``."""

    id: Id
    state: RunState
    epoch: int
    config: dict[str, Any] = Field(default_factory=dict)
    summary: dict[str, Any] | None = None
    created_at: int
    finished_at: int | None = None


class Counts(Record):
    """Rollouts by state, and the failed ones by why, kept by the store with each write, never by a scan."""

    queued: int = 0
    scheduled: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    failures: dict[FailureKind, int] = Field(default_factory=dict)  # the failed ones, by the kind that made them final

    @property
    def total(self) -> int:
        return self.queued + self.scheduled + self.running + self.final

    @property
    def final(self) -> int:
        return self.succeeded + self.failed + self.cancelled

    @property
    def lost(self) -> int:
        """Those among the failed ones whose runners went away too often."""
        return self.failures.get(FailureKind.LOST, 0)


class Unset(StrEnum):
    """For an argument whose None has a meaning of its own."""

    UNSET = "unset"


class Queue(Record):
    """A queue by name. Any name is a queue; only a paused or limited one is kept as a record."""

    name: Id
    paused: bool = False  # nothing is claimed from it
    max_running: int | None = None  # attempts at once, over all workers
    counts: Counts = Counts()


class AttemptBinding(Record):
    """What an attempt key stands for, as the proxy asks the store."""

    ref: LeaseRef
    run_id: Id | None = None
    iteration: int | None = None
    mode: Mode
    resources: Resources | None = None


class Triplet(Record):
    """One call as training sees it: prompt ids [P], response ids [R], logprobs [R], and where they came from."""

    prompt_ids: list[int]
    response_ids: list[int]
    logprobs: list[float] | None = None
    reward: float | None = None
    finish_reason: str | None = None
    stops: tuple[str | int, ...] = ()  # texts and token ids at which the request itself asked to stop
    rollout_id: Id
    attempt: int
    generation_id: Id
    checkpoint: str | None = None
