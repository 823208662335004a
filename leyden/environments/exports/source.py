"""What is exported: attempts in the order of their tasks, from a result in memory or from a saved one, one task at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from leyden.environments.attempt import AttemptResult
from leyden.environments.fingerprint import Fingerprint
from leyden.environments.results import EnvironmentRunResult, TaskResult
from leyden.environments.saved import open_saved
from leyden.environments.task import Task

LEARNING_ZONE = "learning_zone"


@dataclass(frozen=True)
class Source:
    """``open`` begins a fresh walk over the attempts, in task order then attempt order. No more than one task's are held at once."""

    env_name: str
    k: int
    env_fingerprint: Fingerprint
    policy_fingerprint: Fingerprint
    open: Callable[[], Iterator[tuple[Task, AttemptResult]]]
    run_id: str | None = None
    path: Path | None = None
    selection: str | None = None  # what was chosen of it, as the sidecar tells

    def tasks(self) -> Iterator[TaskResult]:
        """Task by task; ids tell where one ends."""
        for _, group in groupby(self.open(), key=lambda pair: pair[0].id):
            pairs = list(group)
            result = TaskResult(pairs[0][0], tuple(attempt for _, attempt in pairs))
            if self.selection is None or result.in_learning_zone:
                yield result

    def learning_zone(self) -> Source:
        """Only the tasks that pass sometimes."""
        return replace(self, selection=LEARNING_ZONE)


def as_source(result: EnvironmentRunResult | Source | Path | str) -> Source:
    """A path is a saved result, which is read as it is needed. Raises ``NotFound``, or ``UsageError`` for a file that is
    none."""
    if isinstance(result, Source):
        return result
    if isinstance(result, EnvironmentRunResult):
        return Source(result.env_name, result.k, result.env_fingerprint, result.policy_fingerprint, result.attempts, result.run_id)
    path = Path(result)
    with open_saved(path) as saved:
        header = saved.header
    return Source(
        header.env_name,
        header.k,
        header.env_fingerprint,
        header.policy_fingerprint,
        lambda: _read(path),
        header.run_id,
        path,
    )


def _read(path: Path) -> Iterator[tuple[Task, AttemptResult]]:
    with open_saved(path) as saved:
        yield from saved
