"""Which spans of an attempt are calls of a model, each call once, however many instrumentations saw it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
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
        listed = [self.exchange.finish, self.ids.finish if self.ids else []]
        listed += [parsed(first(span.attributes, "gen_ai.response.finish_reasons")) for span in self.spans]
        own = (finish(reasons[choice]) for reasons in listed if isinstance(reasons, list) and choice < len(reasons))
        of_first = (finish(span.finish_reason) for span in self.spans if choice == 0)
        return next(filter(None, chain(own, of_first)), None)


def find_calls(spans: Iterable[Span]) -> list[TracedCall]:
    """The calls among one attempt's spans, in order of start, whatever the order of the spans. A parent that is not there is no parent."""
    tree = _Tree(spans)
    calls = {span.span_id: _call(span, tree) for span in tree.spans if asks_a_model(span)}
    depths = {id: sum(1 for _ in tree.above(id)) for id in calls}
    inside: dict[str, list[str]] = {}
    for id in sorted(calls, key=lambda id: depths[id], reverse=True):  # the inner ones first
        left = _fold(calls, id, inside.pop(id, []))
        # Only towards the root: parents that go round in a circle are as deep as one another.
        around = next((other.span_id for other in tree.above(id) if depths.get(other.span_id, depths[id]) < depths[id]), None)
        if around is not None:
            inside.setdefault(around, []).extend(left)
    return sorted(_by_response(calls.values()), key=lambda call: (call.start_ns, call.span.span_id))


def _fold(calls: dict[str, TracedCall], id: str, inner: list[str]) -> list[str]:
    """Take a call out of ``calls`` that is a framework's view of one in it, or of several; which are left of it and those."""
    own = calls[id].response_id
    same = [one for one in inner if own is not None and calls[one].response_id == own]
    same = same or [one for one in inner if own is None or calls[one].response_id is None]
    if not same:  # nothing in it, or calls with answers of their own
        return [id, *inner]
    view = calls.pop(id)
    if len(same) == 1:
        calls[same[0]] = _merge(calls[same[0]], view)
    return inner  # a view of several, such as a call and its retry, tells nothing of one of them


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
