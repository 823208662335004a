"""What has ended so far, what it comes to, and what is not to be tried any more."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from leyden.environments.attempt import AttemptResult
from leyden.environments.plan import Key, Plan
from leyden.environments.results import EnvironmentRunResult, TaskResult
from leyden.environments.storm import STOPPED, Storm
from leyden.environments.task import Task

if TYPE_CHECKING:
    from leyden.environments.adaptive import AdaptiveK

log = logging.getLogger(__name__)

OnAttemptEnd = Callable[[Task, AttemptResult], None]


class Tally:
    """Fed with attempts in whatever order they end."""

    def __init__(self, plan: Plan, adaptive: AdaptiveK | None = None, on_attempt_end: OnAttemptEnd | None = None) -> None:
        self.plan = plan
        self.open: set[Key] = set(plan.keys)  # neither ended nor given up
        self.n_ended = self.n_scored = self.n_passed = 0
        self._adaptive = adaptive
        self._on_attempt_end = on_attempt_end
        self._storm = Storm(plan.concurrency)
        self._tasks = {task.id or "": task for task in plan.tasks}
        self._ended: dict[str, dict[int, AttemptResult]] = {name: {} for name in self._tasks}
        self._looked_at: dict[str, int] = dict.fromkeys(self._tasks, 0)  # rounds that adaptive k has judged
        self._rounds: dict[str, int] = {}  # of tasks that needed no more
        self._stormed: set[Key] = set()

    def add(self, task_id: str, attempt: AttemptResult) -> set[Key]:
        """One has ended. Returns what need not be tried any more because of it; whoever tries it anyway may say so with ``add``."""
        key = task_id, attempt.index
        if attempt.index in self._ended[task_id]:
            return set()
        self._ended[task_id][attempt.index] = attempt
        self.open.discard(key)
        self._stormed.discard(key)
        self.n_ended += 1
        self.n_scored += attempt.score is not None
        self.n_passed += attempt.passed
        stop_task, stop_run = self._storm.add(task_id, attempt)
        given_up = set(self.open) if stop_run else self._open_of(task_id) if stop_task else set()
        self._stormed |= given_up
        given_up |= self._settled(task_id)
        self._tell(self._tasks[task_id], attempt)
        return given_up

    def give_up(self, keys: Iterable[Key]) -> None:
        """They were not tried, and will not be."""
        self.open.difference_update(keys)

    @property
    def n_planned(self) -> int:
        return sum(self._rounds.get(task_id, self.plan.k) for task_id in self._tasks)

    def attempts_of(self, task_id: str) -> dict[int, AttemptResult]:
        return self._ended[task_id]

    def result(self, duration: float, run_id: str) -> EnvironmentRunResult:
        """By task in the plan's order, and by index. Beyond the round after which adaptive k needed no more, nothing counts: what ran by
        then only because others were slow would make the result a matter of time."""
        task_results = []
        for task_id, task in self._tasks.items():
            rounds = self._rounds.get(task_id)
            ended = self._ended[task_id]
            kept = tuple(ended[index] for index in sorted(ended) if rounds is None or index < rounds)
            task_results.append(TaskResult(task, kept, rounds))
        return EnvironmentRunResult(
            env_name=self.plan.env.name,
            k=self.plan.k,
            env_fingerprint=self.plan.env_fingerprint,
            policy_fingerprint=self.plan.policy_fingerprint,
            task_results=tuple(task_results),
            duration_seconds=duration,
            stopped_early=STOPPED if self._stormed - self.open else None,
            run_id=run_id,
        )

    def _settled(self, task_id: str) -> set[Key]:
        """Judge each round of the task that is now complete; once one was enough, the rest is not needed."""
        ended = self._ended[task_id]
        while self._adaptive is not None and task_id not in self._rounds and self._looked_at[task_id] in ended:
            self._looked_at[task_id] += 1
            first = [ended[index] for index in range(self._looked_at[task_id])]
            if self._adaptive.enough(sum(one.passed for one in first), sum(one.score is not None for one in first)):
                self._rounds[task_id] = len(first)
                return self._open_of(task_id)
        return set()

    def _open_of(self, task_id: str) -> set[Key]:
        return {(task_id, index) for index in range(self.plan.k)} & self.open

    def _tell(self, task: Task, attempt: AttemptResult) -> None:
        if self._on_attempt_end is None:
            return
        try:
            self._on_attempt_end(task, attempt)
        except Exception:  # it is the caller's, and the attempts are worth more
            log.warning("on_attempt_end failed and is not called again", exc_info=True)
            self._on_attempt_end = None
