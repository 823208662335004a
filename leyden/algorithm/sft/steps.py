"""A step of the loop: shown while it runs, timed, and written down with the fingerprint of what it was given.

What is written down is finished. A run that goes on after its driver's death gets such a step's outputs back instead of doing it again.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from leyden.algorithm.sft.driver import Driver
from leyden.algorithm.sft.report import Board, StepView
from leyden.algorithm.sft.rundir import RunDir
from leyden.errors import UsageError
from leyden.failpoint import failpoint


@dataclass
class Step:
    """``generation``: seconds in which a call of its rollouts was at an engine; it goes into the step's last line in ``metrics.jsonl``."""

    view: StepView
    started_at: int  # microseconds since 1970
    generation: float = 0.0
    outputs: dict[str, Any] = field(default_factory=dict)  # JSON; goes into the manifest


class Steps:
    """Opens steps for one driver. ``seconds`` adds up over the run by kind: the name up to its first dash."""

    def __init__(self, run: RunDir, board: Board, driver: Driver) -> None:
        self.run = run
        self.board = board
        self.driver = driver
        self.seconds: dict[str, float] = defaultdict(float)

    def finished(self, iteration: int, name: str, inputs: Mapping[str, Any]) -> dict[str, Any] | None:
        """The outputs of a step that an earlier driver finished; None if it is still to be done.

        Raises ``UsageError`` where it was given something else: the rest of the run would not fit to it.
        """
        manifest = self.run.read_manifest(iteration, name)
        if manifest is None:
            return None
        if manifest["fingerprint"] != fingerprint(inputs):
            old, new = manifest["inputs"], json.loads(_canonical(inputs))
            changed = ", ".join(sorted(key for key in {*old, *new} if old.get(key) != new.get(key)))
            raise UsageError(
                f"step {name} of iteration {iteration} of run {self.run.id} was finished with other settings: {changed} changed",
                f"go on with the settings it had, start from its champion with --fork {self.run.id}, or afresh with --new",
            )
        self.seconds[_kind(name)] += manifest["seconds"]
        self.board.say(f"✓ {manifest['title']}: {manifest['note'] + ', ' if manifest['note'] else ''}done before")
        outputs: dict[str, Any] = manifest["outputs"]
        return outputs

    def count(self, iteration: int, name: str) -> None:
        """Add the time that an earlier driver took for a step that need not be done again."""
        manifest = self.run.read_manifest(iteration, name)
        if manifest is not None:
            self.seconds[_kind(name)] += manifest["seconds"]

    @asynccontextmanager
    async def open(self, iteration: int, name: str, title: str, inputs: Mapping[str, Any], total: int | None = None) -> AsyncIterator[Step]:
        """Run one step. Its manifest is written only if it comes to its end.

        Raises ``LeaseLost``, and writes nothing, where another driver has taken the run over meanwhile.
        """
        started_at, start = time.time_ns() // 1000, time.monotonic()
        self.run.metric(iteration=iteration, step=name, started=True)
        with self.board.step(title, total) as view:
            failpoint(f"{iteration}/{name}:started")
            step = Step(view, started_at)
            yield step
            failpoint(f"{iteration}/{name}:done")
            await self.driver.check()
            seconds = time.monotonic() - start
            self.seconds[_kind(name)] += seconds
            self.run.write_manifest(
                iteration,
                name,
                {
                    "run": self.run.id,
                    "epoch": self.driver.epoch,
                    "iteration": iteration,
                    "step": name,
                    "title": title,
                    "note": view.note,
                    "fingerprint": fingerprint(inputs),
                    "inputs": inputs,
                    "outputs": step.outputs,
                    "started_at": started_at,
                    "seconds": round(seconds, 3),
                },
            )
            self.run.metric(iteration=iteration, step=name, seconds=round(seconds, 3), generation=round(step.generation, 3))
        failpoint(f"{iteration}/{name}:written")


def fingerprint(value: Any) -> str:
    """sha256 over canonical JSON: equal inputs, equal fingerprint."""
    return hashlib.sha256(_canonical(value).encode()).hexdigest()


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)


def _kind(name: str) -> str:
    return name.partition("-")[0]
