"""Which spans of an attempt are calls of a model, each call once, however many instrumentations saw it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from leyden.algorithm.traces.attributes import first, parsed
from leyden.algorithm.traces.ids import Ids, is_of_a_call, read_ids
from leyden.algorithm.traces.messages import Exchange, finish, read_exchange
from leyden.types import Span

ASKS_A_MODEL = ("chat", "text_completion", "generate_content")
REWARD = "agentlightning.reward.0.value"


@dataclass(frozen=True)
class TracedCall:
    """One call. ``agent``: the name of the innermost one around it; ``scoring``: it was made inside a span that gave a reward."""

    span: Span
    response_id: str | None
    agent: str | None = None
    scoring: bool = False
    others: tuple[Span, ...] = ()  # of other instrumentations

    @cached_property
    def ids(self) -> Ids | None:
        return next((found for span in self.spans if (found := read_ids(span.attributes)) is not None), None)

    @cached_property
    def exchange(self) -> Exchange:
        """Of whoever saw most of it."""
        seen = [read_exchange(span.attributes) for span in self.spans]
        return max(seen, key=lambda one: (one.asked is not None) + (one.answers is not None) + (one.tools is not None))

    @property
    def spans(self) -> tuple[Span, ...]:
        return (self.span, *self.others)

    @property
    def failed(self) -> bool:
        return any(span.status == "error" for span in self.spans)

    @property
    def start_ns(self) -> int:
        return min(span.start_ns for span in self.spans)

    @property
    def end_ns(self) -> int:
        return max(span.end_ns for span in self.spans)

    def finish(self, choice: int) -> str | None:
        """The finish reason of one choice; None where the trace does not say, which is not "stop"."""
        own = self.exchange.finish
        if choice < len(own) and own[choice]:
            return own[choice]
        stated = [parsed(first(span.attributes, "gen_ai.response.finish_reasons")) for span in self.spans]
        listed = next((reasons for reasons in stated if isinstance(reasons, list) and choice < len(reasons)), None)
        return finish(listed[choice] if listed else next((span.finish_reason for span in self.spans if span.finish_reason), None))


def find_calls(spans: Iterable[Span]) -> list[TracedCall]:
    """The calls among one attempt's spans, in order of start, whatever the order of the spans. A parent that is not there is no parent."""
    tree = _Tree(spans)
    calls = {span.span_id: _call(span, tree) for span in tree.spans if asks_a_model(span)}
    inside: dict[str, list[str]] = {}
    for id in calls:
        around = next((other.span_id for other in tree.above(id) if other.span_id in calls), None)
        if around is not None:
            inside.setdefault(around, []).append(id)
    for id in reversed([span.span_id for span in tree.spans]):  # the inner ones first
        match inside.get(id, ()):
            case [one]:  # a framework's view of the call it made
                calls[one] = _merge(calls[one], calls.pop(id))
            case [_, _, *_]:  # a framework's view of several, such as a call and its retry
                calls.pop(id)
    return sorted(_by_response(calls.values()), key=lambda call: (call.start_ns, call.span.span_id))


class _Tree:
    """Spans by parent. Ids may repeat, parents may be missing or go round in a circle: traces come from anywhere."""

    def __init__(self, spans: Iterable[Span]) -> None:
        by_id: dict[str, Span] = {}
        for span in spans:
            by_id.setdefault(span.span_id, span)
        self.spans: Sequence[Span] = sorted(by_id.values(), key=lambda span: (span.start_ns, -span.end_ns))
        self._by_id: Mapping[str, Span] = by_id
        self._agents = [span for span in self.spans if span.operation == "invoke_agent" and span.agent_name]

    def above(self, id: str) -> Iterator[Span]:
        """The spans around one, the nearest first."""
        seen = {id}
        parent = self._by_id[id].parent_id
        while parent is not None and parent not in seen and parent in self._by_id:
            seen.add(parent)
            yield self._by_id[parent]
            parent = self._by_id[parent].parent_id

    def agent_of(self, span: Span) -> str | None:
        """By its parents; where they name none, the shortest agent's span that it lies in by time: a proxy's spans have no parents."""
        line = [span, *self.above(span.span_id)]
        named = next((one.agent_name for one in line if one.agent_name), None)
        if named is not None:
            return named
        around = [one for one in self._agents if one.start_ns <= span.start_ns and span.end_ns <= one.end_ns]
        return min(around, key=lambda one: one.end_ns - one.start_ns).agent_name if around else None


def asks_a_model(span: Span) -> bool:
    """By its operation, as the store names it; AgentOps and litellm have names of their own."""
    if span.operation in ASKS_A_MODEL or is_of_a_call(span.attributes):
        return True
    if span.operation is not None:
        return False
    kind = str(span.attributes.get("agentops.span.kind", "")).lower()
    return kind == "llm" or any(name.startswith(("gen_ai.completion.", "llm.output_messages.")) for name in span.attributes)


def _call(span: Span, tree: _Tree) -> TracedCall:
    answer = parsed(span.attributes.get("output.value"))
    raw = next((value for name, value in span.attributes.items() if name.startswith("llm.") and name.endswith(".id")), None)
    id = first(span.attributes, "gen_ai.response.id", "llm.response.id") or (answer.get("id") if isinstance(answer, dict) else None) or raw
    scoring = any(REWARD in around.attributes for around in tree.above(span.span_id))
    return TracedCall(span, id if isinstance(id, str) and id else None, tree.agent_of(span), scoring)


def _by_response(calls: Iterable[TracedCall]) -> list[TracedCall]:
    """Those with one response id are one call."""
    merged: dict[Any, TracedCall] = {}
    for call in calls:
        key = call.response_id or call.span.span_id
        merged[key] = _merge(merged[key], call) if key in merged else call
    return list(merged.values())


def _merge(one: TracedCall, other: TracedCall) -> TracedCall:
    """The one that carries ids gives the call its name."""
    if one.ids is None and other.ids is not None:
        one, other = other, one
    return replace(
        one,
        response_id=one.response_id or other.response_id,
        agent=one.agent or other.agent,
        scoring=one.scoring or other.scoring,
        others=(*one.others, *other.spans),
    )
