"""No task between always and never is a normal outcome, and must not be taken for a dataset: nothing is written, and what an earlier
run wrote there is gone.

python examples/environments/empty_zone_guard.py
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from capitals import SAMPLING, env

import leyden
from leyden.environments import EnvironmentRunResult, Task, run_rollouts, to_sft_jsonl

OUTPUT = Path(__file__).parent / "data" / "guarded.jsonl"
SIDECAR = OUTPUT.with_name(OUTPUT.name + ".meta.json")

with_anchor = replace(env, tasks=(*env.tasks[:2], Task("Write one sentence about dogs.", "dogs", id="anchor")))


def export(zone: EnvironmentRunResult) -> None:
    report = to_sft_jsonl(zone, OUTPUT)
    print(f"{len(zone.task_results)} tasks in the learning zone, {report.n_written} rows written")
    assert OUTPUT.exists() == SIDECAR.exists() == (report.n_written > 0)


def main() -> None:
    with leyden.serve_model("smollm2", SAMPLING) as llm:
        result = run_rollouts(with_anchor, k=4, model=llm)
    print(result)
    export(result.learning_zone())
    export(replace(result, task_results=()))  # as if there had been none
    assert not OUTPUT.exists()


if __name__ == "__main__":
    main()
