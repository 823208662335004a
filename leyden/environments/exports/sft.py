"""Strict text JSONL: one conversation a line, with system, user and assistant, and no other key.

The core that every consumer of fine-tuning data takes: some refuse a whole file for one key that they do not know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

from leyden.environments.attempt import AttemptResult
from leyden.environments.exports.conversation import text_messages
from leyden.environments.exports.format import Format, one_by_one
from leyden.environments.exports.options import ExportKeywords, ExportOptions
from leyden.environments.exports.report import ExportReport
from leyden.environments.exports.source import Source
from leyden.environments.exports.writer import write_export
from leyden.environments.results import EnvironmentRunResult
from leyden.environments.task import Task


def _row(task: Task, attempt: AttemptResult) -> dict[str, Any]:
    assert attempt.run is not None
    return {"messages": text_messages(attempt.run)}


def _problem(row: Mapping[str, Any]) -> str | None:
    messages = row.get("messages")
    if set(row) != {"messages"} or not isinstance(messages, list) or not messages:
        return "a row is a list of messages and nothing else"
    for message in messages:
        if not isinstance(message, dict) or set(message) != {"role", "content"} or message["role"] not in ("system", "user", "assistant"):
            return "a message is a role (system, user, assistant) and a content"
        if not isinstance(message["content"], str) or not message["content"].strip():
            return "a message says nothing"
    if messages[-1]["role"] != "assistant" or not any(message["role"] == "user" for message in messages):
        return "a conversation has a user's message, and ends in the assistant's"
    return None


SFT = Format("sft", one_by_one(_row), _problem, profile="tinker")


def to_sft_jsonl(result: EnvironmentRunResult | Source | Path | str, path: Path | str, **options: Unpack[ExportKeywords]) -> ExportReport:
    """Write the passing text conversations of ``result`` (a path is a saved result) to ``path``, and where they came from beside it.

    The default profile's caps are 320 rows and 1 MiB. Where nothing is to be written, nothing lies at ``path`` afterwards.
    Raises ``UsageError`` for wrong options, ``DiskError``.
    """
    return write_export(result, path, SFT, ExportOptions(**options))


async def ato_sft_jsonl(
    result: EnvironmentRunResult | Source | Path | str, path: Path | str, **options: Unpack[ExportKeywords]
) -> ExportReport:
    """``to_sft_jsonl`` in a thread."""
    return await asyncio.to_thread(to_sft_jsonl, result, path, **options)
