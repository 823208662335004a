"""Preference pairs: an attempt that passed beside one that failed at the same prompt, as TRL's ``DPOTrainer`` reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from leyden.environments.attempt import AttemptResult
from leyden.environments.exports.checks import check_messages, check_tools
from leyden.environments.exports.format import Format, Line, Skip
from leyden.environments.exports.options import ExportKeywords, ExportOptions
from leyden.environments.exports.outcome import Outcome
from leyden.environments.exports.report import ExportReport
from leyden.environments.exports.sides import Side, pairs_of, read_sides
from leyden.environments.exports.source import Source
from leyden.environments.exports.writer import write_export
from leyden.environments.results import EnvironmentRunResult
from leyden.environments.task import Task


def _lines(task: Task, attempts: Sequence[AttemptResult]) -> Iterator[Line | Skip]:
    groups, skipped = read_sides(attempts)
    yield from skipped
    for group in groups:
        paired = 0
        for chosen, rejected in pairs_of(group):
            paired += 2
            if chosen.conversation.completion == rejected.conversation.completion:
                yield from [Skip(Outcome.SKIPPED_UNPAIRED, "the same answer passed and failed")] * 2
            else:
                yield _line(chosen, rejected)
        yield from [Skip(Outcome.SKIPPED_UNPAIRED)] * (len(group) - paired)


def _line(chosen: Side, rejected: Side) -> Line:
    row = {
        "prompt": chosen.conversation.prompt,
        "chosen": chosen.conversation.completion,
        "rejected": rejected.conversation.completion,
        **chosen.conversation.tools_column,
    }
    return Line(row, (chosen.attempt, rejected.attempt), ("chosen", "rejected"))


def _problem(row: Mapping[str, Any]) -> str | None:
    if set(row) - {"tools"} != {"prompt", "chosen", "rejected"}:
        return "a row has prompt, chosen and rejected, perhaps tools, and nothing else"
    if row["chosen"] == row["rejected"]:
        return "nothing is preferred"
    for completion in (row["chosen"], row["rejected"]):
        if problem := check_messages(row["prompt"] + completion):
            return problem
    return check_tools(row, row["prompt"], row["chosen"], row["rejected"])


PREFERENCE = Format("preference", _lines, _problem, learns_from_failures=True)


def to_preference_jsonl(
    result: EnvironmentRunResult | Source | Path | str, path: Path | str, **options: Unpack[ExportKeywords]
) -> ExportReport:
    """Write pairs of one task and one prompt, in which each attempt is used once; see ``to_sft_jsonl``. Only tasks that pass sometimes
    give any."""
    return write_export(result, path, PREFERENCE, ExportOptions(**options))


async def ato_preference_jsonl(
    result: EnvironmentRunResult | Source | Path | str, path: Path | str, **options: Unpack[ExportKeywords]
) -> ExportReport:
    """``to_preference_jsonl`` in a thread."""
    return await asyncio.to_thread(to_preference_jsonl, result, path, **options)
