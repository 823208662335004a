"""Which tasks the next batch is made of: policies with a name, a version and a seed, and a record of what they chose."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from leyden.environments.results import TaskResult
from leyden.environments.task import Task
from leyden.errors import UsageError


@dataclass(frozen=True)
class Record:
    """What is known of a task: scored attempts, and how many passed."""

    passed: int
    scored: int

    @property
    def rate(self) -> float | None:
        return self.passed / self.scored if self.scored else None


History = Mapping[str, Record]
NOTHING_KNOWN = Record(0, 0)


def history_of(results: Iterable[TaskResult]) -> dict[str, Record]:
    """Task id → its record, summed over any number of results."""
    history: dict[str, Record] = {}
    for result in results:
        before = history.get(str(result.task.id), NOTHING_KNOWN)
        history[str(result.task.id)] = Record(before.passed + result.n_passed, before.scored + result.n_scored)
    return history


@dataclass(frozen=True)
class Policy:
    """``version`` changes with what the policy does: the same name, version, options and seed choose the same tasks out of the same."""

    name: ClassVar[str]
    version: ClassVar[int] = 1

    def choose(self, tasks: Sequence[Task], n: int, history: History, rng: random.Random) -> list[Task]:
        raise NotImplementedError

    def bucket(self, task: Task, history: History) -> str:
        """What the task is counted under."""
        rate = history.get(str(task.id), NOTHING_KNOWN).rate
        return "never tried" if rate is None else f"{min(int(rate * 10), 9) / 10:.1f} and more"


@dataclass(frozen=True)
class Uniform(Policy):
    """All tasks alike."""

    name: ClassVar[str] = "uniform"

    def choose(self, tasks: Sequence[Task], n: int, history: History, rng: random.Random) -> list[Task]:
        return rng.sample(tasks, min(n, len(tasks)))


@dataclass(frozen=True)
class SuccessBand(Policy):
    """Tasks that pass between ``low`` and ``high`` of the time: hard enough to learn from, not too hard to find an answer. What was never
    tried fills up what the band leaves."""

    name: ClassVar[str] = "success_band"
    low: float = 0.3
    high: float = 0.7

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high <= 1:
            raise UsageError(f"no rate lies within {self.low} and {self.high}", "for instance SuccessBand(0.3, 0.7)")

    def choose(self, tasks: Sequence[Task], n: int, history: History, rng: random.Random) -> list[Task]:
        rates = {str(task.id): history.get(str(task.id), NOTHING_KNOWN).rate for task in tasks}
        inside = [task for task in tasks if (rate := rates[str(task.id)]) is not None and self.low <= rate <= self.high]
        untried = [task for task in tasks if rates[str(task.id)] is None]
        chosen = rng.sample(inside, min(n, len(inside)))
        return chosen + rng.sample(untried, min(n - len(chosen), len(untried)))


@dataclass(frozen=True)
class Coverage(Policy):
    """A share for each value of a metadata key (``quotas``: value → share, summing to at most 1; empty: equal shares). What a value cannot
    fill is left empty rather than given to another."""

    name: ClassVar[str] = "coverage"
    key: str = "category"
    quotas: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not all(0 <= share <= 1 for share in self.quotas.values()) or sum(self.quotas.values()) > 1 + 1e-9:
            raise UsageError(f"the shares of {self.key} are below 0, or over 1 together", "for instance {'easy': 0.25, 'hard': 0.75}")

    def choose(self, tasks: Sequence[Task], n: int, history: History, rng: random.Random) -> list[Task]:
        groups: dict[str, list[Task]] = {}
        for task in tasks:
            groups.setdefault(self.bucket(task, history), []).append(task)
        shares = self.quotas or dict.fromkeys(sorted(groups), 1 / max(len(groups), 1))
        places = _apportion(shares, n)
        return [task for value in shares for task in rng.sample(groups.get(value, []), min(places[value], len(groups.get(value, []))))]

    def bucket(self, task: Task, history: History) -> str:
        return str(task.metadata.get(self.key))


@dataclass(frozen=True)
class FailureFirst(Policy):
    """What failed most comes first, then what was never tried, then what always passes; chance decides between equals."""

    name: ClassVar[str] = "failure_first"

    def choose(self, tasks: Sequence[Task], n: int, history: History, rng: random.Random) -> list[Task]:
        def rank(task: Task) -> tuple[float, float]:
            rate = history.get(str(task.id), NOTHING_KNOWN).rate
            return (1.0 if rate is None else 2.0 if rate == 1 else 0.0, rate or 0.0)

        return sorted(rng.sample(tasks, len(tasks)), key=rank)[:n]


@dataclass(frozen=True)
class Sample:
    """``manifest`` says by which policy, version and seed, and what came of it; keep it beside what is made of the tasks."""

    tasks: tuple[Task, ...]
    manifest: dict[str, Any]


def sample(tasks: Iterable[Task], n: int, policy: Policy, seed: int, history: History | None = None) -> Sample:
    """``n`` tasks at most, each once, by ``policy``. The order in which ``tasks`` come makes no difference.

    Raises ``UsageError`` for tasks without ids of their own.
    """
    known, history = list(tasks), history or {}
    if any(task.id is None for task in known):
        raise UsageError("a task without an id cannot be recorded", "give each an id, or read them from a pool")
    if len({task.id for task in known}) < len(known):
        raise UsageError("two tasks have one id", "give each task an id of its own")
    if n < 1:
        raise UsageError(f"n is {n}", "draw at least 1 task")
    rng = random.Random(f"{policy.name}/{policy.version}/{seed}")
    chosen = policy.choose(sorted(known, key=lambda task: str(task.id)), n, history, rng)

    def count(some: Iterable[Task]) -> dict[str, int]:
        return dict(sorted(Counter(policy.bucket(one, history) for one in some).items()))

    manifest = {
        "policy": {"name": policy.name, "version": policy.version, "options": asdict(policy)},
        "seed": seed,
        "wanted": n,
        "drawn": len(chosen),
        "offered": len(known),
        "counts": {"drawn": count(chosen), "offered": count(known)},
        "tasks": [task.id for task in chosen],
    }
    return Sample(tuple(chosen), manifest)


def _apportion(shares: Mapping[str, float], n: int) -> dict[str, int]:
    """Whole places by largest remainder."""
    exact = {value: share * n for value, share in shares.items()}
    places = {value: int(number + 1e-9) for value, number in exact.items()}
    left = int(sum(exact.values()) + 1e-9) - sum(places.values())
    for value in sorted(exact, key=lambda one: places[one] - exact[one])[:left]:
        places[value] += 1
    return places
