"""How good is a version: the share of held-out tasks it passes, sampled and greedily, with an interval."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from leyden.algorithm.sft.collect import REWARD, Ended, count_tokens
from leyden.environments.gate import Gate
from leyden.environments.judging import judge
from leyden.environments.outcomes import Outcome, Outcomes
from leyden.environments.scored import of_one_source
from leyden.environments.statistics import Interval, wilson_by_task
from leyden.environments.verdict import Verdict
from leyden.types import Generation, Record, Reward

DIMENSION = f"{REWARD}."  # a reward of this name and more is a dimension, which a gate may ask for


class Measurement(Record):
    """One version at one temperature, each task tried ``attempts`` times: what came of task i stands from ``i * attempts`` on.

    ``passed`` is None where an attempt could not be scored. The rate is over the planned attempts, so an unscored one counts against it,
    and is reported beside it. ``tokens``: read and sampled.
    """

    temperature: float
    attempts: int = 1
    passed: tuple[bool | None, ...]
    tokens: tuple[int | None, ...] = ()
    dimensions: tuple[dict[str, float], ...] = ()

    @property
    def n(self) -> int:
        """Tasks."""
        return len(self.passed) // self.attempts

    @property
    def scored(self) -> int:
        return sum(outcome is not None for outcome in self.passed)

    @property
    def passes(self) -> int:
        return sum(outcome is True for outcome in self.passed)

    @property
    def rate(self) -> float:
        return self.passes / len(self.passed) if self.passed else 0.0

    @property
    def interval(self) -> Interval:
        by_task = (self.passed[start : start + self.attempts] for start in range(0, len(self.passed), self.attempts))
        return wilson_by_task((sum(outcome is True for outcome in task), self.attempts) for task in by_task)

    def outcomes(self, version: str) -> Outcomes:
        """For the gate. A task is called by its place."""
        attempts = [
            Outcome(
                passed=passed,
                tokens=self.tokens[place] if self.tokens else None,
                dimensions=self.dimensions[place] if self.dimensions else {},
            )
            for place, passed in enumerate(self.passed)
        ]
        tasks = {str(i): tuple(attempts[i * self.attempts : (i + 1) * self.attempts]) for i in range(self.n)}
        return Outcomes(version, tasks, planned=len(attempts))

    def as_summary(self) -> dict[str, Any]:
        low, high = self.interval.low, self.interval.high
        return {
            "pass_rate": round(self.rate, 4),
            "low": round(low, 4),
            "high": round(high, 4),
            "n": self.n,
            "attempts": self.attempts,
            "passed": self.passes,
            "scored": self.scored,
        }

    def __str__(self) -> str:
        missing = len(self.passed) - self.scored
        return f"{self.rate:.2f} ({self.interval}{f', {missing} unscored' if missing else ''})"


class Evaluation(Record):
    """One version on the held-out tasks, sampled at T=1 and greedily at T=0, and greedily on the regression tasks where there are any."""

    version: str
    arm: str | None = None  # of a version that was made to compare with
    sampled: Measurement
    greedy: Measurement
    regression: Measurement | None = None

    def as_summary(self) -> dict[str, Any]:
        regression = {"regression": self.regression.as_summary()} if self.regression else {}
        arm = {"arm": self.arm} if self.arm else {}
        return {"version": self.version, **arm, **self.sampled.as_summary(), "greedy": self.greedy.as_summary(), **regression}


def measure(
    ended: Sequence[Ended],
    temperature: float,
    passing: float,
    attempts: int = 1,
    generations: Iterable[Generation] = (),
    rewards: Iterable[Reward] = (),
) -> Measurement:
    """``ended``: the rollouts, task by task, ``attempts`` each. One without a reward is unscored. ``generations`` and ``rewards`` of these
    rollouts, others among them are left out."""
    calls: dict[str, list[Generation]] = defaultdict(list)
    for generation in generations:
        calls[generation.rollout_id].append(generation)
    named = _dimensions(rewards)
    ids = [end.rollout.id for end in ended]
    return Measurement(
        temperature=temperature,
        attempts=attempts,
        passed=tuple(None if end.reward is None else end.reward >= passing for end in ended),
        tokens=tuple(count_tokens(calls[name]).total() if name in calls else None for name in ids),
        dimensions=tuple(named.get(name, {}) for name in ids) if named else (),
    )


def judge_versions(champion: Evaluation, candidate: Evaluation, gate: Gate) -> Verdict:
    """The promotion gate: sampled better beyond chance, greedily not worse, and whatever else ``gate`` asks for."""
    pair = (champion.version, champion), (candidate.version, candidate)
    before, after = (evaluation.sampled.outcomes(name) for name, evaluation in pair)
    greedy_before, greedy_after = (evaluation.greedy.outcomes(name) for name, evaluation in pair)
    regression = None
    if champion.regression and candidate.regression:
        regression = champion.regression.outcomes(champion.version), candidate.regression.outcomes(candidate.version)
    return judge(before, after, gate, regression=regression, greedy=(greedy_before, greedy_after))


def _dimensions(rewards: Iterable[Reward]) -> Mapping[str, dict[str, float]]:
    """Rollout id → dimension → its lowest value, by the source that spoke first."""
    named = [reward for reward in rewards if reward.name.startswith(DIMENSION)]
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for name in {reward.name for reward in named}:
        dimension = name.removeprefix(DIMENSION)
        for reward in of_one_source(named, name):
            if reward.rollout_id:
                of_one = found[reward.rollout_id]
                of_one[dimension] = min(reward.value, of_one.get(dimension, reward.value))
    return found
