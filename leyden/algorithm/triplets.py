"""From what the proxy captured to what training sees: one triplet for each call the model answered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

from leyden.algorithm.adapter import Adapter
from leyden.algorithm.attribution import Attribution, attribute, positions
from leyden.algorithm.refusals import Refusal as Refusal
from leyden.audit import LOGPROB_FLOOR
from leyden.environments.scored import of_one_source
from leyden.types import Generation, Reward, Triplet

Attempt = tuple[str | None, int | None]  # rollout, number
LARGEST = 1 << 31  # ids are 32-bit integers in a dataset


class GenerationsToTriplets(Adapter[Generation, Triplet]):
    """Adapts captured generations. One whose audit has a finding gives no triplet, and the finding is the reason.

    ``vocabulary``: how many ids the checkpoint being trained knows; a call with another one gives no triplet. ``checkpoint``: its name,
    where only what it said itself is to be learnt. Of several sources' rewards, those of ``source`` count, or for each attempt those of
    the source that spoke first; ``attribution`` says which call each belongs to.
    """

    def __init__(
        self,
        reward_name: str = "reward",
        source: str | None = None,
        attribution: Attribution | None = None,
        vocabulary: int | None = None,
        checkpoint: str | None = None,
    ) -> None:
        super().__init__()
        self.reward_name = reward_name
        self.source = source
        self.attribution = attribution or Attribution()
        self.vocabulary = vocabulary
        self.checkpoint = checkpoint
        self.unplaced_rewards = 0  # that belong to no call, e.g. positioned on a tool's span

    def adapt(self, captured: Iterable[Generation], rewards: Iterable[Reward] = ()) -> list[Triplet]:
        """Each attempt's in order of start. A triplet without a reward has None."""
        attempts: dict[Attempt, list[Generation]] = {}
        for generation in captured:
            attempts.setdefault((generation.rollout_id, generation.attempt), []).append(generation)
        positioned = by_position(rewards, self.reward_name, self.source)
        return [triplet for key, calls in attempts.items() for triplet in self._adapt_attempt(calls, positioned.get(key, {}))]

    def _adapt_attempt(self, calls: Sequence[Generation], rewards: Mapping[str, float]) -> list[Triplet]:
        values, unplaced = attribute(len(calls), positions([call.id for call in calls], rewards), self.attribution)
        self.unplaced_rewards += unplaced
        triplets = []
        for call, value in zip(calls, values, strict=True):
            if (found := self._find(call)) is not None:
                self.refuse(call.rollout_id, call.attempt, call.id, *found)
            else:
                triplets.append(_triplet(call, value))
        return triplets

    def _find(self, call: Generation) -> tuple[Refusal, str | None] | None:
        if call.status != "ok":
            return Refusal(call.status), call.error
        if call.late:
            return Refusal.LATE, None
        if self.checkpoint is not None and call.checkpoint != self.checkpoint:
            return Refusal.OTHER_CHECKPOINT, f"{call.checkpoint or call.model} said it, not {self.checkpoint}"
        if call.audit is not None and call.audit.findings:
            return Refusal(call.audit.findings[0]), ", ".join(call.audit.findings[1:]) or None
        if not call.prompt_token_ids or call.response_token_ids is None:
            return Refusal.NO_IDS, None
        stranger = out_of(self.vocabulary, call.prompt_token_ids, call.response_token_ids)
        if stranger is not None:
            return Refusal.OUT_OF_VOCABULARY, stranger
        return misfit(call.response_token_ids, call.logprobs) if call.audit is None else None


def by_position(rewards: Iterable[Reward], name: str, source: str | None) -> dict[Attempt, dict[str, float]]:
    """Attempt → position → value, of one source."""
    found: dict[Attempt, dict[str, float]] = {}
    for reward in of_one_source(rewards, name, source):
        found.setdefault((reward.rollout_id, reward.attempt), {})[reward.position] = reward.value
    return found


def out_of(vocabulary: int | None, *ids: Sequence[int]) -> str | None:
    """Which of ``ids`` is none, for a person; None where all may be. Without a ``vocabulary`` any that a dataset can hold may."""
    for some in ids:
        least, most = min(some, default=0), max(some, default=0)
        if least < 0 or most >= (vocabulary or LARGEST):
            return f"id {least if least < 0 else most}" + (f" of a vocabulary of {vocabulary}" if vocabulary else "")
    return None


def misfit(response: Sequence[int], logprobs: Sequence[float] | None) -> tuple[Refusal, str | None] | None:
    """What an audit would have found of log-probabilities [R] of ``response`` [R], of a call that had none."""
    if logprobs is None:
        return None
    if len(logprobs) != len(response):
        return Refusal.LOGPROBS_MISALIGNED, f"{len(logprobs)} for {len(response)} ids"
    return (Refusal.LOGPROBS_NOT_FINITE, None) if any(not isfinite(one) or one <= LOGPROB_FLOOR for one in logprobs) else None


def _triplet(call: Generation, reward: float | None) -> Triplet:
    return Triplet(
        prompt_ids=call.prompt_token_ids or [],
        response_ids=call.response_token_ids or [],
        logprobs=call.logprobs,
        reward=reward,
        finish_reason=call.finish_reason,
        stops=_stops(call.sampling),
        rollout_id=call.rollout_id,
        attempt=call.attempt,
        generation_id=call.id,
        checkpoint=call.checkpoint,
    )


def _stops(sampling: Mapping[str, Any]) -> tuple[str | int, ...]:
    texts = sampling.get("stop") or ()
    return (*((texts,) if isinstance(texts, str) else texts), *(sampling.get("stop_token_ids") or ()))
