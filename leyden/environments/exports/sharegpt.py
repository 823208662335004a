"""ShareGPT: turns of people and of the model, one after the other, as LLaMA-Factory and Axolotl read them.

LLaMA-Factory's form of it (its README for data): ``human`` and ``observation`` at odd places, ``gpt`` and ``function_call`` at even ones,
a ``system`` turn before them, the tools as JSON text. What does not alternate so is refused rather than bent.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

from leyden.environments.attempt import AttemptResult
from leyden.environments.exports.conversation import Message, Refused, tool_conversation
from leyden.environments.exports.format import Format, one_by_one
from leyden.environments.exports.options import ExportKeywords, ExportOptions
from leyden.environments.exports.outcome import Outcome
from leyden.environments.exports.report import ExportReport
from leyden.environments.exports.source import Source
from leyden.environments.exports.writer import write_export
from leyden.environments.results import EnvironmentRunResult
from leyden.environments.task import Task

_ASKING = ("human", "observation")
_ANSWERING = ("gpt", "function_call")


def _row(task: Task, attempt: AttemptResult) -> dict[str, Any]:
    assert attempt.run is not None
    conversation = tool_conversation(attempt.run)
    turns = [_turn(message) for message in conversation.messages]
    begins = 1 if turns[0]["from"] == "system" else 0
    if not _alternates([turn["from"] for turn in turns[begins:]]):
        raise Refused(Outcome.SKIPPED_AMBIGUOUS, "its turns do not alternate")
    tools = [tool["function"] for tool in conversation.tools]
    return {"conversations": turns, **({"tools": json.dumps(tools, ensure_ascii=False)} if tools else {})}


def _turn(message: Message) -> dict[str, str]:
    calls = message.get("tool_calls", ())
    if len(calls) > 1:
        raise Refused(Outcome.SKIPPED_AMBIGUOUS, "it calls several tools at once")
    if calls and message["content"].strip():
        raise Refused(Outcome.SKIPPED_AMBIGUOUS, "a call comes with a text")
    if calls:
        function = calls[0]["function"]
        call = {"name": function["name"], "arguments": json.loads(function["arguments"])}
        return {"from": "function_call", "value": json.dumps(call, ensure_ascii=False)}
    said_by = {"system": "system", "user": "human", "assistant": "gpt", "tool": "observation"}
    return {"from": said_by[message["role"]], "value": message["content"]}


def _alternates(speakers: list[str]) -> bool:
    return len(speakers) % 2 == 0 and all(speaker in (_ANSWERING if place % 2 else _ASKING) for place, speaker in enumerate(speakers))


def _problem(row: Mapping[str, Any]) -> str | None:
    turns = row.get("conversations")
    if set(row) - {"tools"} != {"conversations"} or not isinstance(turns, list) or not turns:
        return "a row has conversations, perhaps tools, and nothing else"
    if not all(isinstance(turn, dict) and set(turn) == {"from", "value"} and isinstance(turn["value"], str) for turn in turns):
        return "a turn is from somebody and has a value"
    speakers = [turn["from"] for turn in turns if turn["from"] != "system"]
    expected = [{"human", "observation"}, {"gpt", "function_call"}] * (len(speakers) // 2)
    if not speakers or len(expected) != len(speakers) or not all(one in allowed for one, allowed in zip(speakers, expected, strict=True)):
        return "people and the model speak in turns, the model last"
    if "tools" in row and not isinstance(json.loads(row["tools"]), list):
        return "the tools are a JSON list"
    return None


SHAREGPT = Format("sharegpt", one_by_one(_row), _problem)


def to_sharegpt_jsonl(
    result: EnvironmentRunResult | Source | Path | str, path: Path | str, **options: Unpack[ExportKeywords]
) -> ExportReport:
    """Write the passing conversations as turns; see ``to_sft_jsonl``."""
    return write_export(result, path, SHAREGPT, ExportOptions(**options))


async def ato_sharegpt_jsonl(
    result: EnvironmentRunResult | Source | Path | str, path: Path | str, **options: Unpack[ExportKeywords]
) -> ExportReport:
    """``to_sharegpt_jsonl`` in a thread."""
    return await asyncio.to_thread(to_sharegpt_jsonl, result, path, **options)
