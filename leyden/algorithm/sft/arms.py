"""What selection was worth: the version before, the one trained on selected rows, and the one trained on as many at random."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from leyden.algorithm.sft.evaluate import Evaluation
from leyden.environments.compare import compare_clustered
from leyden.environments.outcomes import Outcomes
from leyden.types import Record


class Arm(Record):
    """``difference``, ``low``, ``high``: of its pass rate at T=1 to that of the version before, by task, 95 %. None for that one."""

    arm: str
    version: str
    sampled: dict[str, Any] | None = None  # as in the summary's ``versions``; None where nothing was held out
    greedy: dict[str, Any] | None = None
    difference: float | None = None
    low: float | None = None
    high: float | None = None


class Arms(Record):
    """``sentence``: selected against random, paired by task; None where nothing was held out."""

    arms: tuple[Arm, ...]
    sentence: str | None = None

    @classmethod
    def of(
        cls, base: str, selected: str, control: str, before: Evaluation | None, after: Evaluation | None, at_random: Evaluation | None
    ) -> Arms:
        names = (("base", base), ("selected", selected), ("random", control))
        if before is None or after is None or at_random is None:
            return cls(arms=tuple(Arm(arm=arm, version=version) for arm, version in names))
        measured = (before, after, at_random)
        arms = tuple(_arm(arm, version, before, one) for (arm, version), one in zip(names, measured, strict=True))
        compared = compare_clustered(_pairs(at_random, after))
        p = compared.p_higher if compared.difference >= 0 else compared.p_lower
        low, high = compared.interval.low, compared.interval.high
        sentence = (
            f"selected against random at T=1: {compared.difference:+.2f} on {compared.pairs} tasks, "
            f"95 % {low:+.2f} to {high:+.2f}, p = {p:.2g} (one-sided)"
        )
        return cls(arms=arms, sentence=sentence)

    def table(self, number: int) -> Table:
        table = Table(title=f"iteration {number}: selected rows beside as many at random, 95 % intervals")
        for heading in ("rows", "version", "T=1", "T=0", "against base, T=1"):
            table.add_column(heading, justify="left" if heading in ("rows", "version") else "right")
        for arm in self.arms:
            beside = f"{arm.difference:+.2f} ({arm.low:+.2f} to {arm.high:+.2f})" if arm.difference is not None else ""
            table.add_row(arm.arm, arm.version, _rate(arm.sampled), _rate(arm.greedy), beside)
        return table


def _arm(arm: str, version: str, before: Evaluation, one: Evaluation) -> Arm:
    sampled, greedy = one.sampled.as_summary(), one.greedy.as_summary()
    if one is before:
        return Arm(arm=arm, version=version, sampled=sampled, greedy=greedy)
    compared = compare_clustered(_pairs(before, one))
    low, high = round(compared.interval.low, 4), round(compared.interval.high, 4)
    return Arm(arm=arm, version=version, sampled=sampled, greedy=greedy, difference=round(compared.difference, 4), low=low, high=high)


def _pairs(first: Evaluation, second: Evaluation) -> list[tuple[list[bool], list[bool]]]:
    a: Outcomes = first.sampled.outcomes(first.version)
    b: Outcomes = second.sampled.outcomes(second.version)
    return [(a.passed(task), b.passed(task)) for task in b.tasks]


def _rate(measured: dict[str, Any] | None) -> str:
    return f"{measured['pass_rate']:.2f} ({measured['low']:.2f}–{measured['high']:.2f})" if measured else "not measured"
