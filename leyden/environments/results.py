"""What came of a run: attempts by task, and the counts that every number is made of."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, Self

from leyden.environments.attempt import AttemptResult
from leyden.environments.fingerprint import Fingerprint
from leyden.environments.statistics import Interval, pass_at_k, pass_hat_k, wilson, wilson_by_task
from leyden.environments.task import Task
from leyden.errors import NotFound

if TYPE_CHECKING:
    from rich.console import Console

    from leyden.environments.diff import EnvironmentDiff


@dataclass(frozen=True)
class TaskResult:
    """``task`` has its id resolved. ``attempts`` in the order of their index; what was skipped is absent. ``planned``: attempts that were
    wanted of this task, where adaptive k made them fewer than the run's k."""

    task: Task
    attempts: tuple[AttemptResult, ...]
    planned: int | None = None

    @cached_property
    def n_scored(self) -> int:
        return sum(attempt.score is not None for attempt in self.attempts)

    @property
    def n_unscored(self) -> int:
        return len(self.attempts) - self.n_scored

    @cached_property
    def n_passed(self) -> int:
        return sum(attempt.passed for attempt in self.attempts)

    @property
    def pass_rate(self) -> float | None:
        """Of the scored attempts; None where there is none."""
        return self.n_passed / self.n_scored if self.n_scored else None

    @property
    def interval(self) -> Interval:
        """Wilson's, of the pass rate, 95 %."""
        return wilson(self.n_passed, self.n_scored)

    @property
    def mean_value(self) -> float | None:
        return _mean(attempt.score.value for attempt in self.attempts if attempt.score is not None)

    @property
    def in_learning_zone(self) -> bool:
        """It passes sometimes: for each failure there is a success to learn from."""
        return 0 < self.n_passed < self.n_scored


@dataclass(frozen=True)
class EnvironmentRunResult:
    """``stopped_early``: None, or "error-storm" where attempts were skipped because all the first ones failed alike. ``print`` it for the
    grid."""

    env_name: str
    k: int  # attempts planned for each task
    env_fingerprint: Fingerprint
    policy_fingerprint: Fingerprint
    task_results: tuple[TaskResult, ...]
    duration_seconds: float  # on the wall; of one that was resumed, since then
    stopped_early: str | None = None
    run_id: str | None = None  # of the store's run

    def attempts(self) -> Iterator[tuple[Task, AttemptResult]]:
        """Every attempt, task by task, in order. What exports and scorers walk over."""
        for result in self.task_results:
            for attempt in result.attempts:
                yield result.task, attempt

    # -- counts and rates ------------------------------------------------------------------------------------------
    @property
    def n_planned(self) -> int:
        return sum(self.k if result.planned is None else result.planned for result in self.task_results)

    @property
    def n_attempts(self) -> int:
        return sum(len(result.attempts) for result in self.task_results)

    @property
    def n_scored(self) -> int:
        return sum(result.n_scored for result in self.task_results)

    @property
    def n_unscored(self) -> int:
        return self.n_attempts - self.n_scored

    @property
    def n_passed(self) -> int:
        return sum(result.n_passed for result in self.task_results)

    @property
    def coverage(self) -> float | None:
        """Scored over planned: how much of the plan the rates below speak of."""
        return self.n_scored / self.n_planned if self.n_planned else None

    @property
    def pass_rate(self) -> float | None:
        """Of all scored attempts together; None where there is none."""
        return self.n_passed / self.n_scored if self.n_scored else None

    @property
    def mean_value(self) -> float | None:
        return _mean(attempt.score.value for _, attempt in self.attempts() if attempt.score is not None)

    @property
    def interval(self) -> Interval:
        """Of the pass rate, 95 %; the attempts at one task resemble each other, and count for less than as many tasks would."""
        return wilson_by_task((result.n_passed, result.n_scored) for result in self.task_results)

    def pass_at(self, k: int) -> float | None:
        """pass@k: how likely at least one of k attempts passes, as a mean over the tasks with so many scored ones; None without any."""
        return _mean(pass_at_k(one.n_scored, one.n_passed, k) for one in self.task_results if one.n_scored >= k)

    def pass_hat(self, k: int) -> float | None:
        """pass^k: how likely all of k attempts pass, as a mean over the same tasks."""
        return _mean(pass_hat_k(one.n_scored, one.n_passed, k) for one in self.task_results if one.n_scored >= k)

    def stop_reasons(self) -> dict[str, int]:
        """How the attempts ended, most frequent first."""
        return {str(reason): n for reason, n in Counter(attempt.stop_reason for _, attempt in self.attempts()).most_common()}

    def summary(self) -> dict[str, Any]:
        """Plain JSON, with its keys in this order: env, k, n_tasks, n_attempts, n_scored, n_unscored, pass_rate, mean_value,
        env_fingerprint, policy_fingerprint, stopped_early, tasks (id, pass_rate, mean_value, n_unscored, learning_zone), run_id, n_planned,
        coverage, interval (low, high), at_k (k, pass_at, pass_hat: the largest k that all scored tasks have), stop_reasons,
        duration_seconds."""
        at = min((result.n_scored for result in self.task_results if result.n_scored), default=0)
        return {
            "env": self.env_name,
            "k": self.k,
            "n_tasks": len(self.task_results),
            "n_attempts": self.n_attempts,
            "n_scored": self.n_scored,
            "n_unscored": self.n_unscored,
            "pass_rate": self.pass_rate,
            "mean_value": self.mean_value,
            "env_fingerprint": self.env_fingerprint.digest,
            "policy_fingerprint": self.policy_fingerprint.digest,
            "stopped_early": self.stopped_early,
            "tasks": [
                {
                    "id": result.task.id,
                    "pass_rate": result.pass_rate,
                    "mean_value": result.mean_value,
                    "n_unscored": result.n_unscored,
                    "learning_zone": result.in_learning_zone,
                }
                for result in self.task_results
            ],
            "run_id": self.run_id,
            "n_planned": self.n_planned,
            "coverage": self.coverage,
            "interval": [self.interval.low, self.interval.high] if self.n_scored else None,
            "at_k": {"k": at, "pass_at": self.pass_at(at), "pass_hat": self.pass_hat(at)} if at else None,
            "stop_reasons": self.stop_reasons(),
            "duration_seconds": self.duration_seconds,
        }

    def errors(self) -> dict[str, list[str]]:
        """By task, what went wrong, in the order of the attempts. Tasks without errors are absent."""
        found = {one.task.id or "": [attempt.error for attempt in one.attempts if attempt.error] for one in self.task_results}
        return {task_id: errors for task_id, errors in found.items() if errors}

    def rows(self) -> Iterator[dict[str, Any]]:
        """One flat row an attempt, for a table."""
        for task, attempt in self.attempts():
            run, score = attempt.run, attempt.score
            yield {
                "task": task.id,
                "attempt": attempt.index,
                "passed": None if score is None else score.passed,
                "value": None if score is None else score.value,
                "reason": None if score is None else score.reason,
                **{f"value.{name}": number for name, number in (score.dimensions if score else {}).items()},
                "stop_reason": str(attempt.stop_reason),
                "error": attempt.error,
                "content": None if run is None else run.content,
                "seconds": attempt.duration_seconds,
                "input_tokens": None if run is None else run.input_tokens,
                "output_tokens": None if run is None else run.output_tokens,
                "rollout_id": attempt.rollout_id,
            }

    # -- parts of it -----------------------------------------------------------------------------------------------
    def select(self, ids: Iterable[str]) -> Self:
        """The same result with only these tasks, in this order. Raises ``NotFound`` for one that is not in it."""
        by_id = {result.task.id: result for result in self.task_results}
        wanted = list(ids)
        if unknown := [name for name in wanted if name not in by_id]:
            raise NotFound(f"the result has no task {unknown[0]!r}", f"its tasks: {_few(list(map(str, by_id)))}")
        return replace(self, task_results=tuple(by_id[name] for name in wanted))

    def learning_zone(self) -> Self:
        """The same result with only the tasks that pass sometimes."""
        return replace(self, task_results=tuple(result for result in self.task_results if result.in_learning_zone))

    def unsolved(self) -> Self:
        """The same result with only the tasks of which an attempt failed or has no score, for another try:
        ``run_rollouts(env, tasks=result.unsolved().task_results)``."""
        return replace(self, task_results=tuple(one for one in self.task_results if one.n_passed < max(1, len(one.attempts))))

    # -- beside another one ----------------------------------------------------------------------------------------
    def env_matches(self, other: EnvironmentRunResult) -> bool:
        """Both are about the same environment. False if either side is unknown."""
        return self.env_fingerprint.matches(other.env_fingerprint)

    def diff(self, baseline: EnvironmentRunResult) -> EnvironmentDiff:
        """What changed since ``baseline``. Raises ``MismatchError`` that names what of the environment differs."""
        from leyden.environments.diff import compare

        return compare(self, baseline)

    # -- kept ------------------------------------------------------------------------------------------------------
    def save(self, path: str | PathLike[str]) -> None:
        """Write it as JSON Lines: whole, or not at all. Raises ``UsageError`` that names what cannot be written, ``DiskError``."""
        from leyden.environments.saved import save

        save(self, path)

    async def asave(self, path: str | PathLike[str]) -> None:
        """``save`` in a thread."""
        await asyncio.to_thread(self.save, path)

    @classmethod
    def load(cls, path: str | PathLike[str], output_type: Any = None) -> EnvironmentRunResult:
        """What ``save`` wrote. ``output_type``: the type of the answers, where they are no text. Raises ``UsageError``."""
        from leyden.environments.saved import load

        return load(path, output_type)

    @classmethod
    async def aload(cls, path: str | PathLike[str], output_type: Any = None) -> EnvironmentRunResult:
        """``load`` in a thread."""
        return await asyncio.to_thread(cls.load, path, output_type)

    # -- shown -----------------------------------------------------------------------------------------------------
    def __str__(self) -> str:
        from leyden.environments.grid import grid

        return grid(self)

    def print_report(self, only: Literal["failed", "all"] = "failed", attempts: int | None = None, console: Console | None = None) -> None:
        """Print attempt by attempt what happened; at most ``attempts`` of them. For people: its form is no contract."""
        from leyden.environments.report import print_report

        print_report(self, only, attempts, console)

    def print_attempt(self, task_id: str, attempt: int = 1, markdown: bool = False, console: Console | None = None) -> None:
        """Print one attempt whole, its conversation included. ``attempt`` counts from 1. Raises ``NotFound``."""
        from leyden.environments.report import print_attempt

        print_attempt(self, task_id, attempt, markdown, console)


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return sum(found) / len(found) if found else None


def _few(names: list[str]) -> str:
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
