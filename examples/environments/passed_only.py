"""Choosing tasks that pass sometimes chooses their failures too: the export leaves those out, and this script counts after it.

python examples/environments/passed_only.py
"""

from __future__ import annotations

import json
from pathlib import Path

from capitals import SAMPLING, env

import leyden
from leyden.environments import run_rollouts, to_sft_jsonl

OUTPUT = Path(__file__).parent / "data" / "passed.jsonl"


def main() -> None:
    with leyden.serve_model("smollm2", SAMPLING) as llm:
        result = run_rollouts(env, k=6, model=llm)
    print(result)

    zone = result.learning_zone()
    report = to_sft_jsonl(zone, OUTPUT)
    rows = [json.loads(line) for line in OUTPUT.read_text().split("\n") if line]
    passed = sum(task.n_passed for task in zone.task_results)
    assert report.n_written == passed == len(rows), "every row is an attempt that passed, and each of them is a row"
    print(f"{len(rows)} rows, one for each of {passed} attempts that passed; {report.n_skipped_failed} that failed are not among them")


if __name__ == "__main__":
    main()
