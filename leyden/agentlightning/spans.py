"""Spans as the recipe reads them: what a tracer gathered, the model's calls with their exact token ids, and the rewards, in one list."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import count, takewhile
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from leyden import types as ours
from leyden.types import Generation, Reward

CALL = "openai.chat.completion"
REWARD = "agentlightning.annotation"
REWARD_NAME, REWARD_VALUE = "agentlightning.reward.{}.name", "agentlightning.reward.{}.value"
GENERATION_ID, PROMPT_IDS, RESPONSE_IDS = "leyden.generation_id", "leyden.prompt_token_ids", "leyden.response_token_ids"


class TraceStatus(BaseModel):
    model_config = ConfigDict(frozen=True)
    status_code: str = "UNSET"  # UNSET | OK | ERROR
    description: str | None = None


class Span(BaseModel):
    """Times are seconds since the epoch. ``sequence_id`` counts an answer's spans from 1, in the order they began."""

    model_config = ConfigDict(frozen=True)
    rollout_id: str
    attempt_id: str
    sequence_id: int = 0
    trace_id: str
    span_id: str
    parent_id: str | None = None
    name: str
    status: TraceStatus = TraceStatus()
    attributes: dict[str, Any] = Field(default_factory=dict)
    events: list[dict[str, Any]] = Field(default_factory=list)
    start_time: float | None = None
    end_time: float | None = None

    @classmethod
    def of(cls, span: ours.Span) -> Span:
        return cls(
            rollout_id=span.rollout_id or "",
            attempt_id=str(span.attempt or 0),
            trace_id=span.trace_id,
            span_id=span.span_id,
            parent_id=span.parent_id,
            name=span.name,
            status=TraceStatus(status_code=span.status.upper()),
            attributes=span.attributes,
            events=span.events,
            start_time=span.start_ns / 1e9,
            end_time=span.end_ns / 1e9,
        )

    def ours(self) -> ours.Span:
        return ours.Span(
            trace_id=self.trace_id,
            span_id=self.span_id,
            parent_id=self.parent_id,
            name=self.name,
            start_ns=int((self.start_time or 0.0) * 1e9),
            end_ns=int((self.end_time or self.start_time or 0.0) * 1e9),
            status=self.status.status_code.lower(),
            attributes=self.attributes,
            events=self.events,
        )


def of_generation(generation: Generation) -> Span:
    """A call as a span. The token ids are the engine's own, as the proxy stored them."""
    attributes = {
        "gen_ai.request.model": generation.model,
        "gen_ai.response.finish_reasons": [generation.finish_reason],
        "gen_ai.usage.input_tokens": generation.prompt_tokens,
        "gen_ai.usage.output_tokens": generation.completion_tokens,
        "gen_ai.input.messages": generation.request.get("messages"),
        "gen_ai.output.messages": [generation.response] if generation.response else [],
        "gen_ai.tool.definitions": generation.request.get("tools"),
        GENERATION_ID: generation.id,
        PROMPT_IDS: generation.prompt_token_ids,
        RESPONSE_IDS: generation.response_token_ids,
        "leyden.logprobs": generation.logprobs,
        "leyden.checkpoint": generation.checkpoint,
    }
    started = generation.started_at / 1e6
    return Span(
        rollout_id=generation.rollout_id,
        attempt_id=str(generation.attempt),
        trace_id=_digits(generation.rollout_id, 32),
        span_id=_digits(generation.id, 16),
        name=CALL,
        status=TraceStatus(status_code="OK" if generation.status == "ok" else "ERROR", description=generation.error),
        attributes={name: value for name, value in attributes.items() if value is not None},
        start_time=started,
        end_time=started + generation.latency,
    )


def of_reward(reward: Reward) -> Span:
    at = (reward.created_at or 0) / 1e6
    rollout_id = reward.rollout_id or ""
    return Span(
        rollout_id=rollout_id,
        attempt_id=str(reward.attempt or 0),
        trace_id=_digits(rollout_id, 32),
        span_id=_digits(f"{rollout_id}{reward.attempt}{reward.name}{reward.position}", 16),
        name=REWARD,
        attributes=reward_attributes({reward.name: reward.value}) | {"leyden.position": reward.position},
        start_time=at,
        end_time=at,
    )


def in_order(spans: Iterable[ours.Span], generations: Iterable[Generation], rewards: Iterable[Reward]) -> list[Span]:
    """One attempt's spans, numbered. A reward follows the call it belongs to; one for the whole attempt comes last.

    Neither a call, of which the proxy keeps a span too, nor a reward that the agent emitted as a span is told twice.
    """
    calls = [of_generation(generation) for generation in generations]
    told = {call.attributes[GENERATION_ID] for call in calls}
    traced = [Span.of(span) for span in spans if not told.intersection(span.attributes.get("leyden.generation_ids", ()))]
    emitted = next(filter(None, map(rewards_of, reversed(traced))), [])  # the last ones are the attempt's, the first of them *the* reward
    emitted += [("reward", value) for _, value in emitted[:1]]
    placed: dict[str, list[Span]] = {}
    for reward in rewards:
        if (reward.name, reward.value) not in emitted:
            placed.setdefault(reward.position, []).append(of_reward(reward))
    ordered: list[Span] = []
    for span in sorted([*traced, *calls], key=lambda span: span.start_time or 0.0):
        ordered += [span, *placed.pop(span.attributes.get(GENERATION_ID, span.span_id), [])]
    ordered += [span for rest in placed.values() for span in rest]
    return [span.model_copy(update={"sequence_id": number}) for number, span in enumerate(ordered, 1)]


def reward_attributes(rewards: dict[str, float]) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    for number, (name, value) in enumerate(rewards.items()):
        attributes |= {REWARD_NAME.format(number): name, REWARD_VALUE.format(number): value}
    return attributes


def rewards_of(span: Span | ours.Span) -> list[tuple[str, float]]:
    """Name and value of each reward a span carries, the primary one first. What is no name with a number is none."""
    values = takewhile(lambda value: value is not None, (span.attributes.get(REWARD_VALUE.format(n)) for n in count()))
    named = [(span.attributes.get(REWARD_NAME.format(n)), value) for n, value in enumerate(values)]
    return [(name, float(value)) for name, value in named if isinstance(name, str) and isinstance(value, int | float)]


# -- readers, under the recipe's names ----------------------------------------------------------------------------------


def get_reward_value(span: Span) -> float | None:
    """The (primary) reward that a span carries."""
    rewards = rewards_of(span)
    return rewards[0][1] if rewards else None


def get_rewards_from_span(span: Span) -> list[dict[str, Any]]:
    """All rewards that a span carries, as ``{"name", "value"}``."""
    return [{"name": name, "value": value} for name, value in rewards_of(span)]


def is_reward_span(span: Span) -> bool:
    """Whether a span carries a reward."""
    return bool(rewards_of(span))


def find_reward_spans(spans: Sequence[Span]) -> list[Span]:
    """The spans that carry a reward, in their order."""
    return [span for span in spans if is_reward_span(span)]


def find_final_reward(spans: Sequence[Span]) -> float | None:
    """The last reward; None where nobody gave one."""
    last = next((span for span in reversed(spans) if is_reward_span(span)), None)
    return get_reward_value(last) if last else None


def get_message_value(span: Span) -> str | None:
    """What ``emit_message`` said."""
    return span.attributes.get("agentlightning.message.body")


def get_object_value(span: Span) -> Any:
    """What ``emit_object`` gave."""
    return span.attributes.get("agentlightning.object")


def _digits(text: str, length: int) -> str:
    """A hexadecimal id of that length, always the same for a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:length]
