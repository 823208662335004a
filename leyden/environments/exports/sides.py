"""Attempts of one task that were asked the very same: what may be held against each other."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from leyden.environments.attempt import AttemptResult
from leyden.environments.exports.conversation import Conversation, Refused, tool_conversation
from leyden.environments.exports.format import Skip


@dataclass(frozen=True)
class Side:
    attempt: AttemptResult
    conversation: Conversation


def read_sides(attempts: Iterable[AttemptResult]) -> tuple[list[list[Side]], list[Skip]]:
    """Groups with one prompt and one set of tools each, in the order of their first attempts; and what gave no conversation."""
    groups: dict[str, list[Side]] = {}
    skipped: list[Skip] = []
    for attempt in attempts:
        assert attempt.run is not None
        try:
            conversation = tool_conversation(attempt.run)
        except Refused as refused:
            skipped.append(Skip(refused.outcome, refused.reason))
            continue
        groups.setdefault(json.dumps([conversation.prompt, conversation.tools]), []).append(Side(attempt, conversation))
    return list(groups.values()), skipped


def pairs_of(group: Sequence[Side]) -> Iterator[tuple[Side, Side]]:
    """The first that passed with the first that failed, the second with the second: no attempt is in two pairs."""
    passed = [side for side in group if side.attempt.passed]
    failed = [side for side in group if not side.attempt.passed]
    return zip(passed, failed, strict=False)
