"""Tasks as the loop sees them: any JSON, with an id that is the same in every run over the same data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from leyden.algorithm.sft.steps import fingerprint
from leyden.environments.leakage import LeakageReport, check_leakage
from leyden.environments.task import Task
from leyden.errors import UsageError


@dataclass(frozen=True)
class LoopTask:
    id: str
    input: Any


def number_tasks(inputs: Iterable[Any]) -> list[LoopTask]:
    """The id is the content's digest; a task that comes twice gets a number behind it."""
    seen: dict[str, int] = {}
    tasks = []
    for value in inputs:
        digest = fingerprint(value)[:16]
        seen[digest] = count = seen.get(digest, 0) + 1
        tasks.append(LoopTask(digest if count == 1 else f"{digest}-{count}", value))
    return tasks


def check_disjoint(train: Iterable[LoopTask], heldout: Iterable[LoopTask]) -> None:
    """Raises ``UsageError`` if a held-out task is also trained on: its pass rate would say nothing."""
    shared = {task.id.split("-")[0] for task in train} & {task.id.split("-")[0] for task in heldout}
    if shared:
        raise UsageError(f"{len(shared)} tasks are both trained on and held out", "take the held-out tasks from other data")


def leave_out_leaks(train: Sequence[LoopTask], measured: Iterable[LoopTask]) -> tuple[list[LoopTask], LeakageReport]:
    """Without the tasks that are nearly one of those that versions are measured on (``environments.leakage``), in their order.

    Raises ``UsageError`` if none is left.
    """
    report = check_leakage(
        (Task(task.input, id=task.id) for task in train), {"held-out": [Task(task.input, id=task.id) for task in measured]}
    )
    leaked = {leak.train_id for leak in report.leaks}
    kept = [task for task in train if task.id not in leaked]
    if not kept:
        example = f"{report.leaks[0].train_text!r} beside {report.leaks[0].eval_text!r}"
        raise UsageError(f"every task to learn from is nearly a held-out one: {example}", "take the held-out tasks from other data")
    return kept, report
