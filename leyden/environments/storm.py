"""The error storm: when the first attempts all end unscored for one and the same reason, the rest would too.

Two breakers. Of a task: its first ``window`` finished attempts. Of the whole run: the first ``window`` finished attempts, where they are of
at least two tasks. ``window`` is the concurrency, at least 4. Timeouts, cut answers and crashes of the scorer are reasons like any other.
"""

from __future__ import annotations

from collections import defaultdict

from leyden.environments.attempt import AttemptResult, StopReason

STOPPED = "error-storm"
SMALLEST = 4


def reason_of(attempt: AttemptResult) -> str | None:
    """Why it is unscored, as kinds are told apart; None for one that has a score."""
    if attempt.score is not None:
        return None
    if attempt.stop_reason is StopReason.COMPLETED:
        return f"scorer {attempt.error_type}"
    return attempt.error_type or str(attempt.stop_reason)


class Storm:
    def __init__(self, concurrency: int) -> None:
        self._window = max(concurrency, SMALLEST)
        self._of_task: defaultdict[str, list[str | None]] = defaultdict(list)
        self._first: list[tuple[str, str | None]] = []

    def add(self, task_id: str, attempt: AttemptResult) -> tuple[bool, bool]:
        """One more has finished. Whether its task should be stopped, and whether the run should; each is said once."""
        reason = reason_of(attempt)
        of_task = self._of_task[task_id]
        stop_task = stop_run = False
        if len(of_task) < self._window:
            of_task.append(reason)
            stop_task = len(of_task) == self._window and _uniform(of_task)
        if len(self._first) < self._window:
            self._first.append((task_id, reason))
            several = len({task for task, _ in self._first}) > 1
            stop_run = len(self._first) == self._window and several and _uniform([reason for _, reason in self._first])
        return stop_task, stop_run


def _uniform(reasons: list[str | None]) -> bool:
    return reasons[0] is not None and len(set(reasons)) == 1
