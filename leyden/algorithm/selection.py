"""Which rows are worth learning: the best of what the model itself did, and never what did not pass."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pydantic import Field

from leyden.algorithm.rows import Row
from leyden.types import Record


class SelectionConfig(Record):
    """``min_reward`` is also what "pass" means: half of the usual 1.0, so that partial credit must outweigh its lack."""

    fraction: float = Field(0.5, gt=0, le=1)  # the recipe's: of all candidates, sorted by reward
    min_reward: float = 0.5
    max_per_task: int | None = Field(None, ge=1)
    dedupe: bool = True  # the same tokens twice would count twice
    min_rows: int = Field(8, ge=1)  # fewer teach nothing but themselves
    seed: int = 0


class NothingToLearn(StrEnum):
    """Why an iteration ends without training. Each is a normal ending."""

    NO_ROWS = "no_rows"
    NONE_PASS = "none_pass"
    NO_SPREAD = "no_spread"
    TOO_FEW = "too_few"
    COLLAPSE = "collapse"  # ``collapse.py``, where it is asked to stop


@dataclass(frozen=True)
class SelectionReport:
    """``candidates`` = ``kept`` + ``duplicates`` + ``below_fraction`` + ``below_min_reward`` + ``over_task_cap``."""

    candidates: int
    kept: int  # what passed all of it, even where it is too little to learn from
    duplicates: int
    below_fraction: int
    below_min_reward: int
    over_task_cap: int
    tasks: int  # distinct tasks among the kept
    sampled_tokens: int  # labelled tokens among the kept: what the training child must report
    lowest_reward: float | None
    highest_reward: float | None


@dataclass(frozen=True)
class Selection:
    rows: list[Row]  # in training order; empty when there is nothing to learn
    report: SelectionReport
    nothing_to_learn: NothingToLearn | None = None
    sentence: str | None = None  # why, for a person


def select(rows: Sequence[Row], config: SelectionConfig, rewards: Sequence[float] | None = None) -> Selection:
    """Shuffle by seed, sort by reward, keep the top fraction at or above ``min_reward``.

    ``rewards``: of every scored attempt, those included whose rows were refused (default: the rows' own). Spread is judged on them.
    """
    rewards = [row.reward for row in rows] if rewards is None else rewards
    rng = random.Random(config.seed)
    ranked = list(rows)
    rng.shuffle(ranked)
    ranked.sort(key=lambda row: row.reward, reverse=True)

    unique = _without_duplicates(ranked) if config.dedupe else ranked
    top = unique[: max(1, int(len(unique) * config.fraction))]
    passing = [row for row in top if row.reward >= config.min_reward]
    kept = _capped(passing, config.max_per_task)
    rng.shuffle(kept)

    reason, sentence = _nothing_to_learn(kept, rows, rewards, config)
    report = SelectionReport(
        candidates=len(rows),
        kept=len(kept),
        duplicates=len(ranked) - len(unique),
        below_fraction=len(unique) - len(top),
        below_min_reward=len(top) - len(passing),
        over_task_cap=len(passing) - len(kept),
        tasks=len({row.task for row in kept}),
        sampled_tokens=sum(row.sampled_tokens for row in kept),
        lowest_reward=min(rewards, default=None),
        highest_reward=max(rewards, default=None),
    )
    return Selection([] if reason else kept, report, reason, sentence)


def _without_duplicates(rows: Sequence[Row]) -> list[Row]:
    """The first of each, in order, so the best-rewarded one stays."""
    first: dict[tuple[tuple[int, ...], tuple[int, ...]], Row] = {}
    for row in rows:
        first.setdefault((tuple(row.input_ids), tuple(row.labels)), row)
    return list(first.values())


def _capped(rows: Sequence[Row], cap: int | None) -> list[Row]:
    if cap is None:
        return list(rows)
    taken: Counter[str] = Counter()
    kept = []
    for row in rows:
        if taken[row.task] < cap:
            taken[row.task] += 1
            kept.append(row)
    return kept


def _nothing_to_learn(
    kept: Sequence[Row], rows: Sequence[Row], rewards: Sequence[float], config: SelectionConfig
) -> tuple[NothingToLearn | None, str | None]:
    if rewards and max(rewards) < config.min_reward:
        best = max(rewards)
        return NothingToLearn.NONE_PASS, f"none of {len(rewards)} attempts reached a reward of {config.min_reward:g} (best: {best:g})"
    if not rows:
        return NothingToLearn.NO_ROWS, "no attempt left a row to learn from"
    if min(rewards) == max(rewards):
        return NothingToLearn.NO_SPREAD, f"all {len(rewards)} attempts got the same reward, {rewards[0]:g}: none is better than another"
    if len(kept) < config.min_rows:
        return NothingToLearn.TOO_FEW, f"only {len(kept)} rows were kept, and fewer than {config.min_rows} teach nothing but themselves"
    return None, None
