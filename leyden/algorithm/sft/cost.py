"""Where a run's wall time went: into generation, into training, and into neither, which is the loop's own cost.

**Generation**: at least one call of the step's rollouts was at an engine, from the moment the proxy took it up to its last byte; calls
that overlap count once. **Training**: from the beginning of the training child's first optimizer step to the end of its last one. The
child's imports and its loading of the model before, its saving and merging after are the loop's own, as is all else.

Everything is read from the lines of ``metrics.jsonl``, which are also what a run's wall time is taken from: the stretches between them
cover each driver's time without a gap, so that the parts add up to the whole. A stretch that nobody came to the end of (a driver that
was killed in a step) was spent on something, but nobody knows on what: it is counted as that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from leyden.algorithm.sft.report import clock

Interval = tuple[int, int]
"""Beginning and end, microseconds since 1970."""

Line = dict[str, Any]

IMPORT = "import"  # lines of what is timed and is no step
STOP = "stop"

STARTING = "starting store and runners"
IMPORTING = "importing the model"
SERVING = "serving and switching"
NO_CALL = "rollouts while no call was at an engine"
SELECTING = "selecting and judging"
LOADING = "loading the trainer"
SAVING = "saving and merging"
VERIFYING = "verifying"
BETWEEN = "between steps"

_OWN = {IMPORT: IMPORTING, STOP: SERVING, "serve": SERVING, "select": SELECTING, "promote": SELECTING, "verify": VERIFYING}
"""What all of a stretch goes into, by its kind; else it goes by its own name."""


def seconds_covered(intervals: Iterable[Interval], begin: int, end: int) -> float:
    """How much of [begin, end] at least one of the intervals covers, in seconds. All are in microseconds."""
    covered, upto = 0, begin
    for start, stop in sorted(intervals):
        start, stop = max(start, upto), min(stop, end)
        if stop > start:
            covered += stop - start
            upto = stop
    return covered / 1e6


@dataclass(frozen=True)
class Stretch:
    """A part of a run's time: a step, or what lies around the steps, where ``iteration`` is None. ``seconds`` of wall time.

    ``generation`` and ``training``: how many of them; None where it is not known. ``own``: what the others went into.
    """

    step: str
    iteration: int | None
    seconds: float
    generation: float | None = 0.0
    training: float | None = 0.0
    own: dict[str, float] = field(default_factory=dict)

    @property
    def known(self) -> bool:
        return self.generation is not None and self.training is not None

    def as_dict(self) -> dict[str, Any]:
        own = sum(self.own.values()) if self.known else None
        spent = {"seconds": self.seconds, "generation": self.generation, "training": self.training, "own": own}
        return {"iteration": self.iteration, "step": self.step, **{name: _rounded(value) for name, value in spent.items()}}


@dataclass(frozen=True)
class Cost:
    """The whole of a run's wall time: all that its drivers spent on it, interrupted steps included, and no time between two drivers."""

    stretches: tuple[Stretch, ...] = ()

    @classmethod
    def read(cls, lines: Iterable[Line]) -> Cost:
        """``lines``: of ``metrics.jsonl``, in order."""
        return cls(tuple(stretch for driver in _drivers(lines) for stretch in _stretches(driver)))

    @property
    def total(self) -> float:
        return sum(stretch.seconds for stretch in self.stretches)

    @property
    def unknown(self) -> float:
        """Seconds of steps of which nobody knows what they went into."""
        return sum(stretch.seconds for stretch in self.stretches if not stretch.known)

    @property
    def own(self) -> dict[str, float]:
        """Seconds by what they went into that was neither generation nor training, most first."""
        parts: dict[str, float] = defaultdict(float)
        for stretch in self.stretches:
            for name, seconds in stretch.own.items():
                parts[name] += seconds
        return dict(sorted(parts.items(), key=lambda part: -part[1]))

    @property
    def share(self) -> float | None:
        """The own cost's share of the whole; None where some of it is not known."""
        return sum(self.own.values()) / self.total if self.total and not self.unknown else None

    def as_dict(self) -> dict[str, Any]:
        known = [stretch for stretch in self.stretches if stretch.known]
        return {
            "share": round(self.share, 4) if self.share is not None else None,
            "seconds": round(sum(self.own.values()), 3),
            "unknown_seconds": round(self.unknown, 3),
            "generation_seconds": round(sum(stretch.generation or 0 for stretch in known), 3),
            "training_seconds": round(sum(stretch.training or 0 for stretch in known), 3),
            "total_seconds": round(self.total, 3),
            "parts": {name: round(seconds, 3) for name, seconds in self.own.items()},
            "steps": [stretch.as_dict() for stretch in self.stretches if stretch.seconds >= 0.001],  # there is a gap before every step
        }

    def __str__(self) -> str:
        own, total = sum(self.own.values()), self.total
        if not total:
            return "own cost: nothing was timed"
        share = f"{own / total * 100:.0f}"
        if self.unknown:
            share += f" to {(own + self.unknown) / total * 100:.0f}"
        told = {name: seconds for name, seconds in self.own.items() if seconds >= 0.5}
        parts = [f"{clock(seconds)} {name}" for name, seconds in told.items()]
        if (rest := own - sum(told.values())) >= 0.5:
            parts.append(f"{clock(rest)} of less than half a second each")
        unknown = f"; {clock(self.unknown)} in steps that were cut off or not timed: into what is not known" if self.unknown else ""
        return f"own cost: {share} % of {clock(total)}{': ' if parts else ''}{', '.join(parts)}{unknown}"


def _drivers(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """The lines of each driver; its first one says that it begins."""
    of_one: list[Line] = []
    for line in lines:
        if line.get("step") == "driver" and of_one:
            yield of_one
            of_one = []
        of_one.append(line)
    if of_one:
        yield of_one


def _stretches(lines: Sequence[Line]) -> Iterator[Stretch]:
    """One driver's time, from its first line to its last, without a gap."""
    at, around = lines[0]["time"], STARTING
    step: Line | None = None  # the one that goes on
    training: list[int] = []
    for line in lines:
        now = line["time"]
        if line.get("started"):
            yield _cut_off(step, at, now) if step else _plain(around, None, at, now)
            step, at, around, training = line, now, BETWEEN, []
        elif "train_step" in line:
            training.append(now)
        elif "seconds" in line and step:
            yield _finished(line, at, now, training)
            step, at = None, now
        elif "seconds" in line:
            begin = max(at, now - round(line["seconds"] * 1e6))
            yield _plain(around, None, at, begin)
            yield _plain(line["step"], line.get("iteration"), begin, now)
            at = now
    last = lines[-1]["time"]
    yield _cut_off(step, at, last) if step else _plain(STOP, None, at, last)  # the last thing a run does is to stop its engine


def _plain(step: str, iteration: int | None, begin: int, end: int) -> Stretch:
    seconds = (end - begin) / 1e6
    return Stretch(step, iteration, seconds, own={_OWN.get(_kind(step), step): seconds})


def _cut_off(started: Line, begin: int, end: int) -> Stretch:
    return Stretch(started["step"], started.get("iteration"), (end - begin) / 1e6, None, None)


def _finished(line: Line, begin: int, end: int, training: Sequence[int]) -> Stretch:
    """A step, by its last line; ``training``: when its training child told of its progress."""
    step, iteration, seconds = line["step"], line.get("iteration"), (end - begin) / 1e6
    match _kind(step):
        case "collect" | "evaluate":
            generation = line.get("generation")
            own = {NO_CALL: seconds - generation} if generation is not None else {}
            return Stretch(step, iteration, seconds, generation, own=own)
        case "train":
            if not training:
                return Stretch(step, iteration, seconds, training=None)
            own = {LOADING: (training[0] - begin) / 1e6, SAVING: (end - training[-1]) / 1e6}
            return Stretch(step, iteration, seconds, training=(training[-1] - training[0]) / 1e6, own=own)
    return _plain(step, iteration, begin, end)


def _kind(step: str) -> str:
    return step.partition("-")[0]


def _rounded(seconds: float | None) -> float | None:
    return round(seconds, 3) if seconds is not None else None
