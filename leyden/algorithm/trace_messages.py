"""From traces to conversations: what a prompt optimiser, a judge or a chat dataset reads."""

from __future__ import annotations

from typing import Any

from leyden.algorithm.refusals import Refusal
from leyden.algorithm.trace_triplets import NOBODY, TraceAdapter, choice_of, name_of
from leyden.algorithm.traces.calls import TracedCall
from leyden.types import Id, Record


class TracedChat(Record):
    """One answer of the model, in the form of OpenAI's chat API: ``messages`` with the answer last, and the ``tools`` it had."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    finish_reason: str | None = None
    reward: float | None = None
    agent: str | None = None
    rollout_id: Id
    attempt: int
    generation_id: Id


class TraceToMessages(TraceAdapter[TracedChat]):
    """One chat for each choice of a call. One that the trace holds in part only is counted and left out; the others are not harmed."""

    def find(self, call: TracedCall) -> tuple[Refusal, str | None] | None:
        if (found := super().find(call)) is not None:
            return found
        asked = call.exchange.asked
        if asked is None:
            return Refusal.NO_MESSAGES, None
        if call.exchange.answers is None:
            return Refusal.NO_ANSWER, None
        unknown = next((place for place, message in enumerate(asked, 1) if not message.get("role")), None)
        return (Refusal.NO_ROLE, f"message {unknown} of {len(asked)}") if unknown is not None else None

    def make(self, call: TracedCall, reward: float | None) -> list[TracedChat]:
        found, name = call.exchange, name_of(call)
        return [
            TracedChat(
                messages=[*(found.asked or ()), answer],
                tools=found.tools,
                finish_reason=call.finish(choice),
                reward=reward,
                agent=call.agent,
                rollout_id=call.span.rollout_id or NOBODY,
                attempt=call.span.attempt or 0,
                generation_id=choice_of(name, choice),
            )
            for choice, answer in enumerate(found.answers or ())
        ]
