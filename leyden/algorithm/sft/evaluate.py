"""How good is a version: the share of held-out tasks it passes, sampled and greedily, with an interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leyden.algorithm.sft.collect import Ended
from leyden.algorithm.sft.settings import GREEDY, SAMPLED
from leyden.algorithm.statistics import Interval, PairedComparison, compare_paired, wilson
from leyden.types import Record


class Measurement(Record):
    """One version at one temperature, one attempt a task. ``passed[i]`` is None where task i could not be scored.

    The rate is over the planned tasks, so an unscored one counts against it, and is reported beside it.
    """

    temperature: float
    passed: tuple[bool | None, ...]

    @property
    def n(self) -> int:
        return len(self.passed)

    @property
    def scored(self) -> int:
        return sum(outcome is not None for outcome in self.passed)

    @property
    def passes(self) -> int:
        return sum(outcome is True for outcome in self.passed)

    @property
    def rate(self) -> float:
        return self.passes / self.n if self.n else 0.0

    @property
    def interval(self) -> Interval:
        return wilson(self.passes, self.n)

    def as_summary(self) -> dict[str, Any]:
        low, high = self.interval.low, self.interval.high
        return {
            "pass_rate": round(self.rate, 4),
            "low": round(low, 4),
            "high": round(high, 4),
            "n": self.n,
            "passed": self.passes,
            "scored": self.scored,
        }

    def __str__(self) -> str:
        unscored = f", {self.n - self.scored} unscored" if self.scored < self.n else ""
        return f"{self.rate:.2f} ({self.interval}{unscored})"


class Evaluation(Record):
    """One version on the held-out tasks: sampled at T=1 and greedily at T=0."""

    version: str
    sampled: Measurement
    greedy: Measurement

    def as_summary(self) -> dict[str, Any]:
        return {"version": self.version, **self.sampled.as_summary(), "greedy": self.greedy.as_summary()}


class Decision(Record):
    promote: bool
    verdict: str
    evidence: str | None = None

    @property
    def reason(self) -> str:
        return f"{self.verdict}: {self.evidence}" if self.evidence else self.verdict


def measure(ended: Sequence[Ended], temperature: float, passing: float) -> Measurement:
    """``ended``: one rollout a task, in the tasks' order. One without a reward is unscored."""
    return Measurement(
        temperature=temperature,
        passed=tuple(None if end.reward is None else end.reward >= passing for end in ended),
    )


def decide(champion: Evaluation, candidate: Evaluation, alpha: float) -> Decision:
    """The promotion gate: sampled better beyond chance, and greedily not worse beyond chance (McNemar's exact test, one-sided)."""
    sampled = _compare(champion.sampled, candidate.sampled)
    greedy = _compare(champion.greedy, candidate.greedy)
    better = sampled.p_higher < alpha
    worse = greedy.p_lower < alpha
    if not better:
        verdict = f"{candidate.version} is not better than {champion.version} beyond chance"
    elif worse:
        verdict = f"{candidate.version} is better sampled, but worse greedily"
    else:
        verdict = f"{candidate.version} is better than {champion.version}"
    return Decision(
        promote=better and not worse,
        verdict=verdict,
        evidence=f"{_tell(SAMPLED, champion.sampled, candidate.sampled, sampled, sampled.p_higher)}; "
        f"{_tell(GREEDY, champion.greedy, candidate.greedy, greedy, greedy.p_lower if worse else greedy.p_higher)}",
    )


def _compare(first: Measurement, second: Measurement) -> PairedComparison:
    """Over the tasks that both could be scored on."""
    pairs = zip(first.passed, second.passed, strict=True)
    return compare_paired((a, b) for a, b in pairs if a is not None and b is not None)


def _tell(temperature: float, first: Measurement, second: Measurement, comparison: PairedComparison, p: float) -> str:
    low, high = comparison.interval.low, comparison.interval.high
    return (
        f"T={temperature:g} {first.rate:.2f} → {second.rate:.2f} "
        f"({comparison.difference:+.2f} on {comparison.pairs} tasks, 95 % {low:+.2f} to {high:+.2f}, p = {p:.2g})"
    )
