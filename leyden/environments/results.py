"""What came of a run: attempts by task, and the counts that every number is made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from leyden.environments.attempt import AttemptResult
from leyden.environments.fingerprint import Fingerprint
from leyden.environments.task import Task


@dataclass(frozen=True)
class TaskResult:
    """``task`` has its id resolved. ``attempts`` in the order of their index; what was skipped is absent."""

    task: Task
    attempts: tuple[AttemptResult, ...]

    @property
    def n_scored(self) -> int:
        return sum(attempt.score is not None for attempt in self.attempts)

    @property
    def n_unscored(self) -> int:
        return len(self.attempts) - self.n_scored

    @property
    def n_passed(self) -> int:
        return sum(attempt.passed for attempt in self.attempts)

    @property
    def pass_rate(self) -> float | None:
        """Of the scored attempts; None where there is none."""
        return self.n_passed / self.n_scored if self.n_scored else None

    @property
    def mean_value(self) -> float | None:
        values = [attempt.score.value for attempt in self.attempts if attempt.score is not None]
        return sum(values) / len(values) if values else None

    @property
    def in_learning_zone(self) -> bool:
        """It passes sometimes: for each failure there is a success to learn from."""
        return 0 < self.n_passed < self.n_scored


@dataclass(frozen=True)
class EnvironmentRunResult:
    env_name: str
    k: int  # attempts planned for each task
    env_fingerprint: Fingerprint
    policy_fingerprint: Fingerprint
    task_results: tuple[TaskResult, ...]
    duration_seconds: float
    stopped_early: str | None = None
    run_id: str | None = None  # of the store's run

    def attempts(self) -> Iterator[tuple[Task, AttemptResult]]:
        """Every attempt, task by task, in order. What exports and scorers walk over."""
        for result in self.task_results:
            for attempt in result.attempts:
                yield result.task, attempt

    def learning_zone(self) -> EnvironmentRunResult:
        """The same result with only the tasks that pass sometimes."""
        return replace(self, task_results=tuple(result for result in self.task_results if result.in_learning_zone))
