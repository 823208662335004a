"""The second of three terminals: four runner processes that work for a store until Ctrl+C.

    store --port 4747
    python examples/math/runners.py
    python examples/math/sft_algorithm.py

Each process runs ``math_agent`` on several rollouts at once, with one calculator for all of them. They wait for work, so they may be
started before there is any; more of them may be added, or stopped, at any time.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from leyden.cli import reported
from leyden.runners import PoolConfig, spawn_runners

AGENT = f"{Path(__file__).with_name('math_agent.py')}:math_agent"


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the math agent for a store.")
    parser.add_argument("--store", default="http://127.0.0.1:4747", help="URL of the store (default: %(default)s)")
    parser.add_argument("-n", type=int, default=4, help="runner processes (default: %(default)s)")
    parser.add_argument("--concurrency", type=int, default=16, help="rollouts at once in each (default: %(default)s)")
    args = parser.parse_args()
    return spawn_runners(PoolConfig(AGENT, args.store, args.n, args.concurrency))


if __name__ == "__main__":
    sys.exit(reported(main))
