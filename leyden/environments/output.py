"""What one attempt produced, whatever kind of agent made it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class ToolOutcome(StrEnum):
    OK = "ok"
    ERROR = "error"  # it ran, and raised
    REFUSED = "refused"  # never run: over the limit of calls, unknown, or not approved
    PAUSED = "paused"  # waits for a person


@dataclass(frozen=True)
class ToolCall:
    """One execution of a tool, or one that was refused. ``arguments`` as the model gave them, parsed."""

    name: str
    arguments: Mapping[str, Any]
    outcome: ToolOutcome = ToolOutcome.OK
    result: Any = None
    call_id: str | None = None


class RunStatus(StrEnum):
    """How the agent's own run ended."""

    COMPLETED = "completed"
    TRUNCATED = "truncated"  # its last answer was cut at the token limit
    PAUSED = "paused"  # it waits for an approval that nobody gives
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class RunOutput:
    """``content`` is what the agent answered: a text, or an object of its output type. ``messages`` is the whole conversation in the form
    of chat completions (``role``, ``content``, ``tool_calls``, ``tool_call_id``), system message included, exactly as the model saw and
    said it. ``tool_schemas`` are the tools as they were offered at the last request (chat completions' ``tools``)."""

    content: Any
    messages: tuple[Mapping[str, Any], ...] = ()
    tools: tuple[ToolCall, ...] = ()
    tool_schemas: tuple[Mapping[str, Any], ...] = ()
    status: RunStatus = RunStatus.COMPLETED
    model: str | None = None
    finish_reason: str | None = None  # of the last answer
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost: float | None = None  # in whatever the agent reports
    generation_ids: tuple[str, ...] = ()  # of the calls that the proxy captured, in order
    metrics: Mapping[str, float] = field(default_factory=dict)  # an agent's own numbers, for scorers

    @property
    def tool_call_limit_hit(self) -> bool:
        """A call was refused, so the answer was given without what the agent had asked for."""
        return any(call.outcome is ToolOutcome.REFUSED for call in self.tools)
