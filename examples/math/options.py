"""What both drivers ask for on their command line."""

from __future__ import annotations

import argparse
from pathlib import Path

from pydantic import ValidationError
from tasks import MIXES, Task, load_tasks, make_tasks

from leyden.algorithm.selection import SelectionConfig
from leyden.algorithm.sft.config import PRESETS, TrainConfig
from leyden.algorithm.sft.settings import SFTConfig
from leyden.errors import UsageError

DEMO_MIX = "signed"


def parser(description: str) -> argparse.ArgumentParser:
    """Options of the loop itself; each driver adds its own."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = options.add_argument
    add("--model", default="smollm2", help="a model directory, a hub name, or smollm2 (imported on first use)")
    add("--mix", default=DEMO_MIX, help=f"which generated tasks: {', '.join(MIXES)}")
    add("--dataset", metavar="FILE", help="tasks from a .jsonl file with input and target, or a hub dataset, instead of a mix")
    add("--train", type=int, default=160, metavar="N", help="tasks to learn from")
    add("--heldout", type=int, default=64, metavar="N", help="tasks to measure versions on; 0: do not measure")
    add("--attempts", type=int, default=1, metavar="K", help="attempts at each task to learn from")
    add("--iterations", type=int, default=1, metavar="N")
    add("--preset", default="demo", help=f"how to train: {', '.join(PRESETS)}")
    add("--max-tokens", type=int, default=64, metavar="N", help="of one answer of the model")
    add("--seed", type=int, default=0, help="of the tasks and of the selection")
    add("--runs", type=Path, default=Path("runs"), help="where run directories go")
    add("--proxy-port", type=int, default=0, metavar="PORT", help="0: any free one")
    add("--dry-run", action="store_true", help="print the plan and stop")
    add("--debug", action="store_true", help="show tracebacks")
    return options


def read_config(args: argparse.Namespace) -> SFTConfig:
    """Raises ``UsageError`` for a value out of range."""
    try:
        return SFTConfig(
            iterations=args.iterations,
            attempts=args.attempts,
            max_tokens=args.max_tokens,
            selection=SelectionConfig(),
            train=TrainConfig.preset(args.preset),
            seed=args.seed,
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"--{str(first['loc'][0]).replace('_', '-')}: {first['msg']}", "see --help") from None


def read_tasks(args: argparse.Namespace) -> tuple[list[Task], list[Task], str]:
    """Tasks to learn from, held-out tasks, and where they came from. The two never overlap."""
    if args.train < 1 or args.heldout < 0:
        raise UsageError("there must be tasks to learn from", "for instance --train 160 --heldout 64")
    if args.dataset is None:
        heldout = make_tasks(args.mix, args.heldout, args.seed, "test")
        return make_tasks(args.mix, args.train, args.seed, "train"), heldout, f"mix {args.mix}, seed {args.seed}"
    if args.heldout == 0:
        train, heldout = load_tasks(args.dataset, limit=args.train), []
    else:
        train, heldout = load_tasks(args.dataset, "train", args.train), load_tasks(args.dataset, "test", args.heldout)
    short = " (fewer than asked for: it has no more)" if len(train) < args.train or len(heldout) < args.heldout else ""
    return train, heldout, f"{args.dataset}{short}"
