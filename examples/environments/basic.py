"""Run each task four times, keep the tasks that pass sometimes, and write what passed as training data.

python examples/environments/basic.py
"""

from __future__ import annotations

from pathlib import Path

from capitals import SAMPLING, env

import leyden
from leyden.environments import run_rollouts, to_sft_jsonl

OUTPUT = Path(__file__).parent / "data" / "train.jsonl"


def main() -> None:
    with leyden.serve_model("smollm2", SAMPLING) as llm:
        result = run_rollouts(env, k=4, model=llm)
    print(result)

    zone = result.learning_zone()
    if not zone.task_results:
        print("every task passes always or never: there is nothing to learn between the two")
        return
    report = to_sft_jsonl(zone, OUTPUT)
    print(f"{report.n_written} conversations written, {report.n_skipped_failed} failed attempts left out")


if __name__ == "__main__":
    main()
