"""From what was captured to rows, with everything that was left out on the way: the same for a loop, an export and a replay."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from leyden.algorithm.attribution import Attribution
from leyden.algorithm.refusals import Quarantined, Refusal, by_reason
from leyden.algorithm.rows import Row, RowsConfig, RowsReport, build_rows
from leyden.algorithm.template_check import TemplateCheck
from leyden.algorithm.triplets import GenerationsToTriplets
from leyden.models.eos import eos_token_ids
from leyden.models.reading import Reader, vocabulary_size
from leyden.types import Generation, Reward


@dataclass(frozen=True)
class Learner:
    """The checkpoint that rows are for. Without a ``name``, whoever said it is learnt from; without a ``reader``, whatever the template."""

    eos_ids: Collection[int]
    name: str | None = None
    vocabulary: int | None = None
    reader: Reader | None = None

    @classmethod
    def of(cls, name: str, model_dir: Path) -> Learner:
        """Raises ``UsageError`` for a model that does not say which token ends a turn."""
        return cls(eos_token_ids(model_dir), name, vocabulary_size(model_dir), Reader(model_dir))


@dataclass(frozen=True)
class Harvest:
    """``calls`` = the rows' + those in ``quarantined``: each once."""

    calls: int
    rows: list[Row]
    report: RowsReport
    calls_refused: dict[str, int]  # before there were rows, by reason
    quarantined: list[Quarantined]
    rewards_unplaced: int

    def __post_init__(self) -> None:
        in_rows = self.report.rows + self.report.merged_calls
        if self.calls != in_rows + self.quarantined_calls:
            raise AssertionError(f"{self.calls} calls, but {in_rows} in rows and {self.quarantined_calls} in quarantine")

    @property
    def quarantined_calls(self) -> int:
        return by_reason(self.quarantined).total()

    @property
    def reasons(self) -> dict[str, int]:
        """Calls in quarantine, by reason."""
        return {str(reason): calls for reason, calls in sorted(by_reason(self.quarantined).items())}


def harvest(
    generations: Sequence[Generation],
    rewards: Sequence[Reward],
    tasks: Mapping[str, str],
    learner: Learner,
    config: RowsConfig | None = None,
    attribution: Attribution | None = None,
    left_out: Mapping[str, Refusal] | None = None,
) -> Harvest:
    """``generations``: each attempt's in order. ``tasks``: rollout id → task id. ``left_out``: rollout id → why all of it is."""
    left_out = left_out or {}
    adapter = GenerationsToTriplets(attribution=attribution, vocabulary=learner.vocabulary, checkpoint=learner.name)
    attempts: dict[tuple[str, int], list[str]] = {}
    for item in generations:
        if item.rollout_id in left_out:
            attempts.setdefault((item.rollout_id, item.attempt), []).append(item.id)
    apart = [
        Quarantined(rollout_id=rollout_id, attempt=attempt, generation_ids=tuple(ids), reason=left_out[rollout_id])
        for (rollout_id, attempt), ids in attempts.items()
    ]
    triplets = adapter.adapt([item for item in generations if item.rollout_id not in left_out], rewards)
    misread = TemplateCheck(learner.reader, generations) if learner.reader is not None else lambda opening: None
    built = build_rows(triplets, tasks, learner.eos_ids, config, misread)
    named = [entry.model_copy(update={"task": tasks.get(entry.rollout_id)}) for entry in [*apart, *adapter.quarantined]]
    return Harvest(
        calls=len(generations),
        rows=built.rows,
        report=built.report,
        calls_refused={str(reason): count for reason, count in adapter.refused.items()},
        quarantined=[*named, *built.quarantined],
        rewards_unplaced=adapter.unplaced_rewards,
    )
