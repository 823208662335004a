"""Signs that a model stops learning from itself and begins to repeat itself. Looked for in every selection, before anything is trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Literal

from pydantic import Field

from leyden.algorithm.rows import IGNORED, Row
from leyden.types import Record


class CollapseConfig(Record):
    """Thresholds; ``action``: say so, or end the run there as with nothing to learn."""

    action: Literal["warn", "stop"] = "warn"
    min_reward_spread: float = Field(0.02, ge=0)  # standard deviation over the scored attempts
    min_distinct: float = Field(0.05, ge=0, le=1)  # different answers, as a share of the attempts that left a row
    max_length_drift: float = Field(2.0, ge=1)  # mean sampled tokens, against the run's first collection: so many times more, or fewer
    max_task_share: float = Field(0.25, gt=0, le=1)  # of the selected rows, those of one task


@dataclass(frozen=True)
class Guard:
    """``value`` is None where there was nothing to measure."""

    name: str
    value: float | None
    threshold: float
    tripped: bool
    message: str


def check_collapse(
    rewards: Sequence[float], candidates: Sequence[Row], selected: Sequence[Row], first_length: float | None, config: CollapseConfig
) -> list[Guard]:
    """All four guards. ``rewards``: of every scored attempt. ``first_length``: ``mean_length`` of the run's first collection."""
    return [
        _spread(rewards, config.min_reward_spread),
        _distinct(candidates, config.min_distinct),
        _drift(mean_length(candidates), first_length, config.max_length_drift),
        _share(selected, config.max_task_share),
    ]


def mean_length(rows: Sequence[Row]) -> float | None:
    """Sampled tokens of a row; None without rows."""
    return fmean(row.sampled_tokens for row in rows) if rows else None


def _spread(rewards: Sequence[float], least: float) -> Guard:
    if not rewards:
        return Guard("reward spread", None, least, False, "no attempt was scored")
    spread = pstdev(rewards)
    message = f"rewards of {len(rewards)} attempts spread by {spread:.3f}"
    return _guard("reward spread", spread, least, spread < least, message, "hardly any attempt is better than another: take harder tasks")


def _distinct(rows: Sequence[Row], least: float) -> Guard:
    if not rows:
        return Guard("distinct answers", None, least, False, "no attempt left a row")
    answers = {tuple(label for label in row.labels if label != IGNORED) for row in rows}
    share = len(answers) / len(rows)
    message = f"{len(answers)} different answers in {len(rows)} rows"
    return _guard("distinct answers", share, least, share < least, message, "the model repeats itself: go back to an earlier version")


def _drift(now: float | None, first: float | None, most: float) -> Guard:
    if not now or not first:
        return Guard("length drift", None, most, False, "there is nothing to compare the length of answers with")
    ratio = now / first
    message = f"{now:.0f} sampled tokens a row, {first:.0f} at the start of the run"
    return _guard("length drift", ratio, most, not 1 / most <= ratio <= most, message, "answers change in kind: read some of them")


def _share(rows: Sequence[Row], most: float) -> Guard:
    if not rows:
        return Guard("rows of one task", None, most, False, "no row was selected")
    task, count = Counter(row.task for row in rows).most_common(1)[0]
    share = count / len(rows)
    message = f"{count} of {len(rows)} selected rows are of task {task}"
    return _guard("rows of one task", share, most, share > most and count > 1, message, "set selection.max_per_task, or take more tasks")


def _guard(name: str, value: float, threshold: float, tripped: bool, message: str, advice: str) -> Guard:
    bound = f" (threshold {threshold:g}): {advice}" if tripped else ""
    return Guard(name, round(value, 4), threshold, tripped, message + bound)
