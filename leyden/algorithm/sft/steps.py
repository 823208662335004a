"""A step of the loop: shown while it runs, timed, and written down with the fingerprint of what it was given."""

from __future__ import annotations

import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from leyden.algorithm.sft.report import Board, StepView
from leyden.algorithm.sft.rundir import RunDir


@dataclass
class Step:
    view: StepView
    outputs: dict[str, Any] = field(default_factory=dict)  # JSON; goes into the manifest


class Steps:
    """Opens steps for one driver. ``seconds`` adds up over the run by kind: the name up to its first dash."""

    def __init__(self, run: RunDir, board: Board, epoch: int) -> None:
        self.run = run
        self.board = board
        self.epoch = epoch
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def open(self, iteration: int, name: str, title: str, inputs: Mapping[str, Any], total: int | None = None) -> Iterator[Step]:
        """Run one step. Its manifest is written only if it comes to its end."""
        started_at, start = time.time_ns() // 1000, time.monotonic()
        with self.board.step(title, total) as view:
            step = Step(view)
            yield step
            seconds = time.monotonic() - start
            self.seconds[name.partition("-")[0]] += seconds
            self.run.write_manifest(
                iteration,
                name,
                {
                    "run": self.run.id,
                    "epoch": self.epoch,
                    "iteration": iteration,
                    "step": name,
                    "fingerprint": fingerprint(inputs),
                    "inputs": inputs,
                    "outputs": step.outputs,
                    "started_at": started_at,
                    "seconds": round(seconds, 3),
                },
            )
            self.run.metric(iteration=iteration, step=name, seconds=round(seconds, 3))


def fingerprint(value: Any) -> str:
    """sha256 over canonical JSON: equal inputs, equal fingerprint."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":"), default=str).encode()).hexdigest()
