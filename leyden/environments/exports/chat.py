"""Chat JSONL with tools: whole conversations with their calls and results, and the tools as they were on offer.

What OpenAI's fine-tuning reads (platform.openai.com/docs/guides/fine-tuning) and TRL's ``SFTTrainer`` (columns ``messages``, ``tools``).
Leaving the offered tools out was measured to hurt: the model then learns calls whose schema it never saw.
"""

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
    return {"messages": conversation.messages, **conversation.tools_column}


def _problem(row: Mapping[str, Any]) -> str | None:
    if set(row) - {"messages", "tools"} or "messages" not in row:
        return "a row has messages, perhaps tools, and nothing else"
    return check_messages(row["messages"]) or check_tools(row, row["messages"])


CHAT = Format("chat", one_by_one(_row), _problem)


def to_chat_jsonl(result: EnvironmentRunResult | Source | Path | str, path: Path | str, **options: Unpack[ExportKeywords]) -> ExportReport:
    """Write the passing conversations, tools included; see ``to_sft_jsonl``. A trace that does not say who said what is refused, with a
    reason in the report."""
    return write_export(result, path, CHAT, ExportOptions(**options))


async def ato_chat_jsonl(
    result: EnvironmentRunResult | Source | Path | str, path: Path | str, **options: Unpack[ExportKeywords]
) -> ExportReport:
    """``to_chat_jsonl`` in a thread."""
    return await asyncio.to_thread(to_chat_jsonl, result, path, **options)
