"""From what the proxy captured to what training sees: one triplet for each call the model answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from leyden.environments.scored import of_one_source
from leyden.types import Generation, Reward, Triplet


class Refusal(StrEnum):
    """Why a generation gave no triplet."""

    ERROR = "error"  # the call failed
    DISCONNECTED = "disconnected"  # the agent hung up before the answer was complete
    LATE = "late"  # it arrived under a lease that was already lost
    NO_IDS = "no_ids"  # the engine did not return its token ids


class GenerationsToTriplets:
    """Adapts captured generations. ``refused`` counts, over the adapter's life, what gave no triplet and why.

    Rewards follow the recipe's rule. Walking an attempt's calls backwards, the most recent reward carries to the calls before
    it; a reward positioned on a generation starts at that call, one positioned at "end" at the last call. Of several sources'
    rewards, those of ``source`` count, or for each attempt those of the source that spoke first.
    """

    def __init__(self, reward_name: str = "reward", source: str | None = None) -> None:
        self.reward_name = reward_name
        self.source = source
        self.refused: Counter[Refusal] = Counter()
        self.unplaced_rewards = 0  # positioned on something that is no call of the attempt, e.g. a tool's span

    def adapt(self, generations: Iterable[Generation], rewards: Iterable[Reward]) -> list[Triplet]:
        """Generations of any number of attempts, each attempt's in order of start. A triplet without a reward has None."""
        attempts: dict[tuple[str, int], list[Generation]] = {}
        for generation in generations:
            attempts.setdefault((generation.rollout_id, generation.attempt), []).append(generation)
        positioned: dict[tuple[str | None, int | None], dict[str, float]] = {}
        for reward in of_one_source(rewards, self.reward_name, self.source):
            positioned.setdefault((reward.rollout_id, reward.attempt), {})[reward.position] = reward.value
        return [triplet for key, calls in attempts.items() for triplet in self._adapt_attempt(calls, positioned.get(key, {}))]

    def _adapt_attempt(self, calls: Sequence[Generation], rewards: Mapping[str, float]) -> list[Triplet]:
        self.unplaced_rewards += len(rewards.keys() - {call.id for call in calls} - {"end"})
        triplets = []
        recent = rewards.get("end")
        for call in reversed(calls):
            recent = rewards.get(call.id, recent)
            reason = _refuse(call)
            if reason:
                self.refused[reason] += 1
            else:
                triplets.append(_triplet(call, recent))
        return triplets[::-1]


def _refuse(call: Generation) -> Refusal | None:
    if call.status != "ok":
        return Refusal(call.status)
    if call.late:
        return Refusal.LATE
    if not call.prompt_token_ids or call.response_token_ids is None:
        return Refusal.NO_IDS
    return None


def _triplet(call: Generation, reward: float | None) -> Triplet:
    return Triplet(
        prompt_ids=call.prompt_token_ids or [],
        response_ids=call.response_token_ids or [],
        logprobs=call.logprobs,
        reward=reward,
        finish_reason=call.finish_reason,
        rollout_id=call.rollout_id,
        attempt=call.attempt,
        generation_id=call.id,
        checkpoint=call.checkpoint,
    )
