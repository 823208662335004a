"""From a run of the Agents SDK to an attempt's output."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from leyden.environments.fingerprint import FingerprintError, canonical
from leyden.environments.output import RunOutput, RunStatus, ToolCall, ToolOutcome
from leyden.environments.subjects.recording import Log, Message, as_messages

if TYPE_CHECKING:
    from agents import RunConfig
    from agents.run_config import ToolErrorFormatterArgs

    from leyden.environments.subjects.isolation import Isolation


class Outcomes:
    """What became of calls, by their id, where their result does not say it: a failed tool answers with a text like any other."""

    def __init__(self) -> None:
        self.by_id: dict[str, ToolOutcome] = {}
        self._timeouts: set[str] = set()

    def watch(self, config: RunConfig, isolated: Isolation) -> None:
        """Listen where failures are put into words, and leave the words as they are. All of these are the attempt's own objects."""
        from agents.tool import default_tool_error_function, default_tool_timeout_error_message

        config.tool_error_formatter = self._told
        for agent in isolated.agents:
            if (word := agent.mcp_config.get("failure_error_function", default_tool_error_function)) is not None:
                agent.mcp_config["failure_error_function"] = self._listening(word)
        for server in isolated.servers:
            if callable(word := getattr(server, "_failure_error_function", None)):
                server._failure_error_function = self._listening(word)
            server.custom_data_extractor = self._looking(getattr(server, "custom_data_extractor", None))
        for tool in isolated.tools:
            if tool._failure_error_function is not None:
                tool._failure_error_function = self._listening(tool._failure_error_function)
            if tool.timeout_error_function is not None:
                tool.timeout_error_function = self._listening(tool.timeout_error_function)
            elif tool.timeout_seconds is not None:
                self._timeouts.add(default_tool_timeout_error_message(tool_name=tool.name, timeout_seconds=tool.timeout_seconds))

    def of(self, call_id: str | None, result: Any, started: bool) -> ToolOutcome:
        if call_id in self.by_id:
            return self.by_id[call_id]
        if isinstance(result, str) and result in self._timeouts:
            return ToolOutcome.ERROR
        return ToolOutcome.OK if started else ToolOutcome.REFUSED

    def _told(self, about: ToolErrorFormatterArgs[Any]) -> None:
        self.by_id[about.call_id] = ToolOutcome.ERROR if about.kind == "tool_exception" else ToolOutcome.REFUSED

    def _listening(self, word: Any) -> Any:
        def listening(context: Any, error: Exception) -> Any:
            call_id = getattr(context, "tool_call_id", None)
            if call_id is not None:
                self.by_id[call_id] = ToolOutcome.ERROR
            return word(context, error)

        return listening

    def _looking(self, extractor: Any) -> Any:
        """An MCP tool that fails says so in its result, which the model is given all the same."""

        def looking(about: Any) -> Any:
            call_id = getattr(about.run_context, "tool_call_id", None)
            if about.is_error and call_id is not None:
                self.by_id[call_id] = ToolOutcome.ERROR
            return None if extractor is None else extractor(about)

        return looking


def output_of(log: Log, outcomes: Outcomes, items: Iterable[Any], content: Any, pending: Iterable[Any] = ()) -> RunOutput:
    """``items`` are what the run made, ``pending`` the calls that wait for an approval."""
    made = list(items)
    last = log.last
    waits = [_call(item.raw_item, ToolOutcome.PAUSED) for item in pending]
    finish = last.finish_reason if last else None
    status = RunStatus.PAUSED if waits else RunStatus.TRUNCATED if finish == "length" else RunStatus.COMPLETED
    return RunOutput(
        content=content,
        messages=tuple(_messages(log, made)),
        tools=(*_tools(made, log, outcomes, {call.call_id for call in waits}), *waits),
        tool_schemas=tuple(last.tools) if last else (),
        status=status,
        model=last.model if last else None,
        finish_reason=finish,
        input_tokens=_sum(call.input_tokens for call in log.all),
        output_tokens=_sum(call.output_tokens for call in log.all),
    )


def _messages(log: Log, made: list[Any]) -> list[Message]:
    """The last answered request as the model saw it, its answer, and results of tools that no request carried any more."""
    last = log.last
    if last is None:
        return list(log.calls[-1].messages) if log.calls else []
    assert last.answer is not None
    asked = {call["id"] for call in last.answer.get("tool_calls", ())}
    results = [_raw(item) for item in made if item.type in ("tool_call_output_item", "handoff_output_item")]
    unseen = [raw for raw in results if raw.get("call_id") in asked]
    return [*last.messages, last.answer, *(as_messages(unseen) if unseen else ())]


def _tools(made: list[Any], log: Log, outcomes: Outcomes, waiting: set[str | None]) -> list[ToolCall]:
    results = {_raw(item).get("call_id"): item for item in made if item.type in ("tool_call_output_item", "handoff_output_item")}
    calls = []
    for item in made:
        if item.type not in ("tool_call_item", "handoff_call_item"):
            continue
        raw = _raw(item)
        call_id = raw.get("call_id") or raw.get("id")
        if call_id in waiting:
            continue
        output = results.get(call_id)
        result = None if output is None else getattr(output, "output", _raw(output).get("output"))
        started = raw.get("type") != "function_call" or item.type == "handoff_call_item" or call_id in log.started
        calls.append(_call(raw, outcomes.of(call_id, result, started), _plain(result)))
    return calls


def _call(raw_item: Any, outcome: ToolOutcome, result: Any = None) -> ToolCall:
    raw = raw_item if isinstance(raw_item, Mapping) else raw_item.model_dump()
    name = raw.get("name") or str(raw.get("type", "tool")).removesuffix("_call")
    return ToolCall(name, _arguments(raw.get("arguments")), outcome, result, raw.get("call_id") or raw.get("id"))


def _arguments(text: Any) -> dict[str, Any]:
    """What the model wrote is in the messages; here it is parsed, and empty where it cannot be."""
    try:
        parsed = json.loads(text) if isinstance(text, str) and text else text
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _raw(item: Any) -> Mapping[str, Any]:
    return item.raw_item if isinstance(item.raw_item, Mapping) else item.raw_item.model_dump(exclude_unset=True)


def _plain(result: Any) -> Any:
    """A result as JSON has it, else as text, which is what the model was given."""
    try:
        canonical(result)
    except FingerprintError:
        return str(result)
    return result


def _sum(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
