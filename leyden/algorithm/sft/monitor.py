"""What a trainer tells us while it trains."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback

from leyden.algorithm.sft.job import TrainProgress
from leyden.errors import LeydenError


class Monitor(TrainerCallback):
    """Counts what the loss saw, reports every step, and stops a training that has diverged."""

    def __init__(self, report: Callable[[TrainProgress], None]) -> None:
        self.first_pass_tokens = 0
        self.losses: list[float] = []
        self._tokens = 0
        self._first_pass = True
        self._report = report

    def count(self, labelled: int) -> None:
        self._tokens += labelled
        if self._first_pass:
            self.first_pass_tokens += labelled

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._started = time.monotonic()
        self._report(TrainProgress(step=0, steps=state.max_steps))

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._first_pass = False

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        if logs is None or "loss" not in logs:  # the summary at the end
            return
        loss = float(logs["loss"])
        if not math.isfinite(loss):
            raise LeydenError(f"the training diverged: the loss is {loss} at step {state.global_step}", "train with a lower lr")
        self.losses.append(loss)
        elapsed = time.monotonic() - self._started
        left = elapsed / state.global_step * (state.max_steps - state.global_step)
        self._report(TrainProgress(step=state.global_step, steps=state.max_steps, loss=loss, tokens=self._tokens, seconds_left=left))
