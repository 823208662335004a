"""What a gate says: promote, reject or undecided, stage by stage, with the numbers."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from leyden.types import Record

Number = float | int | str | None


class Decision(StrEnum):
    PROMOTE = "promote"  # better beyond chance, and nothing speaks against it
    REJECT = "reject"  # worse beyond chance, or a hard gate failed
    UNDECIDED = "undecided"  # nothing shown either way


class StageOutcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    UNDECIDED = "undecided"
    NO_DATA = "no data"
    NOT_ASKED = "not asked"


class Stage(Record):
    """One question, and what came of it. ``required``: without data the verdict cannot be ``PROMOTE``."""

    name: str
    outcome: StageOutcome
    sentence: str
    required: bool = False
    numbers: dict[str, Number] = Field(default_factory=dict)

    @property
    def hinders(self) -> bool:
        """It leaves the verdict open."""
        return self.outcome is StageOutcome.UNDECIDED or (self.outcome is StageOutcome.NO_DATA and self.required)

    def __str__(self) -> str:
        return f"{self.outcome:9}  {self.name}: {self.sentence}"


class Verdict(Record):
    """``power`` says what this comparison could have found at all; None where there was nothing to compare."""

    decision: Decision
    champion: str | None
    candidate: str
    reason: str
    stages: tuple[Stage, ...]
    power: str | None = None
    warnings: tuple[str, ...] = ()

    @property
    def promote(self) -> bool:
        return self.decision is Decision.PROMOTE

    @property
    def headline(self) -> str:
        """The reason without its evidence."""
        return f"{self.decision}: {self.reason.partition(' (')[0]}"

    def stage(self, name: str) -> Stage:
        """Raises ``KeyError``."""
        return {stage.name: stage for stage in self.stages}[name]

    def lines(self) -> list[str]:
        """For a person to read."""
        said = [str(stage) for stage in self.stages]
        said += [self.power] if self.power else []
        said += [f"warning: {warning}" for warning in self.warnings]
        return [*said, f"{self.decision}: {self.reason}"]
