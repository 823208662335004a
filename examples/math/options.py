"""What both drivers ask for on their command line."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from tasks import MIXES, Task, load_tasks, make_tasks

from leyden.algorithm.attribution import Attribution, RewardPolicy
from leyden.algorithm.sft.algorithm import SFT
from leyden.algorithm.sft.config import PRESETS, TrainConfig
from leyden.algorithm.sft.settings import SFTConfig
from leyden.errors import UsageError
from leyden.models.engine_config import EngineConfig

DEMO_MIX = "signed"
FLAGS = {"max_model_len": "--context", "gpu_memory_utilization": "--gpu-memory"}  # settings whose options are named otherwise


def parser(description: str) -> argparse.ArgumentParser:
    """Options of the loop itself; each driver adds its own."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = options.add_argument
    add("--model", default="smollm2", help="a model directory, a hub name, or smollm2 (imported on first use)")
    add("--mix", default=DEMO_MIX, help=f"which generated tasks: {', '.join(MIXES)}")
    add("--dataset", metavar="FILE", help="tasks from a .jsonl file with input and target, or a hub dataset, instead of a mix")
    add("--train", type=int, default=160, metavar="N", help="tasks to learn from")
    add("--heldout", type=int, default=128, metavar="N", help="tasks to measure versions on; 0: do not measure")
    add("--attempts", type=int, default=1, metavar="K", help="attempts at each task to learn from")
    add("--evaluation-attempts", type=int, default=1, metavar="K", help="attempts at each held-out task, at T=1")
    add("--iterations", type=int, default=1, metavar="N")
    add("--random-control", action="store_true", help="also train on as many attempts at random, and show both beside the base")
    add("--reward-policy", default="recent", choices=[*RewardPolicy], help="which call a reward belongs to (docs/quarantine.md)")
    add("--preset", default="demo", help=f"how to train: {', '.join(PRESETS)}")
    add("--max-tokens", type=int, default=64, metavar="N", help="of one answer of the model")
    add("--seed", type=int, default=0, help="of the tasks and of the selection")
    add("--runs", type=Path, default=Path("runs"), help="where run directories go")
    add("--proxy-port", type=int, default=0, metavar="PORT", help="0: any free one")
    add("--resume", metavar="RUN", help="go on with this run: its id, the beginning of it, or @latest")
    add("--fork", metavar="RUN", help="a new run that begins with that run's champion")
    add("--new", action="store_true", help="start afresh even if a run with these settings did not end")
    add("--dry-run", action="store_true", help="print the plan and stop")
    add("--debug", action="store_true", help="show tracebacks")

    add = options.add_argument_group("engine and training (docs/gpu.md)").add_argument
    add("--engine", default="auto", choices=("auto", "embedded", "vllm"), help="auto: vLLM where there is a GPU and a vLLM")
    add("--engine-python", metavar="PYTHON", help="the interpreter of an environment that has vLLM")
    add("--engine-command", metavar="COMMAND", help='how to start vLLM instead, such as "vllm serve"')
    add("--engine-args", metavar="ARGS", default="", help="more of vLLM's own options, in one text")
    add("--context", type=int, metavar="TOKENS", help="the longest conversation that vLLM serves")
    add("--gpu-memory", type=float, default=0.7, metavar="SHARE", help="of the GPU's memory, for vLLM")
    add("--quantization", metavar="KIND", help="of the served model, such as bitsandbytes (GPU)")
    add("--runtime-lora", action="store_true", help="load adapters into one running vLLM instead of restarting it")
    add("--exact", action="store_true", help="go on with the very token ids that were sampled (docs/token-fidelity.md)")
    add("--train-backend", default="auto", choices=("auto", "trl", "unsloth"), help="auto: unsloth on a GPU where it is installed")
    add("--train-python", metavar="PYTHON", help="the interpreter of an environment that has the backend")
    return options


def read_algorithm(args: argparse.Namespace) -> SFT:
    """Raises ``UsageError`` for a value out of range."""
    try:
        preset = TrainConfig.preset(args.preset)
        where = {"backend": args.train_backend, "python": args.train_python}
        config = SFTConfig(
            iterations=args.iterations,
            attempts=args.attempts,
            evaluation_attempts=args.evaluation_attempts,
            random_control=args.random_control,
            max_tokens=args.max_tokens,
            attribution=Attribution(policy=args.reward_policy),
            train=TrainConfig.model_validate(preset.model_dump() | where),
            seed=args.seed,
        )
        engine = EngineConfig(
            kind=args.engine,
            python=args.engine_python,
            command=tuple(shlex.split(args.engine_command)) if args.engine_command else None,
            max_model_len=args.context,
            gpu_memory_utilization=args.gpu_memory,
            quantization=args.quantization,
            runtime_lora=args.runtime_lora,
            exact=args.exact,
            extra_args=tuple(shlex.split(args.engine_args)),
        )
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0]) if first["loc"] else "engine"
        option = FLAGS.get(field) or f"--{field.replace('_', '-')}"
        raise UsageError(f"{option}: {first['msg']}", "see --help") from None
    return SFT(config, args.model, engine)


def run_options(args: argparse.Namespace) -> dict[str, Any]:
    """What both drivers tell their ``Trainer`` about the run."""
    command = ["python", *sys.argv]
    return {"runs": args.runs, "resume": args.resume, "fork": args.fork, "new": args.new, "command": command, "debug": args.debug}


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
