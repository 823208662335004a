"""Which of several scores of one attempt is the one that counts."""

from __future__ import annotations

from collections.abc import Iterable

from leyden.types import Reward


def of_one_source(rewards: Iterable[Reward], name: str, source: str | None = None) -> list[Reward]:
    """The rewards of that name, in order; for each attempt those of ``source``, or of whoever spoke first. So a second opinion, recorded
    later, changes nothing for those who do not ask for it."""
    first: dict[tuple[str | None, int | None], str] = {}
    kept = []
    for reward in rewards:
        if reward.name == name and (source or first.setdefault((reward.rollout_id, reward.attempt), reward.source)) == reward.source:
            kept.append(reward)
    return kept
