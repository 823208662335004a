"""What a run of the SFT loop is asked to do. Printed before it starts, and kept in the run directory."""

from __future__ import annotations

from pydantic import Field

from leyden.algorithm.attribution import Attribution
from leyden.algorithm.collapse import CollapseConfig
from leyden.algorithm.rows import RowsConfig
from leyden.algorithm.selection import SelectionConfig
from leyden.algorithm.sft.config import TrainConfig
from leyden.environments.gate import Gate
from leyden.types import Record, RolloutConfig

GREEDY, SAMPLED = 0.0, 1.0
"""The two temperatures every version is measured at."""


class SFTConfig(Record):
    iterations: int = Field(1, ge=1)
    attempts: int = Field(1, ge=1)  # per training task and iteration
    temperature: float = Field(SAMPLED, gt=0)  # of collection; 0 would explore nothing
    max_tokens: int = Field(256, ge=1)  # of one answer
    rollout: RolloutConfig = RolloutConfig(attempt_timeout=300.0)
    attribution: Attribution = Attribution()  # which call each reward belongs to
    rows: RowsConfig = RowsConfig()
    selection: SelectionConfig = SelectionConfig()  # its min_reward is also what passes in evaluation
    train: TrainConfig = TrainConfig()
    max_failed_share: float = Field(0.25, ge=0, lt=1)  # of a step's rollouts; beyond it the run stops, for its numbers would mean little
    evaluation_attempts: int = Field(1, ge=1)  # per held-out task, sampled at T=1; the gate counts tasks, not attempts
    gate: Gate = Gate()  # before a version is promoted. Of its budgets the loop measures tokens; dimensions are rewards "reward.NAME"
    random_control: bool = False  # also train on as many rows at random, and measure that beside; it is never promoted
    collapse: CollapseConfig = CollapseConfig()
    train_timeout: float = Field(86_400.0, gt=0)  # seconds
    serve_while_training: bool = False  # needs memory for both; spares a start where the engine can switch versions
    runner_patience: float = Field(600.0, gt=0)  # seconds without any live runner, after which the run stops
    seed: int = 0
