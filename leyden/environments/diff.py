"""Two results of one environment, side by side: what got better, what got worse, and what chance alone would do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from leyden.environments.compare import compare_clustered
from leyden.environments.fingerprint import MismatchError
from leyden.environments.grid import padded, widest
from leyden.environments.results import EnvironmentRunResult, TaskResult
from leyden.environments.statistics import PairedComparison

NOISE = 1e-9  # differences below are rounding
ALPHA = 0.05  # of the verdict: one-sided


class Direction(StrEnum):
    SAME = ""
    IMPROVED = "improved"
    REGRESSED = "regressed"


@dataclass(frozen=True)
class TaskDiff:
    """One task in both results. ``delta``: of the pass rates, None where one of them has none."""

    id: str
    baseline: tuple[int, int]  # passed, scored
    current: tuple[int, int]
    delta: float | None
    direction: Direction


@dataclass(frozen=True)
class EnvironmentDiff:
    """``comparison`` is over the tasks that both scored: current minus baseline, clustered by task."""

    rows: tuple[TaskDiff, ...]
    unmatched_current: tuple[str, ...]  # only in the one
    unmatched_baseline: tuple[str, ...]  # only in the other
    policy_changed: bool  # or not known to be the same
    policy_components: tuple[str, ...]  # that differ, or of which one side knows nothing
    k: tuple[int, int]  # baseline, current
    comparison: PairedComparison
    coverage: tuple[float | None, float | None]  # baseline, current

    @property
    def improved(self) -> tuple[str, ...]:
        return tuple(row.id for row in self.rows if row.direction is Direction.IMPROVED)

    @property
    def regressed(self) -> tuple[str, ...]:
        return tuple(row.id for row in self.rows if row.direction is Direction.REGRESSED)

    @property
    def verdict(self) -> str:
        """ "better" or "worse" beyond chance (one-sided p < 0.05), else "no difference beyond chance"."""
        if self.comparison.p_higher < ALPHA:
            return "better"
        return "worse" if self.comparison.p_lower < ALPHA else "no difference beyond chance"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        test = self.comparison
        return {
            "verdict": self.verdict,
            "difference": test.difference,
            "interval": [test.interval.low, test.interval.high],
            "p_higher": test.p_higher,
            "p_lower": test.p_lower,
            "tasks": test.pairs,
            "k": {"baseline": self.k[0], "current": self.k[1]},
            "coverage": {"baseline": self.coverage[0], "current": self.coverage[1]},
            "policy_changed": self.policy_changed,
            "policy_components": list(self.policy_components),
            "improved": list(self.improved),
            "regressed": list(self.regressed),
            "unmatched_current": list(self.unmatched_current),
            "unmatched_baseline": list(self.unmatched_baseline),
            "rows": [
                {
                    "id": row.id,
                    "baseline": _fraction(row.baseline),
                    "current": _fraction(row.current),
                    "baseline_rate": _rate(row.baseline),
                    "current_rate": _rate(row.current),
                    "delta": row.delta,
                    "status": str(row.direction),
                }
                for row in self.rows
            ],
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        width = widest(row.id for row in self.rows)
        for row in self.rows:
            delta = "    -" if row.delta is None else f"{row.delta:+.2f}"
            yield f"  {padded(row.id, width)}  {_fraction(row.baseline):>7} → {_fraction(row.current):<7} {delta}  {row.direction}".rstrip()
        for names, whose in ((self.unmatched_current, "current"), (self.unmatched_baseline, "baseline")):
            if names:
                yield f"only in the {whose} result: {', '.join(names)}"
        if self.k[0] != self.k[1]:
            yield f"k differs: {self.k[0]} in the baseline, {self.k[1]} now; rates of few attempts move more"
        changed = f"changed ({', '.join(self.policy_components)})" if self.policy_changed else "unchanged"
        test = self.comparison
        low, high = test.interval.low, test.interval.high
        yield f"policy {changed}; {len(self.improved)} improved, {len(self.regressed)} regressed"
        yield (
            f"pass rate {test.difference:+.2f} over {test.pairs} tasks (95 % {low:+.2f} to {high:+.2f}; one-sided p = {test.p_higher:.2g} "
            f"for better, {test.p_lower:.2g} for worse): {self.verdict}"
        )


def compare(current: EnvironmentRunResult, baseline: EnvironmentRunResult) -> EnvironmentDiff:
    """See ``EnvironmentRunResult.diff``."""
    if not current.env_matches(baseline):
        changed = current.env_fingerprint.difference(baseline.env_fingerprint)
        raise MismatchError(
            f"the two results are not known to be of the same environment: {', '.join(changed)} differ",
            "compare results of one environment; what has no digest equals nothing, give it a version",
        )
    before = {one.task.id or "": one for one in baseline.task_results}
    now = {one.task.id or "": one for one in current.task_results}
    both = [task_id for task_id in now if task_id in before]
    return EnvironmentDiff(
        rows=tuple(_row(task_id, before[task_id], now[task_id]) for task_id in both),
        unmatched_current=tuple(task_id for task_id in now if task_id not in before),
        unmatched_baseline=tuple(task_id for task_id in before if task_id not in now),
        policy_changed=not current.policy_fingerprint.matches(baseline.policy_fingerprint),
        policy_components=current.policy_fingerprint.difference(baseline.policy_fingerprint),
        k=(baseline.k, current.k),
        comparison=compare_clustered((_passes(before[task_id]), _passes(now[task_id])) for task_id in both),
        coverage=(baseline.coverage, current.coverage),
    )


def _row(task_id: str, before: TaskResult, now: TaskResult) -> TaskDiff:
    old, new = before.pass_rate, now.pass_rate
    delta = None if old is None or new is None else new - old
    direction = Direction.SAME
    if delta is not None and abs(delta) > NOISE:
        direction = Direction.IMPROVED if delta > 0 else Direction.REGRESSED
    return TaskDiff(task_id, (before.n_passed, before.n_scored), (now.n_passed, now.n_scored), delta, direction)


def _passes(one: TaskResult) -> list[bool]:
    return [attempt.passed for attempt in one.attempts if attempt.score is not None]


def _fraction(counts: tuple[int, int]) -> str:
    return f"{counts[0]}/{counts[1]}"


def _rate(counts: tuple[int, int]) -> float | None:
    return counts[0] / counts[1] if counts[1] else None
