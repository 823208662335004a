"""What a caller may say about an export."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict

from leyden.environments.leakage import LeakageGuard
from leyden.errors import UsageError


class ExportKeywords(TypedDict, total=False):
    """The keywords of every ``to_…_jsonl``; see ``ExportOptions``."""

    only_passed: bool
    min_value: float | None
    profile: str | None
    dedupe: bool
    limit: int | None
    redact: bool
    exclude: LeakageGuard | None
    dry_run: bool


@dataclass(frozen=True)
class ExportOptions:
    only_passed: bool = True  # formats that learn from failures have them anyway
    min_value: float | None = None  # of the score
    profile: str | None = None  # whose caps hold (``profile.PROFILES``); None: the format's own
    dedupe: bool = False  # leave out rows that are written already
    limit: int | None = None  # rows
    redact: bool = True  # personal data and secrets
    exclude: LeakageGuard | None = None  # evaluation pools, whose tasks and near twins stay out
    dry_run: bool = False  # count, and leave nothing

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise UsageError(f"limit is {self.limit}", "give at least 1, or none for all rows")
        if self.min_value is not None and not 0 <= self.min_value <= 1:
            raise UsageError(f"min_value is {self.min_value}", "a score lies within 0 and 1")

    def as_dict(self) -> dict[str, Any]:
        return {
            "only_passed": self.only_passed,
            "min_value": self.min_value,
            "profile": self.profile,
            "dedupe": self.dedupe,
            "limit": self.limit,
            "redact": self.redact,
            "exclude": None if self.exclude is None else self.exclude.as_dict(),
        }
