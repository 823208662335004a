"""From traces to what training sees, for agents whose calls no proxy of ours captured: token ids as far as an attribute carries them."""

from __future__ import annotations

import re
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

from leyden.algorithm.adapter import Adapter, Made
from leyden.algorithm.attribution import END, Attribution, attribute
from leyden.algorithm.refusals import Refusal
from leyden.algorithm.traces.attributes import as_number
from leyden.algorithm.traces.calls import TracedCall, find_calls
from leyden.algorithm.triplets import by_position, misfit, out_of
from leyden.types import Reward, Span, Triplet

NOBODY = "none"  # stands for the rollout of spans that name none
_NAME = re.compile("[A-Za-z0-9_-]{1,56}")  # an id, with room for the number of a choice


class TraceAdapter(Adapter[Span, Made]):
    """Spans of any number of attempts, in any order. ``agent``: a pattern that is searched for in the name of a call's agent; the calls of
    others, and those made while scoring, are left out. Two instrumentations' views of one call are one call.

    Rewards are the store's for these attempts, and those that spans carry (``agentlightning.reward.0.value``), which belong after the
    calls that had ended when they were given.
    """

    def __init__(
        self, reward_name: str = "reward", source: str | None = None, attribution: Attribution | None = None, agent: str | None = None
    ) -> None:
        super().__init__()
        self.reward_name = reward_name
        self.source = source
        self.attribution = attribution or Attribution()
        self.agent = None if agent is None else re.compile(agent)
        self.unplaced_rewards = 0

    def adapt(self, captured: Iterable[Span], rewards: Iterable[Reward] = ()) -> list[Made]:
        """Each attempt's in order of start. What has no reward has None."""
        attempts: dict[tuple[str, int], dict[tuple[str, str], Span]] = {}
        for span in captured:  # the same one again is no second reward
            attempts.setdefault((span.rollout_id or NOBODY, span.attempt or 0), {}).setdefault((span.trace_id, span.span_id), span)
        positioned = by_position(rewards, self.reward_name, self.source)
        made = []
        for (rollout_id, attempt), own in attempts.items():
            spans = list(own.values())
            calls = find_calls(spans)
            fit = []
            for call in calls:
                if (found := self.find(call)) is None:
                    fit.append(call)
                else:
                    self.refuse(rollout_id, attempt, name_of(call), *found)
            rewards_of = self._rewards(calls, fit, spans, positioned.get((rollout_id, attempt), {}))
            made += [one for call, reward in zip(fit, rewards_of, strict=True) for one in self.make(call, reward)]
        return made

    @abstractmethod
    def make(self, call: TracedCall, reward: float | None) -> list[Made]:
        """Of one call in which ``find`` found nothing; one a choice."""

    def find(self, call: TracedCall) -> tuple[Refusal, str | None] | None:
        """Why nothing is made of a call, with a detail for a person."""
        if call.failed:
            return Refusal.ERROR, next((span.status_message for span in call.spans if span.status_message), None)
        if call.span.late:
            return Refusal.LATE, None
        if call.scoring:
            return Refusal.OTHER_AGENT, "made while scoring"
        if self.agent is not None and not self.agent.search(call.agent or ""):
            return Refusal.OTHER_AGENT, call.agent
        return None

    def _rewards(
        self, calls: Sequence[TracedCall], fit: Sequence[TracedCall], spans: Iterable[Span], positioned: dict[str, float]
    ) -> list[float | None]:
        """Of the fit ones. They count in the order of their ends: what came back after a reward was given cannot have earned it."""
        order = sorted(range(len(fit)), key=lambda i: fit[i].end_ns)
        ends = [fit[i].end_ns for i in order]
        places = {name: bisect_right(ends, call.end_ns) for call in calls for name in (name_of(call), *(one.span_id for one in call.spans))}
        places |= {name_of(fit[i]): k for k, i in enumerate(order, 1)}
        said = [(span, value) for span in sorted(spans, key=lambda span: span.start_ns) if (value := self._reward_of(span)) is not None]
        self.unplaced_rewards += sum(span.late for span, _ in said)  # what is said under a lost lease changes nothing
        given = [(bisect_right(ends, span.start_ns), value) for span, value in said if not span.late]
        at_end = positioned.get(END)
        told_twice = bool(given) and given[-1][1] == at_end  # as a span, and as what the attempt came to
        given += [(places.get(position, 0), value) for position, value in positioned.items() if position != END]
        given += [(len(fit) + 1, at_end)] if at_end is not None and not told_twice else []
        values, unplaced = attribute(len(fit), given, self.attribution)
        self.unplaced_rewards += unplaced
        of_call = dict(zip(order, values, strict=True))
        return [of_call[i] for i in range(len(fit))]

    def _reward_of(self, span: Span) -> float | None:
        """Under its name, or the only one: the first of several is the primary one, whatever it is called."""
        value: Any = span.attributes.get("agentlightning.reward.0.value")
        number = 0
        while (name := span.attributes.get(f"agentlightning.reward.{number}.name")) is not None:
            if name == self.reward_name:
                value = span.attributes.get(f"agentlightning.reward.{number}.value")
                break
            number += 1
        return as_number(value)


class TokenAdapter(TraceAdapter[Made]):
    """One that needs token ids: a call without them is refused as ``no_ids``, and what the proxy's audit would have found is found here.

    ``vocabulary``: how many ids the checkpoint being trained knows.
    """

    def __init__(self, *, vocabulary: int | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.vocabulary = vocabulary

    def find(self, call: TracedCall) -> tuple[Refusal, str | None] | None:
        if (found := super().find(call)) is not None:
            return found
        ids = call.ids
        if ids is None:
            return Refusal.NO_IDS, None
        stranger = out_of(self.vocabulary, ids.prompt, *ids.responses)
        if stranger is not None:
            return Refusal.OUT_OF_VOCABULARY, stranger
        counted = next((span.output_tokens for span in call.spans if span.output_tokens is not None), None)
        if counted is not None and counted != (there := sum(map(len, ids.responses))):
            return Refusal.COUNT_MISMATCH, f"{there} ids, and {counted} tokens were counted"
        choices = zip(ids.responses, ids.logprobs, strict=True)
        return next((found for one in choices if (found := misfit(*one)) is not None), None)


class TraceToTriplets(TokenAdapter[Triplet]):
    """One triplet for each choice of a call."""

    def make(self, call: TracedCall, reward: float | None) -> list[Triplet]:
        ids, name, checkpoint = call.ids, name_of(call), call.span.attributes.get("leyden.checkpoint")
        assert ids is not None
        return [
            Triplet(
                prompt_ids=ids.prompt,
                response_ids=response,
                logprobs=ids.logprobs[choice],
                reward=reward,
                finish_reason=call.finish(choice),
                rollout_id=call.span.rollout_id or NOBODY,
                attempt=call.span.attempt or 0,
                generation_id=choice_of(name, choice),
                checkpoint=checkpoint if isinstance(checkpoint, str) else None,
            )
            for choice, response in enumerate(ids.responses)
        ]


def name_of(call: TracedCall) -> str:
    """The generation's id where the span tells it, else the span's own."""
    name = call.span.attributes.get("leyden.generation_id")
    return name if isinstance(name, str) and _NAME.fullmatch(name) else call.span.span_id


def choice_of(name: str, choice: int) -> str:
    return name if choice == 0 else f"{name}-{choice}"
