"""Which attempts an export looks at, whatever its format."""

from __future__ import annotations

from collections import Counter

from leyden.environments.attempt import AttemptResult, StopReason
from leyden.environments.exports.options import ExportOptions
from leyden.environments.exports.outcome import Outcome
from leyden.environments.results import TaskResult


class Candidates:
    """Sorts out, and counts, what needs no look into the conversation. ``counts`` and ``unscored`` are of all tasks so far."""

    def __init__(self, options: ExportOptions, learns_from_failures: bool) -> None:
        self.counts = Counter({outcome: 0 for outcome in Outcome})
        self.unscored: Counter[str] = Counter()
        self._options = options
        self._only_passed = options.only_passed and not learns_from_failures

    def of(self, result: TaskResult) -> list[AttemptResult]:
        """The scored attempts of one task that are left."""
        leaked = self._options.exclude is not None and self._options.exclude.find(result.task) is not None
        left = []
        for attempt in result.attempts:
            if attempt.score is None:
                self.unscored["scorer" if attempt.stop_reason is StopReason.COMPLETED else str(attempt.stop_reason)] += 1
            elif outcome := self._refuse(attempt, leaked):
                self.counts[outcome] += 1
            else:
                left.append(attempt)
        return left

    def _refuse(self, attempt: AttemptResult, leaked: bool) -> Outcome | None:
        assert attempt.score is not None
        if self._only_passed and not attempt.passed:
            return Outcome.SKIPPED_FAILED
        if self._options.min_value is not None and attempt.score.value < self._options.min_value:
            return Outcome.SKIPPED_LOW_VALUE
        if leaked:
            return Outcome.SKIPPED_LEAKED
        if attempt.tool_call_limit_hit:
            return Outcome.SKIPPED_LIMIT_HIT
        if attempt.stop_reason is StopReason.TRUNCATED:
            return Outcome.SKIPPED_TRUNCATED
        return Outcome.SKIPPED_NO_TEXT if attempt.run is None else None
