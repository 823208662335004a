"""KTO labels: every attempt by itself, passed or failed, as TRL's ``KTOTrainer`` reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

from leyden.environments.attempt import AttemptResult
from leyden.environments.exports.checks import check_messages, check_tools
from leyden.environments.exports.conversation import tool_conversation
from leyden.environments.exports.format import Format, one_by_one
from leyden.environments.exports.options import ExportKeywords, ExportOptions
from leyden.environments.exports.report import ExportReport
from leyden.environments.exports.source import Source
from leyden.environments.exports.writer import write_export
from leyden.environments.results import EnvironmentRunResult
from leyden.environments.task import Task


def _row(task: Task, attempt: AttemptResult) -> dict[str, Any]:
    assert attempt.run is not None
    conversation = tool_conversation(attempt.run)
    return {
        "prompt": conversation.prompt,
        "completion": conversation.completion,
        "label": attempt.passed,
        **conversation.tools_column,
    }


def _problem(row: Mapping[str, Any]) -> str | None:
    if set(row) - {"tools"} != {"prompt", "completion", "label"} or not isinstance(row["label"], bool):
        return "a row has prompt, completion and a label that is true or false, perhaps tools, and nothing else"
    return check_messages(row["prompt"] + row["completion"]) or check_tools(row, row["prompt"], row["completion"])


KTO = Format("kto", one_by_one(_row), _problem, learns_from_failures=True)


def to_kto_jsonl(result: EnvironmentRunResult | Source | Path | str, path: Path | str, **options: Unpack[ExportKeywords]) -> ExportReport:
    """Write every scored conversation with whether it passed; see ``to_sft_jsonl``."""
    return write_export(result, path, KTO, ExportOptions(**options))


async def ato_kto_jsonl(
    result: EnvironmentRunResult | Source | Path | str, path: Path | str, **options: Unpack[ExportKeywords]
) -> ExportReport:
    """``to_kto_jsonl`` in a thread."""
    return await asyncio.to_thread(to_kto_jsonl, result, path, **options)
