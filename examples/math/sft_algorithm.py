"""The third of three terminals: the algorithm, which turns attempts into a better model.

    store --port 4747
    python examples/math/runners.py
    python examples/math/sft_algorithm.py

The store holds the tasks and everything that happens to them; the runners run the agent; this process brings the model. It starts an
engine and the proxy that writes down what the model said, queues the tasks, waits for the runners, picks the attempts that passed,
trains on their tokens, and measures what came out: ``leyden/algorithm/sft/loop.py`` tells it on a page. Runners may come and go
meanwhile; this process may not, since the engine is its child.
"""

from __future__ import annotations

import argparse
import sys

from options import parser, read_algorithm, read_tasks, run_options

from leyden.algorithm.sft.plan import print_plan
from leyden.algorithm.sft.report import Board, stdout_console
from leyden.algorithm.sft.summary import print_summary
from leyden.cli import reported
from leyden.proxy import LLMProxy
from leyden.trainer import Trainer


def main(args: argparse.Namespace) -> None:
    # 1. Tasks: some to learn from, others to measure on. None is in both.
    train, heldout, tasks_from = read_tasks(args)

    # 2. No agent here: the runners have it. The store is the one they claim from.
    trainer = Trainer(
        algorithm=read_algorithm(args), store=args.store, llm_proxy=LLMProxy(port=args.proxy_port), **run_options(args)
    )  # fmt: skip
    plan = trainer.plan(None, train, heldout, tasks_from)
    if args.dry_run:
        print_plan(plan, stdout_console())
        return

    # 3. The loop. Ctrl+C ends it in good order, and leaves store and runners alone; the same command goes on with it.
    board = Board()
    print_plan(plan, board.console)
    summary = trainer.fit(None, train, heldout, board)

    # 4. What it came to.
    print_summary(summary, stdout_console(), board)


if __name__ == "__main__":
    options = parser("Train a model on its own best attempts, with a store and runners that are there already.")
    options.add_argument("--store", default="http://127.0.0.1:4747", help="URL of the store")
    parsed = options.parse_args()
    sys.exit(reported(lambda: main(parsed), parsed.debug))
