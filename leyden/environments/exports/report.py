"""What an export came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from leyden.environments.exports.outcome import Outcome


@dataclass(frozen=True)
class ExportReport:
    """``counts`` has every outcome; together they are the candidates, which are the scored attempts. A row may hold several attempts (a
    pair, a group), each of which is counted."""

    counts: Mapping[Outcome, int]
    rows: int = 0
    path: Path | None = None  # None: nothing was written
    bytes: int = 0
    sha256: str | None = None  # of the dataset
    unscored: Mapping[str, int] = field(default_factory=dict)  # why nobody could judge: a stop reason, or "scorer" → how many
    refused: Mapping[str, int] = field(default_factory=dict)  # the reasons of ``SKIPPED_AMBIGUOUS`` and ``SKIPPED_UNPAIRED``
    duplicate_rows: int = 0  # written although an equal one was
    redacted: Mapping[str, int] = field(default_factory=dict)  # kind of personal data or secret → how often it was replaced
    warnings: tuple[str, ...] = ()

    def warning_of(self, warning: str) -> Self:
        return replace(self, warnings=(*self.warnings, warning))

    @property
    def n_candidates(self) -> int:
        return sum(self.counts.values())

    @property
    def n_unscored(self) -> int:
        return sum(self.unscored.values())

    @property
    def n_written(self) -> int:
        return self.counts[Outcome.WRITTEN]

    @property
    def n_skipped_failed(self) -> int:
        return self.counts[Outcome.SKIPPED_FAILED]

    @property
    def n_skipped_limit_hit(self) -> int:
        return self.counts[Outcome.SKIPPED_LIMIT_HIT]

    @property
    def n_skipped_tool_runs(self) -> int:
        return self.counts[Outcome.SKIPPED_TOOL_RUNS]

    @property
    def n_skipped_no_text(self) -> int:
        return self.counts[Outcome.SKIPPED_NO_TEXT]

    @property
    def n_dropped_over_cap(self) -> int:
        return self.counts[Outcome.DROPPED_OVER_CAP]

    def as_dict(self) -> dict[str, Any]:
        return {
            "n_candidates": self.n_candidates,
            **{f"n_{outcome}": self.counts[outcome] for outcome in Outcome},
            "n_unscored": self.n_unscored,
            "unscored": dict(sorted(self.unscored.items())),
            "refused": dict(sorted(self.refused.items())),
            "duplicate_rows": self.duplicate_rows,
            "redacted": dict(sorted(self.redacted.items())),
            "warnings": list(self.warnings),
        }

    def __str__(self) -> str:
        """For people: what was written, then only what is not zero."""
        where = f" to {self.path}" if self.path else ""
        scored = f"{self.n_written} of {self.n_candidates} scored attempts"
        lines = [f"{self.rows} rows of {scored}{where}" if self.rows else f"nothing written of {self.n_candidates} scored attempts"]
        lines += [f"  {self.counts[outcome]} {outcome.replace('_', ' ')}" for outcome in Outcome if self._is_worth_telling(outcome)]
        lines += [f"    {number} because: {reason.replace('_', ' ')}" for reason, number in sorted(self.refused.items())]
        lines += [f"  {number} unscored: {reason}" for reason, number in sorted(self.unscored.items())]
        lines += [f"  {self.duplicate_rows} of the rows repeat another"] if self.duplicate_rows else []
        lines += [f"  {number} redacted: {kind}" for kind, number in sorted(self.redacted.items())]
        return "\n".join([*lines, *(f"  warning: {warning}" for warning in self.warnings)])

    def _is_worth_telling(self, outcome: Outcome) -> bool:
        return outcome is not Outcome.WRITTEN and self.counts[outcome] > 0
