"""An attempt's calls sorted into conversations: each call's prompt repeats its conversation, id by id, and goes on from there."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from leyden.types import Triplet

IGNORED = -100  # the label that cross-entropy skips
WIDTH = 8  # bytes of an id while it is hashed

_Common = tuple[float | None, str | None]  # what the calls of one row have in common: reward and checkpoint
_Key = tuple[int, bytes, _Common]  # of a conversation; with its length, and the hash of its ids


@dataclass
class Conversation:
    """``input_ids`` and ``labels`` [T]: what was read and sampled, and only what was sampled is labelled. ``ends``: T after each call."""

    input_ids: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    calls: list[Triplet] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def add(self, call: Triplet) -> None:
        """What the template and the tools put in between is read, not said: the tokens that close a turn cut off at its limit, too."""
        new = call.prompt_ids[len(self.input_ids) :]
        self.input_ids += new + call.response_ids
        self.labels += [IGNORED] * len(new) + call.response_ids
        self.calls.append(call)
        self.ends.append(len(self.input_ids))

    def cut(self, max_tokens: int) -> list[Triplet]:
        """Leave off, and return, the calls that end beyond ``max_tokens``; none where not even the first fits."""
        kept = sum(end <= max_tokens for end in self.ends)
        if kept == 0:
            return []
        left_off, self.calls, self.ends = self.calls[kept:], self.calls[:kept], self.ends[:kept]
        del self.input_ids[self.ends[-1] :], self.labels[self.ends[-1] :]
        return left_off


def follow(calls: Iterable[Triplet]) -> list[Conversation]:
    """One conversation for each line of an attempt, in the order they began: sub-agents, ``n > 1`` and a rewritten history fork; a next
    turn goes on with the longest one that its prompt repeats. A change of reward or of checkpoint starts one of its own.

    Time grows with the tokens of all prompts, whatever the number of conversations.
    """
    calls = list(calls)
    only = _follow_one(calls)
    return _follow_many(calls) if only is None else [only] if only.calls else []


def _follow_one(calls: Sequence[Triplet]) -> Conversation | None:
    """The usual attempt, in a fraction of the time that hashing takes; None for one that forks."""
    conversation = Conversation()
    for call in calls:
        so_far = conversation.input_ids
        if call.prompt_ids[: len(so_far)] != so_far or _common(call) != _common(calls[0]):
            return None
        conversation.add(call)
    return conversation


def _follow_many(calls: Sequence[Triplet]) -> list[Conversation]:
    """A prompt is hashed once, and looked up at the lengths that conversations have."""
    conversations: list[Conversation] = []
    known: dict[_Key, list[Conversation]] = {}
    for call in calls:
        prompt = memoryview(array("q", call.prompt_ids)).cast("B")
        hashed, done, repeated = hashlib.blake2b(digest_size=16), 0, None
        for length in sorted({length for length, *_ in known if length <= len(call.prompt_ids)}):
            hashed.update(prompt[done * WIDTH : length * WIDTH])
            done = length
            key = (length, hashed.digest(), _common(call))
            repeated = key if key in known else repeated
        hashed.update(prompt[done * WIDTH :])
        hashed.update(array("q", call.response_ids))
        if repeated is None:
            conversations.append(conversation := Conversation())
        else:
            conversation = known[repeated].pop(0)
            if not known[repeated]:
                del known[repeated]
        conversation.add(call)
        known.setdefault((conversation.ends[-1], hashed.digest(), _common(call)), []).append(conversation)
    return conversations


def _common(call: Triplet) -> _Common:
    return call.reward, call.checkpoint
