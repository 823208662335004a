"""What was found when a call's token ids were looked at."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from leyden.record import Id, Record

LOGPROB_FLOOR = -9999.0  # vLLM writes it for a log-probability that is minus infinity, or no number at all


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
    prompt's ids are not those that were read and sampled; ``expected`` and ``found``: the texts around there, cut short. ``changed``: of a
    forked one, which message the agent changed, and how. ``exact``: the prompt was put together from sampled ids, not rendered anew.
    ``vocabulary``: how many tokens the model knows; None where nobody could say, so that ids were not checked against it.
    """

    findings: tuple[Finding, ...] = ()
    continuity: Continuity | None = None  # None: no ids to compare
    follows: Id | None = None
    differs_at: int | None = None
    expected: str | None = None
    found: str | None = None
    exact: bool = False
    changed: str | None = None
    vocabulary: int | None = None

    @property
    def clean(self) -> bool:
        """Nothing was found, and the prompt, where it goes on with another, does so in the very ids."""
        return not self.findings and self.continuity in (Continuity.NEW, Continuity.CLEAN)


class AuditCounts(Record):
    """Answered calls by what was found, a choice of a call counting as one. Kept by the store with each write, never by a scan."""

    calls: int = 0  # audited
    flagged: int = 0  # of these, with at least one finding
    exact: int = 0  # of these, with a prompt put together from sampled ids
    vocabulary_unknown: int = 0  # of these, not checked against the model's vocabulary
    unaudited: int = 0  # through an engine that gives no ids, or recorded before there was an audit
    failed: int = 0  # not answered: refused, broken off, hung up on
    late: int = 0  # recorded under a lease that was already lost, whatever became of them; counted nowhere else
    continuity: dict[Continuity, int] = Field(default_factory=dict)
    findings: dict[Finding, int] = Field(default_factory=dict)

    @property
    def clean(self) -> bool:
        """Every answered call was audited, and nothing was found in any."""
        changed = self.continuity.get(Continuity.REALIGNED, 0) + self.continuity.get(Continuity.FORKED, 0)
        return not (changed or self.flagged or self.unaudited)

    def __str__(self) -> str:
        """One line for people."""
        parts = [f"{self.calls:,} calls", *(f"{self.continuity.get(kind, 0):,} {kind}" for kind in Continuity)]
        found = ", ".join(f"{name} {n:,}" for name, n in self.findings.items())
        parts.append(f"{self.flagged:,} with findings ({found})" if found else "no findings")
        others = {
            "put together from sampled ids": self.exact,
            "not checked against the vocabulary, which nobody knows": self.vocabulary_unknown,
            "not audited": self.unaudited,
            "failed": self.failed,
            "late": self.late,
        }
        return ", ".join([*parts, *(f"{n:,} {name}" for name, n in others.items() if n)])


class CallAudit(Record):
    """One choice of one call without its ids and texts: what a report needs."""

    generation_id: Id
    call_id: Id
    rollout_id: Id
    attempt: int
    turn: int  # from 1: the call's place in its attempt
    choice: int
    model: str
    checkpoint: str | None = None
    status: str
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    late: bool = False
    audit: Audit | None = None
