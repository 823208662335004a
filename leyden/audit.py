"""What was found when a call's token ids were looked at."""

from __future__ import annotations

from enum import StrEnum

from leyden.record import Id, Record


class Finding(StrEnum):
    """What is wrong with what an engine said it sampled. A generation with any of these is not learnt from."""

    NO_IDS = "no_ids"  # the prompt's or the answer's are missing
    OUT_OF_VOCABULARY = "out_of_vocabulary"  # an id below 0, or not below the model's vocabulary
    COUNT_MISMATCH = "count_mismatch"  # the engine's own usage says another number than there are ids
    LOGPROBS_MISALIGNED = "logprobs_misaligned"  # not one for each id
    LOGPROBS_NOT_FINITE = "logprobs_not_finite"  # NaN or an infinity among them
    FINISH_UNKNOWN = "finish_unknown"  # no finish reason, or one that nobody knows


class Continuity(StrEnum):
    """How a call's prompt follows what its attempt sampled before."""

    NEW = "new"  # it repeats no earlier answer: a first turn, or another conversation
    CLEAN = "clean"  # it begins with exactly the ids that an earlier call read and sampled
    REALIGNED = "realigned"  # the same conversation, word for word, in other ids: a template or a tokeniser changed them
    FORKED = "forked"  # the agent changed its own history


class Audit(Record):
    """One generation's.

    ``follows``: the generation whose conversation the prompt goes on with, or would. ``differs_at``: the first position in which the
    prompt's ids are not those that were read and sampled; ``expected`` and ``found``: the texts from there on, cut short. ``exact``: the
    prompt was put together from sampled ids, not rendered anew.
    """

    findings: tuple[Finding, ...] = ()
    continuity: Continuity | None = None  # None: no ids to compare
    follows: Id | None = None
    differs_at: int | None = None
    expected: str | None = None
    found: str | None = None
    exact: bool = False
