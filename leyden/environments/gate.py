"""What the gate before a checkpoint serves asks of a candidate; ``judging.judge`` asks it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, FiniteFloat

from leyden.types import Record

Measure = Literal["tokens", "tool_calls", "seconds", "cost"]
StageName = Literal["coverage", "safety", "pass rate", "greedy", "stability", "recovery", "efficiency", "regression"]


class Budget(Record):
    """Of the mean over an attempt: at most ``most``, and at most ``ratio`` times the champion's."""

    most: float | None = Field(None, gt=0)
    ratio: float | None = Field(None, gt=0)


class Gate(Record):
    """What is asked of a candidate. What is None or empty is not asked, and says so in the verdict."""

    alpha: float = Field(0.05, gt=0, lt=1)  # of each test, one-sided
    min_heldout: int = Field(128, ge=0)  # with fewer tasks the verdict warns; the tests hold their level with any number
    safety: dict[str, FiniteFloat] = Field(default_factory=dict)  # dimension → the least a scored attempt may have. One below it rejects
    min_coverage: float | None = Field(None, ge=0, le=1)  # scored over planned attempts
    max_coverage_drop: float = Field(0.1, ge=0, le=1)  # below the champion's coverage; beyond it the two are not comparable
    min_pass_rate: float | None = Field(None, ge=0, le=1)
    max_drop: float | None = Field(None, ge=0, le=1)  # of any single task's pass rate, below the champion's
    min_recovery: float | None = Field(None, ge=0, le=1)  # of attempts in which a tool failed, the share that pass all the same
    budgets: dict[Measure, Budget] = Field(default_factory=dict)
    regression_margin: float = Field(0.05, ge=0, lt=1)  # how much worse the candidate may be on the regression tasks
    require: tuple[StageName, ...] = ()  # stages without whose data nothing is promoted, beside those that a bound is set for
