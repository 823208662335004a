"""One attempt at one task, as it ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from leyden.environments.output import RunOutput
from leyden.environments.score import Score


class StopReason(StrEnum):
    COMPLETED = "completed"
    TRUNCATED = "truncated"  # the answer was cut at the token limit: never scored
    ERROR = "error"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    PAUSED = "paused"


@dataclass(frozen=True)
class AttemptResult:
    """``score`` is None where nobody could judge: the attempt did not complete, or the scorer failed. That is unscored, never 0."""

    index: int  # from 0, within its task
    run: RunOutput | None
    score: Score | None
    stop_reason: StopReason
    duration_seconds: float  # the agent and the scorer
    error: str | None = None
    error_type: str | None = None  # the exception's class
    rollout_id: str | None = None  # in the store; ``attempt`` is the number of the store's attempt (a retry has a higher one)
    attempt: int | None = None
    seed: int | None = None
    scorer: str | None = None  # the digest of the scorer that gave the score

    @property
    def passed(self) -> bool:
        return self.score is not None and self.score.passed

    @property
    def tool_call_limit_hit(self) -> bool:
        return self.run is not None and self.run.tool_call_limit_hit
