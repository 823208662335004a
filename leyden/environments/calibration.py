"""How far a scorer can be trusted: its verdicts beside those of people."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leyden.environments.output import RunOutput
from leyden.environments.results import EnvironmentRunResult
from leyden.environments.score import Score, Scorer
from leyden.environments.statistics import Interval, wilson
from leyden.errors import UsageError


@dataclass(frozen=True)
class Labelled:
    """One answer and whether it is good, as people say."""

    run: RunOutput
    expected: Any
    good: bool
    name: str  # for people, such as "t3/0"


@dataclass(frozen=True)
class Disagreement:
    name: str
    good: bool  # as people say; the scorer says the opposite
    score: Score


@dataclass(frozen=True)
class Calibration:
    """Rates are of what the scorer judged: ``errors`` (name → what it raised) are in none of them. None where nothing was there to be wrong
    about; the intervals are Wilson's, at 95%."""

    n: int
    false_positives: int  # bad answers that pass
    false_negatives: int  # good ones that fail
    n_good: int  # of those judged
    n_bad: int
    disagreements: tuple[Disagreement, ...]
    errors: Mapping[str, str]

    @property
    def n_judged(self) -> int:
        return self.n_good + self.n_bad

    @property
    def agreement(self) -> float | None:
        return _rate(self.n_judged - self.false_positives - self.false_negatives, self.n_judged)

    @property
    def false_positive_rate(self) -> float | None:
        return _rate(self.false_positives, self.n_bad)

    @property
    def false_negative_rate(self) -> float | None:
        return _rate(self.false_negatives, self.n_good)

    @property
    def intervals(self) -> dict[str, Interval]:
        return {
            "agreement": wilson(self.n_judged - len(self.disagreements), self.n_judged),
            "false_positive_rate": wilson(self.false_positives, self.n_bad),
            "false_negative_rate": wilson(self.false_negatives, self.n_good),
        }

    def as_dict(self) -> dict[str, Any]:
        rates = {name: getattr(self, name) for name in ("agreement", "false_positive_rate", "false_negative_rate")}
        return {
            "n": self.n,
            "n_judged": self.n_judged,
            "n_errors": len(self.errors),
            **{name: {"rate": rate, "low": self.intervals[name].low, "high": self.intervals[name].high} for name, rate in rates.items()},
            "disagreements": [
                {"name": one.name, "good": one.good, "value": one.score.value, "reason": one.score.reason} for one in self.disagreements
            ],
            "errors": dict(self.errors),
        }

    def __str__(self) -> str:
        if not self.n_judged:
            return f"none of {self.n} answers could be judged"
        told = [f"agrees with people on {self.n_judged - len(self.disagreements)} of {self.n_judged} ({self.intervals['agreement']})"]
        told += (
            [f"passes {self.false_positives} of {self.n_bad} bad answers ({self.intervals['false_positive_rate']})"] if self.n_bad else []
        )
        told += (
            [f"fails {self.false_negatives} of {self.n_good} good ones ({self.intervals['false_negative_rate']})"] if self.n_good else []
        )
        return ", ".join(told) + (f"; {len(self.errors)} raised errors" if self.errors else "")


def _rate(part: int, whole: int) -> float | None:
    return part / whole if whole else None


async def acalibrate(scorer: Scorer, labelled: Iterable[Labelled], concurrency: int = 8) -> Calibration:
    """Score every answer and hold it against its label. What the scorer raises is counted, never a verdict."""
    known: Sequence[Labelled] = list(labelled)
    room = asyncio.Semaphore(concurrency)

    async def judge(one: Labelled) -> Score | Exception:
        async with room:
            try:
                score: Any = await scorer.ascore(one.run, one.expected)
                if not isinstance(score, Score):
                    raise TypeError(f"a scorer gives a Score, not {type(score).__name__}")
                return score
            except Exception as error:  # a scorer may be anybody's
                return error

    verdicts = await asyncio.gather(*map(judge, known))
    judged = [(one, verdict) for one, verdict in zip(known, verdicts, strict=True) if isinstance(verdict, Score)]
    apart = tuple(Disagreement(one.name, one.good, score) for one, score in judged if one.good != score.passed)
    return Calibration(
        n=len(known),
        false_positives=sum(not one.good for one in apart),
        false_negatives=sum(one.good for one in apart),
        n_good=sum(one.good for one, _ in judged),
        n_bad=sum(not one.good for one, _ in judged),
        disagreements=apart,
        errors={one.name: f"{type(e).__name__}: {e}" for one, e in zip(known, verdicts, strict=True) if isinstance(e, Exception)},
    )


def calibrate(scorer: Scorer, labelled: Iterable[Labelled], concurrency: int = 8) -> Calibration:
    """``acalibrate`` where no event loop runs."""
    return asyncio.run(acalibrate(scorer, labelled, concurrency))


def labelled(result: EnvironmentRunResult, labels: Mapping[tuple[str, int], bool]) -> list[Labelled]:
    """A result's attempts with people's labels ((task id, attempt index) → good).

    Raises ``UsageError`` for a label of no attempt that has an answer, or one that is not True or False.
    """
    attempts = {(str(task.id), attempt.index): (task, attempt.run) for task, attempt in result.attempts()}
    found = []
    for key, good in labels.items():
        task, run = attempts.get(key, (None, None))
        if task is None or run is None:
            raise UsageError(f"the label {key!r} is of no attempt with an answer", "a key is a task's id and an attempt's index, from 0")
        if not isinstance(good, bool):
            raise UsageError(f"the label of {key!r} is {good!r}", "a label is True or False")
        found.append(Labelled(run, task.expected, good, f"{key[0]}/{key[1]}"))
    return found
