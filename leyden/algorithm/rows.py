"""Training rows: what the model read and what it said, with a label on exactly the tokens it sampled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from pydantic import Field

from leyden.algorithm.conversations import IGNORED as IGNORED
from leyden.algorithm.conversations import Conversation, follow
from leyden.algorithm.refusals import Quarantined, Refusal
from leyden.types import Record, Triplet

ENDED = ("stop", "tool_calls", "function_call")  # finish reasons of a turn that the model itself ended


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


class RowsConfig(Record):
    max_tokens: int = Field(4096, ge=2)  # longest row, prompt included
    truncate: Literal["refuse", "turns"] = "refuse"  # a longer one, or (turns) leave off the calls at its end that do not fit
    keep_truncated: bool = False  # learn from calls that stopped at their token limit
    any_template: bool = False  # learn from prompts that the checkpoint's own chat template would not have made


@dataclass(frozen=True)
class RowsReport:
    """``calls`` = ``rows`` + ``merged_calls`` + the calls in quarantine."""

    calls: int
    rows: int
    refused: dict[str, int]  # rows, by reason
    merged_calls: int  # calls that extended an earlier one of their attempt, and share its row
    forks: int  # later calls of an attempt that extend none of its rows
    cut_calls: int  # left off at the ends of rows that were too long with them
    ended_by_eos: int  # rows whose last label is the sampled end-of-turn token
    tokens: int
    sampled_tokens: int
    tokens_saved: int  # by merging: what separate rows would have repeated


@dataclass(frozen=True)
class Built:
    rows: list[Row]
    report: RowsReport
    quarantined: list[Quarantined]


Misread = Callable[[Triplet], str | None]
"""Of a conversation's first call: how its prompt differs from what the checkpoint being trained would have read; None if it does not."""


def build_rows(
    triplets: Iterable[Triplet],
    tasks: Mapping[str, str],
    eos_ids: Collection[int],
    config: RowsConfig | None = None,
    misread: Misread = lambda opening: None,
) -> Built:
    """Merge each attempt's calls into as few rows as their ids allow.

    ``triplets``: each attempt's together, in order. ``tasks``: rollout id → task id. ``eos_ids``: the model's end-of-turn tokens.
    """
    config = config or RowsConfig()
    rows: list[Row] = []
    quarantined: list[Quarantined] = []
    refused: Counter[str] = Counter()
    calls = forks = cut = separate_tokens = 0
    for _, group in groupby(triplets, key=lambda t: (t.rollout_id, t.attempt)):
        attempt = list(group)
        silent = [call for call in attempt if not call.response_ids]
        if silent:
            refused[Refusal.EMPTY] += len(silent)
            quarantined.append(_quarantine(silent, Refusal.EMPTY, None, tasks))
        conversations = follow(call for call in attempt if call.response_ids)
        calls += len(silent)
        forks += max(0, len(conversations) - 1)
        for one in conversations:
            calls += len(one.calls)
            if config.truncate == "turns" and (left_off := one.cut(config.max_tokens)):
                cut += len(left_off)
                quarantined.append(
                    _quarantine(left_off, Refusal.TOO_LONG, f"beyond {config.max_tokens} tokens; the row ends before", tasks)
                )
            found = _refuse(one, eos_ids, config, misread)
            if found is not None:
                refused[found[0]] += 1
                quarantined.append(_quarantine(one.calls, *found, tasks))
                continue
            separate_tokens += sum(len(call.prompt_ids) + len(call.response_ids) for call in one.calls)
            rows.append(_row(one, tasks))
    tokens = sum(len(row.input_ids) for row in rows)
    report = RowsReport(
        calls=calls,
        rows=len(rows),
        refused=dict(refused),
        merged_calls=sum(len(row.generation_ids) - 1 for row in rows),
        forks=forks,
        cut_calls=cut,
        ended_by_eos=sum(row.labels[-1] in eos_ids for row in rows),
        tokens=tokens,
        sampled_tokens=sum(row.sampled_tokens for row in rows),
        tokens_saved=separate_tokens - tokens,
    )
    return Built(rows, report, quarantined)


def _row(one: Conversation, tasks: Mapping[str, str]) -> Row:
    last = one.calls[-1]
    assert last.reward is not None
    return Row(
        input_ids=one.input_ids,
        labels=one.labels,
        reward=last.reward,
        rollout_id=last.rollout_id,
        attempt=last.attempt,
        task=tasks.get(last.rollout_id, last.rollout_id),
        generation_ids=tuple(call.generation_id for call in one.calls),
        checkpoint=last.checkpoint,
    )


def _quarantine(calls: Sequence[Triplet], reason: Refusal, detail: str | None, tasks: Mapping[str, str]) -> Quarantined:
    return Quarantined(
        rollout_id=calls[0].rollout_id,
        attempt=calls[0].attempt,
        generation_ids=tuple(call.generation_id for call in calls),
        reason=reason,
        detail=detail,
        task=tasks.get(calls[0].rollout_id),
    )


def _refuse(one: Conversation, eos_ids: Collection[int], config: RowsConfig, misread: Misread) -> tuple[Refusal, str | None] | None:
    last = one.calls[-1]
    if last.reward is None:
        return Refusal.NO_REWARD, None
    if len(one.input_ids) > config.max_tokens:
        return Refusal.TOO_LONG, f"{len(one.input_ids)} tokens, over {config.max_tokens}"
    if any(call.finish_reason is None for call in one.calls):
        return Refusal.FINISH_UNKNOWN, None  # it may have been cut off: "stop" is what an engine says, never what is assumed
    cut_off = [(turn, call.finish_reason) for turn, call in enumerate(one.calls, 1) if call.finish_reason not in ENDED]
    if cut_off and not config.keep_truncated:
        return Refusal.TRUNCATED, f"call {cut_off[0][0]} of {len(one.calls)} ended by {cut_off[0][1]}"
    if last.finish_reason in ENDED and not _ends(last, eos_ids):
        return Refusal.NO_EOS, f"ended by {last.finish_reason} in token {last.response_ids[-1]}"
    if not config.any_template and (difference := misread(one.calls[0])) is not None:
        return Refusal.TEMPLATE_MISMATCH, difference
    return None


def _ends(call: Triplet, eos_ids: Collection[int]) -> bool:
    """Whether its last token is one to stop at. Which tokens a stop text was sampled in, only the engine knows."""
    end = call.response_ids[-1]
    return end in eos_ids or end in call.stops or any(isinstance(stop, str) for stop in call.stops)
