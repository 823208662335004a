"""From what a run recorded to the conversation a row holds, or the reason why there is none.

Nothing is made up and nothing is mended: the texts are those that the model read and wrote, byte for byte.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leyden.environments.exports.outcome import Outcome
from leyden.environments.output import RunOutput, RunStatus, ToolOutcome

TEXT_ROLES = ("system", "user", "assistant")
TOOL_ROLES = ("tool", "function")

Message = dict[str, Any]


class Refused(Exception):
    """This run gives no conversation. ``reason`` for people, where the outcome alone does not say enough."""

    def __init__(self, outcome: Outcome, reason: str | None = None) -> None:
        super().__init__(reason or outcome)
        self.outcome = outcome
        self.reason = reason


@dataclass(frozen=True)
class Conversation:
    """``messages`` in chat completions' form, the last one the assistant's text; ``tools`` as they were offered (none: empty)."""

    messages: list[Message]
    tools: list[dict[str, Any]]

    @property
    def prompt(self) -> list[Message]:
        """Up to the last user's message: what is answered."""
        return self.messages[: self._asked]

    @property
    def completion(self) -> list[Message]:
        return self.messages[self._asked :]

    @property
    def tools_column(self) -> dict[str, Any]:
        """A row has the column only where there are tools: a consumer without any knows no empty list."""
        return {"tools": self.tools} if self.tools else {}

    @property
    def _asked(self) -> int:
        return max(place for place, message in enumerate(self.messages) if message["role"] == "user") + 1


def text_messages(run: RunOutput) -> list[Message]:
    """System, user and assistant with their texts, up to the last assistant's message, which must say something.

    Blank messages are left out. Raises ``Refused`` for a run that used tools, and for whatever would be lost.
    """
    if run.tools:
        raise Refused(Outcome.SKIPPED_TOOL_RUNS)
    messages = _up_to_answer(run)
    if any(message.get("role") in TOOL_ROLES or message.get("tool_calls") for message in messages):
        raise Refused(Outcome.SKIPPED_TOOL_RUNS)
    refuse_truncated(run)
    if not _text(messages[-1]).strip():
        raise Refused(Outcome.SKIPPED_NO_TEXT)
    kept = []
    for message in messages:
        if message.get("role") not in TEXT_ROLES:
            raise Refused(Outcome.SKIPPED_UNKNOWN_ROLE)
        if (text := _text(message)).strip():
            kept.append({"role": message["role"], "content": text})
    return _asked_by_somebody(kept)


def tool_conversation(run: RunOutput) -> Conversation:
    """The same with its tool calls, their results and the tools on offer.

    ``developer``, which open chat templates do not know, is ``system`` here. Raises ``Refused`` where the trace is ambiguous: a call
    without its one result, a tool that was not on offer, an execution that no message tells of.
    """
    if run.status is RunStatus.PAUSED or any(call.outcome is ToolOutcome.PAUSED for call in run.tools):
        raise Refused(Outcome.SKIPPED_AMBIGUOUS, "it waits for an approval")
    refuse_truncated(run)
    raw = _up_to_answer(run)
    if raw[-1].get("tool_calls"):
        raise Refused(Outcome.SKIPPED_AMBIGUOUS, "it ends in a tool call")
    if not _text(raw[-1]).strip():
        raise Refused(Outcome.SKIPPED_NO_TEXT)
    messages = _asked_by_somebody([kept for message in raw if (kept := _with_tools(message))])
    tools = [dict(tool) for tool in run.tool_schemas]
    _check_calls(messages, {_name_of(tool) for tool in tools}, run)
    return Conversation(messages, tools)


def refuse_truncated(run: RunOutput) -> None:
    if run.status is RunStatus.TRUNCATED or run.finish_reason == "length":
        raise Refused(Outcome.SKIPPED_TRUNCATED)


def _up_to_answer(run: RunOutput) -> list[Mapping[str, Any]]:
    """Up to the last assistant's message, whatever it says: an earlier turn is not its answer."""
    if not all(isinstance(message, Mapping) for message in run.messages):
        raise Refused(Outcome.SKIPPED_AMBIGUOUS, "a message is no object")
    places = [place for place, message in enumerate(run.messages) if message.get("role") == "assistant"]
    if not places:
        raise Refused(Outcome.SKIPPED_NO_TEXT)
    return list(run.messages[: places[-1] + 1])


def _asked_by_somebody(messages: list[Message]) -> list[Message]:
    if not any(message["role"] == "user" for message in messages):
        raise Refused(Outcome.SKIPPED_NO_TEXT)
    return messages


def _text(message: Mapping[str, Any]) -> str:
    """Of a text, or of parts that are all text (which chat templates put one after another)."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Sequence):
        raise Refused(Outcome.SKIPPED_MEDIA)
    texts = []
    for part in content:
        if (
            not isinstance(part, Mapping)
            or part.get("type") not in ("text", "input_text", "output_text")
            or not isinstance(part.get("text"), str)
        ):
            raise Refused(Outcome.SKIPPED_MEDIA)
        texts.append(part["text"])
    return "".join(texts)


def _with_tools(message: Mapping[str, Any]) -> Message | None:
    """One message of a tool-bearing row; None for one that says nothing."""
    role = message.get("role")
    if role == "tool":
        if not isinstance(message.get("tool_call_id"), str):
            raise Refused(Outcome.SKIPPED_AMBIGUOUS, "a result names no call")
        return {"role": "tool", "tool_call_id": message["tool_call_id"], "content": _text(message)}
    if role not in (*TEXT_ROLES, "developer"):
        raise Refused(Outcome.SKIPPED_UNKNOWN_ROLE)
    text = _text(message)
    if role == "assistant" and (calls := message.get("tool_calls")):
        if not isinstance(calls, list | tuple):
            raise Refused(Outcome.SKIPPED_AMBIGUOUS, "its tool calls are no list")
        return {"role": role, "content": text, "tool_calls": [_call(call) for call in calls]}
    return {"role": "system" if role == "developer" else role, "content": text} if text.strip() else None


def _call(call: Any) -> dict[str, Any]:
    """In OpenAI's form: the arguments are text, as the model wrote it."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if (
        not isinstance(call, Mapping)
        or not isinstance(function, Mapping)
        or not isinstance(call.get("id"), str)
        or not isinstance(function.get("name"), str)
    ):
        raise Refused(Outcome.SKIPPED_AMBIGUOUS, "a call has no id or no name")
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    if not _is_object(text):
        raise Refused(Outcome.SKIPPED_AMBIGUOUS, "a call's arguments are no JSON object")
    return {"id": call["id"], "type": "function", "function": {"name": function["name"], "arguments": text}}


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text, parse_constant=_refuse_constant), dict)
    except (ValueError, RecursionError):
        return False


def _refuse_constant(name: str) -> None:
    """NaN and Infinity: Python reads them, JSON does not have them."""
    raise ValueError(name)


def _name_of(tool: Mapping[str, Any]) -> str | None:
    function = tool.get("function")
    name = function.get("name") if isinstance(function, Mapping) and tool.get("type") == "function" else None
    return name if isinstance(name, str) else None


def _check_calls(messages: Sequence[Message], offered: set[str | None], run: RunOutput) -> None:
    """Each call is followed by its one result before anything else is said, and was a call of a tool on offer."""
    waiting: list[str] = []
    seen: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                raise Refused(Outcome.SKIPPED_AMBIGUOUS, "a result without its call")
            waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            raise Refused(Outcome.SKIPPED_AMBIGUOUS, "a call without its result")
        waiting = [call["id"] for call in message.get("tool_calls", ())]
        if len(set(waiting)) < len(waiting) or seen & set(waiting):
            raise Refused(Outcome.SKIPPED_AMBIGUOUS, "two calls with one id")
        seen |= set(waiting)
    called = {call["function"]["name"] for message in messages for call in message.get("tool_calls", ())}
    if None in offered:
        raise Refused(Outcome.SKIPPED_AMBIGUOUS, "a tool on offer is no function with a name")
    if called - offered:
        raise Refused(
            Outcome.SKIPPED_AMBIGUOUS, "a tool was called that was not on offer" if offered else "the tools on offer are not known"
        )
    executed = {call.call_id for call in run.tools if call.call_id is not None} - seen
    if executed or {call.name for call in run.tools} - called:
        raise Refused(Outcome.SKIPPED_AMBIGUOUS, "a tool ran of which no message tells")
