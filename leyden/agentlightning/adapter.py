"""The recipe's adapters over ``query_spans``'s answer: ours underneath (``leyden.algorithm.trace_triplets``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

from leyden import types as ours
from leyden.agentlightning.records import Triplet
from leyden.agentlightning.spans import GENERATION_ID, Span, rewards_of
from leyden.algorithm import trace_messages
from leyden.algorithm.attribution import Attribution, RewardPolicy
from leyden.algorithm.refusals import Refusal
from leyden.algorithm.trace_triplets import TokenAdapter, name_of
from leyden.algorithm.traces.calls import TracedCall, asks_a_model
from leyden.errors import UsageError
from leyden.server.normalizer import normalize

Source = TypeVar("Source")
Made = TypeVar("Made")

POSITION = "leyden.position"  # of a reward that the store holds


class Adapter(Generic[Source, Made]):
    """From one thing to another. Write ``adapt``; an adapter can be called as well."""

    def adapt(self, source: Source, /) -> Made:
        raise NotImplementedError(f"{type(self).__name__} has no `adapt`")

    def __call__(self, source: Source, /) -> Made:
        return self.adapt(source)


class TraceAdapter(Adapter[Sequence[Span], Made]):
    """From the spans of an attempt to something else."""


class TraceToTriplet(TraceAdapter[list[Triplet]]):
    """Spans of an attempt → one ``Triplet`` for each call of the model that gave token ids, in order.

    Where the proxy has recorded calls, it knows of all of them, with the engine's own ids; otherwise they are read out of what a tracer's
    instrumentation saw. ``agent_match``: a pattern to find in the agent's name. ``reward_match``: a policy's name
    (``leyden.algorithm.attribution.RewardPolicy``). ``skipped`` counts the calls that gave no triplet, by reason.
    """

    def __init__(self, *, agent_match: str | None = None, reward_match: str = RewardPolicy.FIRST_OCCURRENCE, **options: Any) -> None:
        if options:
            raise UsageError(
                f"{type(self).__name__} has no option {next(iter(options))!r}: calls are known by what they carry, not by names of spans",
                "leave it out; to pick calls, use agent_match, or look at a triplet's metadata",
            )
        if reward_match not in list(RewardPolicy):
            raise UsageError(f"there is no reward_match {str(reward_match)!r}", f"one of: {', '.join(RewardPolicy)}")
        self._inner = _Triplets(agent=agent_match, attribution=Attribution(policy=RewardPolicy(reward_match)))

    @property
    def skipped(self) -> Counter[Refusal]:
        return self._inner.refused

    def adapt(self, source: Sequence[Span], /) -> list[Triplet]:
        return self._inner.adapt(*_read(source))


class TracerTraceToTriplet(TraceToTriplet):
    """The recipe's adapter for what its tracers saw."""


class LlmProxyTraceToTriplet(TraceToTriplet):
    """The recipe's adapter for what its LLM proxy saw."""


class TraceToMessages(TraceAdapter[list[dict[str, Any]]]):
    """Spans of an attempt → ``{"messages": [...], "tools": [...]}`` for each call of the model, its answer last.

    ``skipped`` counts those that the trace does not hold whole, by reason.
    """

    def __init__(self) -> None:
        self._inner = trace_messages.TraceToMessages()

    @property
    def skipped(self) -> Counter[Refusal]:
        return self._inner.refused

    def adapt(self, source: Sequence[Span], /) -> list[dict[str, Any]]:
        return [{"messages": chat.messages, "tools": chat.tools} for chat in self._inner.adapt(*_read(source))]


class _Triplets(TokenAdapter[Triplet]):
    def make(self, call: TracedCall, reward: float | None) -> list[Triplet]:
        ids, said = call.ids, call.exchange
        assert ids is not None
        answers = [said.answers] * len(ids.responses)
        if said.answers and len(said.answers) == len(ids.responses):
            answers = [[answer] for answer in said.answers]
        about = {"response_id": call.response_id or name_of(call), "checkpoint": call.span.attributes.get("leyden.checkpoint")}
        return [
            Triplet(
                prompt={"token_ids": ids.prompt, "raw_content": said.asked},
                response={"token_ids": response, "raw_content": answers[choice], "logprobs": ids.logprobs[choice]},
                reward=reward,
                metadata=about | {"agent_name": call.agent},
            )
            for choice, response in enumerate(ids.responses)
        ]


def _read(spans: Iterable[Span]) -> tuple[list[ours.Span], list[ours.Reward]]:
    """As our adapters take them. Of a call that the proxy recorded, a tracer's view says nothing more."""
    found = [_ours(span) for span in sorted(spans, key=lambda span: (span.sequence_id, span.start_time or 0.0))]
    if any(GENERATION_ID in span.attributes for span in found):
        found = [span for span in found if GENERATION_ID in span.attributes or not asks_a_model(span)]
    rewards = [reward for span in found if POSITION in span.attributes for reward in _stored(span)]
    return [span for span in found if POSITION not in span.attributes], rewards


def _ours(span: Span) -> ours.Span:
    attempt = int(span.attempt_id) if span.attempt_id.isdecimal() else 0
    where: dict[str, Any] = {"rollout_id": span.rollout_id or None, "attempt": attempt, "status_message": span.status.description}
    if span.start_time is None:  # then only their numbers tell what came first
        where |= {"start_ns": span.sequence_id, "end_ns": span.sequence_id}
    return span.ours().model_copy(update=normalize(span.name, span.attributes) | where)


def _stored(span: ours.Span) -> list[ours.Reward]:
    return [
        ours.Reward(name=name, value=value, position=span.attributes[POSITION], rollout_id=span.rollout_id, attempt=span.attempt)
        for name, value in rewards_of(span)
    ]
