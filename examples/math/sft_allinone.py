"""Everything in one command: a small model gets better at using a calculator, from its own attempts.

    python examples/math/sft_allinone.py

``Trainer`` starts what ``sft_algorithm.py`` expects to find: a store, kept in the run directory, and runner processes for the math
agent. Then it runs the same loop, serve → collect → select → train → verify → evaluate → promote, which
``leyden/algorithm/sft/loop.py`` tells on a page. Whatever happens, it leaves no process behind, and the same command goes on where it
stopped.

With other tasks:  --dataset problems.jsonl  (rows with ``input`` and ``target``), with another model:  --model DIR
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from options import parser, read_algorithm, read_tasks, run_options

from leyden.algorithm.sft.plan import print_plan
from leyden.algorithm.sft.report import Board, stdout_console
from leyden.algorithm.sft.summary import print_summary
from leyden.cli import reported
from leyden.proxy import LLMProxy
from leyden.trainer import Trainer

AGENT = f"{Path(__file__).with_name('math_agent.py')}:math_agent"


def main(args: argparse.Namespace) -> None:
    # 1. Tasks: some to learn from, others to measure on. None is in both.
    train, heldout, tasks_from = read_tasks(args)

    # 2. Whatever else is to be decided. Nothing runs yet.
    trainer = Trainer(
        algorithm=read_algorithm(args),
        n_runners=args.runners,
        concurrency=args.concurrency,
        llm_proxy=LLMProxy(port=args.proxy_port),
        **run_options(args),
    )
    plan = trainer.plan(args.agent, train, heldout, tasks_from)
    if args.dry_run:
        print_plan(plan, stdout_console())
        return

    # 3. The loop. Ctrl+C ends it in good order.
    board = Board()
    print_plan(plan, board.console)
    summary = trainer.fit(args.agent, train, heldout, board)

    # 4. What it came to.
    print_summary(summary, stdout_console(), board)


if __name__ == "__main__":
    options = parser("Train a model on its own best attempts, with everything that needs started and ended again.")
    options.add_argument("--agent", default=AGENT, help="module:agent or path/to/file.py:agent")
    options.add_argument("--runners", type=int, default=2, metavar="N", help="runner processes")
    options.add_argument("--concurrency", type=int, default=24, metavar="N", help="rollouts at once in each")
    parsed = options.parse_args()
    sys.exit(reported(lambda: main(parsed), parsed.debug))
