"""Why something that the model said is not learnt from, and the record that is kept of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum

from leyden.types import Id, Record


class Refusal(StrEnum):
    """The first that holds: of a call's attempt, of the call, of the row it would have been in."""

    # A call.
    ERROR = "error"  # it failed
    DISCONNECTED = "disconnected"  # the agent hung up before the answer was complete
    LATE = "late"  # it arrived under a lease that was already lost
    OTHER_CHECKPOINT = "other_checkpoint"  # another model than the one being trained said it
    # A call's audit, by its finding's name (``leyden.audit.Finding``).
    NO_IDS = "no_ids"
    OUT_OF_VOCABULARY = "out_of_vocabulary"
    COUNT_MISMATCH = "count_mismatch"
    LOGPROBS_MISALIGNED = "logprobs_misaligned"
    LOGPROBS_NOT_FINITE = "logprobs_not_finite"
    FINISH_UNKNOWN = "finish_unknown"
    # A call of a trace.
    OTHER_AGENT = "other_agent"  # not of the agents that were asked for
    NO_MESSAGES = "no_messages"  # what was asked is not in it
    NO_ANSWER = "no_answer"  # what was answered is not in it
    NO_ROLE = "no_role"  # nobody can tell who said one of its messages
    # An attempt.
    ATTEMPT_FAILED = "attempt_failed"  # whatever it earned before is not what its rollout earned
    NO_REWARD = "no_reward"  # nobody scored it
    # A row.
    EMPTY = "empty"  # nothing was sampled
    TOO_LONG = "too_long"  # longer than the training child would keep
    TRUNCATED = "truncated"  # a call stopped at its token limit: learning it would teach to stop mid-sentence
    NO_EOS = "no_eos"  # it ended by "stop" (or "tool_calls", which is the same with a call), but not in a sampled end-of-turn token
    TEMPLATE_MISMATCH = "template_mismatch"  # the checkpoint being trained would have read its request in other tokens


class Quarantined(Record):
    """Calls of one attempt that were refused together, by reference. What they said stays in the store."""

    rollout_id: Id
    attempt: int
    generation_ids: tuple[str, ...]  # in order
    reason: Refusal
    detail: str | None = None  # for a person
    task: str | None = None


def by_reason(entries: Iterable[Quarantined]) -> Counter[Refusal]:
    """Calls, by reason."""
    calls: Counter[Refusal] = Counter()
    for entry in entries:
        calls[entry.reason] += len(entry.generation_ids)
    return calls
