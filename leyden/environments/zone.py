"""How hard a task is for a policy, in bands. What is learnt from most lies in the middle: it fails about as often as it passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum

from leyden.environments.results import TaskResult

LOW, HIGH = 0.3, 0.7  # pass rates that the zone lies between, both included


class Band(StrEnum):
    NEVER = "never"
    HARD = "hard"
    ZONE = "zone"
    EASY = "easy"
    ALWAYS = "always"
    UNSCORED = "unscored"  # nobody knows


def band_of(passed: int, scored: int, low: float = LOW, high: float = HIGH) -> Band:
    """Of a task that passed so many of its scored attempts. The learning zone (passes sometimes) is HARD, ZONE and EASY together."""
    if scored == 0:
        return Band.UNSCORED
    if passed in (0, scored):
        return Band.ALWAYS if passed else Band.NEVER
    rate = passed / scored
    return Band.HARD if rate < low else Band.EASY if rate > high else Band.ZONE


def count_bands(results: Iterable[TaskResult], low: float = LOW, high: float = HIGH) -> dict[Band, int]:
    """Every band, in order, with its number of tasks."""
    found = Counter(band_of(result.n_passed, result.n_scored, low, high) for result in results)
    return {band: found[band] for band in Band}
