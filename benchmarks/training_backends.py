"""CPU seconds an optimizer step takes, by backend: ``python benchmarks/training_backends.py MODEL [--unsloth-python PYTHON]``.

12 rows of 236 tokens, of which the first 180 are the same and the last 36 labelled; 4 rows a step; LoRA with r=16. CPU time rather than
time on the wall, so that what else the machine does counts little.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
from pathlib import Path

from leyden.algorithm.dataset import supervised_tokens, write_rows
from leyden.algorithm.rows import IGNORED, Row
from leyden.algorithm.sft.config import TrainConfig
from leyden.algorithm.sft.job import TrainJob, TrainProgress
from leyden.algorithm.sft.train import train
from leyden.process import find_by_marker, new_marker

CONFIG = TrainConfig(backend="trl", r=16, alpha=32, batch_size=4, accumulation=1, epochs=1, warmup_steps=0)


def make_rows() -> list[Row]:
    rng = random.Random(0)
    shared = [rng.randrange(1000, 9000) for _ in range(180)]
    rows = []
    for number in range(12):
        ids = shared + [rng.randrange(1000, 9000) for _ in range(56)]
        rows.append(Row(ids, [IGNORED] * 200 + ids[200:], 1.0, f"rollout-{number}", 1, "task", ("generation",)))
    return rows


async def measure(model: Path, config: TrainConfig, directory: Path) -> tuple[float, str]:
    """(CPU seconds a step, precision)."""
    marker, spent, rows = new_marker(), [], make_rows()

    def note(progress: TrainProgress) -> None:
        spent.append(sum(sum(process.cpu_times()[:2]) for process in find_by_marker(marker)))

    job = TrainJob(
        base_dir=model, parent_dir=model, dataset_path=directory / "rows.arrow",
        dataset_sha256=write_rows(directory / "rows.arrow", rows), output_dir=directory / "out", config=config,
        expected_supervised_tokens=supervised_tokens(rows),
    )  # fmt: skip
    result = await train(job, on_progress=note, log_path=directory / "train.log", marker=marker)
    return (spent[-1] - spent[0]) / result.steps, result.dtype


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--unsloth-python", metavar="PYTHON")
    args = parser.parse_args()
    changes = {"trl": {}, "trl, share_prefix off": {"share_prefix": False}}
    if args.unsloth_python:
        changes["unsloth"] = {"backend": "unsloth", "python": args.unsloth_python}
    for name, change in changes.items():
        with tempfile.TemporaryDirectory() as directory:
            seconds, dtype = asyncio.run(measure(args.model, CONFIG.model_copy(update=change), Path(directory)))
        print(f"{name:24}{seconds:6.1f} s a step, {dtype}")


if __name__ == "__main__":
    main()
