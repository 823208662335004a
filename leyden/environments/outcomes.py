"""What a policy did at its tasks, as far as a gate asks: the same record for a result of ``run_rollouts`` and for the loop's evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING

from leyden.environments.output import ToolOutcome
from leyden.environments.statistics import Interval, wilson_by_task

if TYPE_CHECKING:
    from leyden.environments.attempt import AttemptResult
    from leyden.environments.results import EnvironmentRunResult


@dataclass(frozen=True)
class Outcome:
    """One attempt. ``passed`` is None where nobody could judge it; any other number is None where nobody took it."""

    passed: bool | None
    dimensions: Mapping[str, float] = field(default_factory=dict)
    tool_failed: bool | None = None  # at least one tool call ended in an error
    tokens: float | None = None  # read and sampled
    tool_calls: float | None = None
    seconds: float | None = None
    cost: float | None = None


@dataclass(frozen=True)
class Outcomes:
    """``tasks``: every planned task, its attempts in order. ``planned``: attempts that were to be made. ``settled``: tasks that were not
    tried any more once enough was known of them (``AdaptiveK``)."""

    name: str
    tasks: Mapping[str, tuple[Outcome, ...]]
    planned: int
    settled: int = 0

    def attempts(self) -> Iterator[Outcome]:
        return (attempt for attempts in self.tasks.values() for attempt in attempts)

    def scored(self) -> list[Outcome]:
        return [attempt for attempt in self.attempts() if attempt.passed is not None]

    @property
    def coverage(self) -> float | None:
        """Scored over planned; None where nothing was planned."""
        return len(self.scored()) / self.planned if self.planned else None

    @property
    def pass_rate(self) -> float | None:
        """Of the scored attempts."""
        scored = self.scored()
        return fmean(bool(attempt.passed) for attempt in scored) if scored else None

    @property
    def interval(self) -> Interval:
        """Of the pass rate, 95 %, right for several attempts a task."""
        return wilson_by_task(self.counts(task) for task in self.tasks)

    def counts(self, task: str) -> tuple[int, int]:
        """Passed and scored attempts."""
        passed = self.passed(task)
        return sum(passed), len(passed)

    def passed(self, task: str) -> list[bool]:
        """Of each scored attempt at the task; empty for one it was not tried at."""
        return [attempt.passed for attempt in self.tasks.get(task, ()) if attempt.passed is not None]

    def failing_where_unscored(self, other: Outcomes) -> Outcomes:
        """As it would be if it had failed wherever it was not scored, and at the tasks that only the other was tried at."""
        missing = {task: (Outcome(False),) * len(attempts) for task, attempts in other.tasks.items() if task not in self.tasks}
        tasks = {
            task: tuple(replace(attempt, passed=bool(attempt.passed)) for attempt in attempts) or (Outcome(False),)
            for task, attempts in self.tasks.items()
        }
        return replace(self, tasks=tasks | missing)

    def mean(self, of: Callable[[Outcome], float | None]) -> float | None:
        """Over the scored attempts that have the number; None where none has."""
        values = [value for attempt in self.scored() if (value := of(attempt)) is not None]
        return fmean(values) if values else None


def outcomes_of(result: EnvironmentRunResult, name: str | None = None) -> Outcomes:
    """``name``: of the policy, in what the gate says."""
    tasks = {str(one.task.id): tuple(map(_outcome, one.attempts)) for one in result.task_results}
    settled = sum(one.planned is not None and one.planned < result.k for one in result.task_results)
    return Outcomes(name or result.env_name, tasks, result.n_planned, settled)


def _outcome(attempt: AttemptResult) -> Outcome:
    run, score = attempt.run, attempt.score
    counted = [count for count in (run.input_tokens, run.output_tokens) if count is not None] if run else []
    return Outcome(
        passed=None if score is None else score.passed,
        dimensions={} if score is None else score.dimensions,
        tool_failed=any(call.outcome is ToolOutcome.ERROR for call in run.tools) if run else None,
        tokens=sum(counted) if counted else None,
        tool_calls=len(run.tools) if run else None,
        seconds=attempt.duration_seconds,
        cost=run.cost if run else None,
    )
