"""What one format makes of a task's attempts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leyden.environments.attempt import AttemptResult
from leyden.environments.exports.conversation import Refused
from leyden.environments.exports.outcome import Outcome
from leyden.environments.task import Task


@dataclass(frozen=True)
class Line:
    """One row, and the attempts it was made of; ``parts`` says what each of them is in it, where there are several."""

    row: dict[str, Any]
    attempts: tuple[AttemptResult, ...]
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Skip:
    outcome: Outcome
    reason: str | None = None


@dataclass(frozen=True)
class Format:
    """``make`` gives lines and, for each attempt that is in none, why; ``check`` is the independent judge of one row: it returns what is
    wrong with it, or None. ``learns_from_failures``: failed attempts are part of its rows, so ``only_passed`` says nothing about it."""

    name: str
    make: Callable[[Task, Sequence[AttemptResult]], Iterator[Line | Skip]]
    check: Callable[[Mapping[str, Any]], str | None]
    learns_from_failures: bool = False
    profile: str = "none"


def one_by_one(make: Callable[[Task, AttemptResult], dict[str, Any]]) -> Callable[[Task, Sequence[AttemptResult]], Iterator[Line | Skip]]:
    """For formats with a row for each attempt: ``make`` returns the row or raises ``Refused``."""

    def lines(task: Task, attempts: Sequence[AttemptResult]) -> Iterator[Line | Skip]:
        for attempt in attempts:
            try:
                yield Line(make(task, attempt), (attempt,))
            except Refused as refused:
                yield Skip(refused.outcome, refused.reason)

    return lines
