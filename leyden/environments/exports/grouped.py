"""Groups with rewards: all that was answered to one prompt, and how much better than the others each answer was."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, Unpack

from leyden.environments.attempt import AttemptResult
from leyden.environments.exports.checks import check_messages, check_tools
from leyden.environments.exports.format import Format, Line, Skip
from leyden.environments.exports.options import ExportKeywords, ExportOptions
from leyden.environments.exports.outcome import Outcome
from leyden.environments.exports.report import ExportReport
from leyden.environments.exports.sides import read_sides
from leyden.environments.exports.source import Source
from leyden.environments.exports.writer import write_export
from leyden.environments.results import EnvironmentRunResult
from leyden.environments.task import Task


def advantages_of(rewards: Sequence[float]) -> list[float]:
    """(reward − mean) / standard deviation of the group (arXiv 2402.03300, 4.1.2); all 0 where all rewards are equal."""
    mean, spread = fmean(rewards), pstdev(rewards)
    return [(reward - mean) / spread if spread else 0.0 for reward in rewards]


def _lines(task: Task, attempts: Sequence[AttemptResult]) -> Iterator[Line | Skip]:
    groups, skipped = read_sides(attempts)
    yield from skipped
    for group in groups:
        if len(group) == 1:
            yield Skip(Outcome.SKIPPED_UNPAIRED)
            continue
        rewards = [side.attempt.score.value for side in group if side.attempt.score is not None]
        row = {
            "task": task.id,
            "prompt": group[0].conversation.prompt,
            "completions": [side.conversation.completion for side in group],
            "rewards": rewards,
            "advantages": advantages_of(rewards),
            **group[0].conversation.tools_column,
        }
        yield Line(row, tuple(side.attempt for side in group), tuple(str(place) for place in range(len(group))))


def _problem(row: Mapping[str, Any]) -> str | None:
    if set(row) - {"tools"} != {"task", "prompt", "completions", "rewards", "advantages"}:
        return "a row has task, prompt, completions, rewards and advantages, perhaps tools, and nothing else"
    completions, rewards, advantages = row["completions"], row["rewards"], row["advantages"]
    if not len(completions) == len(rewards) == len(advantages) >= 2:
        return "a group has two completions or more, with a reward and an advantage each"
    if not all(isinstance(number, float) for number in [*rewards, *advantages]) or abs(sum(advantages)) > 1e-6 * len(advantages):
        return "rewards and advantages are numbers, and the advantages of a group are 0 together"
    for completion in completions:
        if problem := check_messages(row["prompt"] + completion):
            return problem
    return check_tools(row, row["prompt"], *completions)


GROUPED = Format("grouped", _lines, _problem, learns_from_failures=True)


def to_grouped_jsonl(
    result: EnvironmentRunResult | Source | Path | str, path: Path | str, **options: Unpack[ExportKeywords]
) -> ExportReport:
    """Write one line for each prompt of a task, with all its scored completions; see ``to_sft_jsonl``."""
    return write_export(result, path, GROUPED, ExportOptions(**options))


async def ato_grouped_jsonl(
    result: EnvironmentRunResult | Source | Path | str, path: Path | str, **options: Unpack[ExportKeywords]
) -> ExportReport:
    """``to_grouped_jsonl`` in a thread."""
    return await asyncio.to_thread(to_grouped_jsonl, result, path, **options)
