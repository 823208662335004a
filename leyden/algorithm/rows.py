"""Training rows: what the model read and what it said, with a label on exactly the tokens it sampled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby

from leyden.types import Record, Triplet

IGNORED = -100  # the label that cross-entropy skips


@dataclass(frozen=True)
class Row:
    """``input_ids``, ``labels`` and ``attention_mask`` have one shape [T]. Labels are ``IGNORED`` but for sampled tokens."""

    input_ids: list[int]
    labels: list[int]
    reward: float
    rollout_id: str
    attempt: int
    task: str
    generation_ids: tuple[str, ...]
    checkpoint: str | None = None

    @property
    def attention_mask(self) -> list[int]:
        return [1] * len(self.input_ids)

    @property
    def sampled_tokens(self) -> int:
        return sum(label != IGNORED for label in self.labels)


class RowRefusal(StrEnum):
    """Why what an attempt said makes no row."""

    NO_REWARD = "no_reward"  # nobody scored the attempt
    TRUNCATED = "truncated"  # a call stopped at its token limit: learning it would teach to stop mid-sentence
    NO_EOS = "no_eos"  # it ended by "stop" (or "tool_calls", which is the same with a call), but not in a sampled end-of-turn token
    TOO_LONG = "too_long"  # longer than the training child would keep
    EMPTY = "empty"  # nothing was sampled


class RowsConfig(Record):
    max_tokens: int = 4096  # longest row, prompt included
    keep_truncated: bool = False


@dataclass(frozen=True)
class RowsReport:
    calls: int
    rows: int
    refused: dict[str, int]
    merged_calls: int  # calls that extended an earlier one of their attempt, and share its row
    forks: int  # later calls of an attempt that extend none of its rows
    ended_by_eos: int  # rows whose last label is the sampled end-of-turn token
    tokens: int
    sampled_tokens: int
    tokens_saved: int  # by merging: what separate rows would have repeated


@dataclass
class _Draft:
    """A row in the making: one conversation as far as it has been followed."""

    input_ids: list[int]
    labels: list[int]
    calls: list[Triplet] = field(default_factory=list)

    def continues(self, call: Triplet) -> bool:
        """The call's prompt is this conversation word for word, and was judged the same. A change of reward starts a row of its own."""
        return self.calls[-1].reward == call.reward and call.prompt_ids[: len(self.input_ids)] == self.input_ids

    def add(self, call: Triplet) -> None:
        new = call.prompt_ids[len(self.input_ids) :]  # what the template and the tools put in between
        self.input_ids += new + call.response_ids
        self.labels += [IGNORED] * len(new) + call.response_ids
        self.calls.append(call)


def build_rows(
    triplets: Iterable[Triplet], tasks: Mapping[str, str], eos_ids: Collection[int], config: RowsConfig | None = None
) -> tuple[list[Row], RowsReport]:
    """Merge each attempt's calls into as few rows as their ids allow.

    ``triplets``: each attempt's together, in order. ``tasks``: rollout id → task id. ``eos_ids``: the model's end-of-turn tokens.
    """
    config = config or RowsConfig()
    rows: list[Row] = []
    refused: Counter[str] = Counter()
    calls = merged = forks = separate_tokens = eos_rows = 0
    for _, group in groupby(triplets, key=lambda t: (t.rollout_id, t.attempt)):
        drafts = _follow(attempt := list(group))
        calls += len(attempt)
        merged += len(attempt) - len(drafts)
        forks += len(drafts) - 1
        for draft in drafts:
            reason = _refuse(draft, eos_ids, config)
            if reason:
                refused[reason] += 1
                continue
            last = draft.calls[-1]
            eos_rows += draft.labels[-1] in eos_ids
            separate_tokens += sum(len(c.prompt_ids) + len(c.response_ids) for c in draft.calls)
            rows.append(
                Row(
                    input_ids=draft.input_ids,
                    labels=draft.labels,
                    reward=last.reward if last.reward is not None else 0.0,
                    rollout_id=last.rollout_id,
                    attempt=last.attempt,
                    task=tasks.get(last.rollout_id, last.rollout_id),
                    generation_ids=tuple(c.generation_id for c in draft.calls),
                    checkpoint=last.checkpoint,
                )
            )
    tokens = sum(len(row.input_ids) for row in rows)
    report = RowsReport(
        calls=calls,
        rows=len(rows),
        refused=dict(refused),
        merged_calls=merged,
        forks=forks,
        ended_by_eos=eos_rows,
        tokens=tokens,
        sampled_tokens=sum(row.sampled_tokens for row in rows),
        tokens_saved=separate_tokens - tokens,
    )
    return rows, report


def _follow(calls: Iterable[Triplet]) -> list[_Draft]:
    """One draft per conversation: sub-agents and ``n > 1`` fork, a next turn extends the longest one it repeats."""
    drafts: list[_Draft] = []
    for call in calls:
        candidates = [draft for draft in drafts if draft.continues(call)]
        if candidates:
            draft = max(candidates, key=lambda d: len(d.input_ids))
        else:
            drafts.append(draft := _Draft([], []))
        draft.add(call)
    return drafts


def _refuse(draft: _Draft, eos_ids: Collection[int], config: RowsConfig) -> RowRefusal | None:
    last = draft.calls[-1]
    if last.reward is None:
        return RowRefusal.NO_REWARD
    if all(label == IGNORED for label in draft.labels):
        return RowRefusal.EMPTY
    if not config.keep_truncated and any(call.finish_reason == "length" for call in draft.calls):
        return RowRefusal.TRUNCATED
    if last.finish_reason in ("stop", "tool_calls") and (not last.response_ids or last.response_ids[-1] not in eos_ids):
        return RowRefusal.NO_EOS
    if len(draft.input_ids) > config.max_tokens:
        return RowRefusal.TOO_LONG
    return None
