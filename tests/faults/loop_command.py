"""The command that these tests kill, and repeat: ``python loop_command.py MODEL RUNS``, the whole loop on a tiny model."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from leyden.algorithm.rows import RowsConfig
from leyden.algorithm.selection import SelectionConfig
from leyden.algorithm.sft.algorithm import SFT
from leyden.algorithm.sft.config import TrainConfig
from leyden.algorithm.sft.settings import SFTConfig
from leyden.cli import reported
from leyden.models.engine_config import EngineConfig
from leyden.trainer import Trainer
from leyden.types import RolloutConfig

AGENT = f"{Path(__file__).with_name('loop_agent.py')}:agent"
TRAIN, HELDOUT = 8, 6

CONFIG = SFTConfig(
    max_tokens=4,
    rollout=RolloutConfig(attempt_timeout=600.0),
    rows=RowsConfig(keep_truncated=True),  # a random model hardly ever ends its turn
    selection=SelectionConfig(min_rows=2),
    train=TrainConfig(r=4, alpha=8, lr=2e-2, batch_size=2, accumulation=1, max_steps=2, warmup_steps=0),
)


def tasks(kind: str, n: int, easy: int) -> list[dict[str, object]]:
    # Two words apart: a task to learn from that is a held-out one but for a word is left out.
    return [{"input": f"{kind} question of the {kind} {i}", "easy": i < easy, "gated": i >= n // 2} for i in range(n)]


def main(args: argparse.Namespace) -> None:
    trainer = Trainer(
        algorithm=SFT(CONFIG, model=args.model, engine=EngineConfig(kind="embedded")),
        n_runners=1,
        concurrency=TRAIN + 2 * HELDOUT,
        runs=args.runs,
        resume=args.resume,
        fork=args.fork,
        new=args.new,
        command=["python", "loop_command.py", args.model, str(args.runs)],
    )
    trainer.fit(AGENT, tasks("train", TRAIN, easy=TRAIN // 2), tasks("test", HELDOUT, easy=1))


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("model")
    options.add_argument("runs", type=Path)
    options.add_argument("--resume")
    options.add_argument("--fork")
    options.add_argument("--new", action="store_true")
    parsed = options.parse_args()
    sys.exit(reported(lambda: main(parsed)))
