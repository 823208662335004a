"""The recipe's adapters over ``query_spans``'s answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from leyden.agentlightning.records import Triplet
from leyden.agentlightning.spans import GENERATION_ID, PROMPT_IDS, RESPONSE_IDS, Span, get_reward_value
from leyden.errors import UsageError


class TraceToTriplet:
    """Spans of one attempt → one ``Triplet`` for each call of the model that gave token ids, in order.

    A reward goes to the call before it; the later of two wins. ``skipped`` counts the calls that gave no triplet, by reason.
    """

    def __init__(self, **options: Any) -> None:
        if options:
            name = next(iter(options))
            raise UsageError(
                f"{type(self).__name__} has no option {name!r}: it reads the proxy's records, not names of spans",
                "leave it out; to pick calls, look at a triplet's metadata",
            )
        self.skipped: Counter[str] = Counter()

    def adapt(self, spans: Sequence[Span]) -> list[Triplet]:
        calls: list[Span] = []
        rewards: dict[int, float] = {}  # by position in ``calls``
        for span in sorted(spans, key=lambda span: (span.sequence_id, span.start_time or 0.0)):
            if GENERATION_ID in span.attributes:
                if reason := _unfit(span):
                    self.skipped[reason] += 1
                else:
                    calls.append(span)
            elif (value := get_reward_value(span)) is not None and calls:
                rewards[len(calls) - 1] = value
        return [_triplet(call, rewards.get(number)) for number, call in enumerate(calls)]


class TracerTraceToTriplet(TraceToTriplet):
    """The same: whichever tracer the agent runs under, the token ids come from the proxy's record of the call."""


class LlmProxyTraceToTriplet(TraceToTriplet):
    """The recipe's adapter for what its LLM proxy saw."""


class TraceToMessages:
    """Spans of one attempt → ``{"messages": [...], "tools": [...]}`` for each call of the model, its answer last."""

    def adapt(self, spans: Sequence[Span]) -> list[dict[str, Any]]:
        found = []
        for span in sorted(spans, key=lambda span: (span.sequence_id, span.start_time or 0.0)):
            asked, answered = span.attributes.get("gen_ai.input.messages"), span.attributes.get("gen_ai.output.messages")
            if GENERATION_ID in span.attributes and asked and answered:
                found.append({"messages": [*asked, *answered], "tools": span.attributes.get("gen_ai.tool.definitions")})
        return found


def _unfit(call: Span) -> str | None:
    if call.status.status_code != "OK":
        return "error"
    return None if call.attributes.get(PROMPT_IDS) and RESPONSE_IDS in call.attributes else "no_ids"


def _triplet(call: Span, reward: float | None) -> Triplet:
    attributes = call.attributes
    return Triplet(
        prompt={"token_ids": attributes[PROMPT_IDS], "raw_content": attributes.get("gen_ai.input.messages")},
        response={
            "token_ids": attributes[RESPONSE_IDS],
            "raw_content": attributes.get("gen_ai.output.messages"),
            "logprobs": attributes.get("leyden.logprobs"),
        },
        reward=reward,
        metadata={"response_id": attributes[GENERATION_ID], "checkpoint": attributes.get("leyden.checkpoint")},
    )
