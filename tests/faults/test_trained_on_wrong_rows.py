"""Real training on a tiny model, on the attempts that went wrong: the gate sees it, and the champion goes on serving."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from tinymodel import make_tiny_model

from leyden.algorithm.rows import RowsConfig
from leyden.algorithm.selection import SelectionConfig
from leyden.algorithm.sft.algorithm import SFT
from leyden.algorithm.sft.config import TrainConfig
from leyden.algorithm.sft.report import Board
from leyden.algorithm.sft.settings import SFTConfig
from leyden.models.registry import Registry
from leyden.trainer import Trainer

pytestmark = pytest.mark.timeout(900)

AGENT = Path(__file__).with_name("odd_agent.py")
CONFIG = SFTConfig(
    max_tokens=2,
    rows=RowsConfig(keep_truncated=True),  # a random model hardly ever ends its turn
    selection=SelectionConfig(fraction=1.0, min_rows=2),
    train=TrainConfig(r=8, alpha=16, lr=1e-2, batch_size=8, accumulation=1, max_steps=16, warmup_steps=0),
)


def tasks(numbers):
    return [{"input": f"question {number}"} for number in numbers]


def test_a_version_that_was_taught_what_is_wrong_is_rejected_and_the_champion_stays(tmp_path):
    model = make_tiny_model(tmp_path / "tiny")
    trainer = Trainer(algorithm=SFT(CONFIG, str(model)), n_runners=1, concurrency=32, runs=tmp_path / "runs")
    summary = trainer.fit(f"{AGENT}:agent", tasks(range(64)), tasks(range(100, 148)), Board(Console(file=io.StringIO())))
    (iteration,) = summary.iterations
    assert iteration.decision == "reject", iteration.reason
    registry = Registry(tmp_path / "runs" / "latest" / "models")
    assert registry.get("@champion").name == "version_0"
    assert registry.pointers.judgements[-1].decision == "reject"
