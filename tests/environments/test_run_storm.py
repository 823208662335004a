"""The error storm: a run that fails as a whole stops soon, and one that does not goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from run_room import environment, say_yes

from leyden.environments import CodeScorer, RunOutput, RunStatus, Task, run_rollouts
from leyden.environments.subject import AttemptContext
from leyden.server.sqlstore import SQLStore
from leyden.types import Counts


async def fail(task: Task, index: int, context: AttemptContext) -> Any:
    raise RuntimeError(f"{task.id} {index}: a message of its own")


def crash(run: RunOutput, expected: Any) -> bool:
    raise KeyError(run.content)


async def hang(task: Task, index: int, context: AttemptContext) -> Any:
    await asyncio.Event().wait()


async def cut(task: Task, index: int, context: AttemptContext) -> RunOutput:
    return RunOutput(content=None, status=RunStatus.TRUNCATED)


def run(evals: Path, act: Any, tasks: int, k: int, concurrency: int = 4, **more: Any) -> tuple[int, str | None]:
    env = environment(act, tasks, **more)
    found = run_rollouts(env, k=k, concurrency=concurrency, evals=evals, quiet=True)
    return found.n_attempts, found.stopped_early


@pytest.mark.parametrize(("k", "concurrency", "tried"), [(5, 1, 4), (20, 2, 4), (9, 8, 8), (30, 8, 8)])
def test_one_task_stops_after_the_first_window(tmp_path: Path, k: int, concurrency: int, tried: int) -> None:
    n, stopped = run(tmp_path, fail, 1, k, concurrency)
    assert tried <= n < tried + concurrency  # what was under way ends
    assert stopped == "error-storm"


@pytest.mark.parametrize(("k", "concurrency"), [(4, 1), (8, 8), (2, 16)])
def test_a_plan_that_was_tried_whole_is_not_said_to_have_stopped(tmp_path: Path, k: int, concurrency: int) -> None:
    assert run(tmp_path, fail, 1, k, concurrency) == (k, None)


def test_many_tasks_that_all_fail_alike_stop_the_run(tmp_path: Path) -> None:
    n, stopped = run(tmp_path, fail, 30, 8)
    assert 4 <= n < 8 and stopped == "error-storm"


@pytest.mark.parametrize(
    ("act", "more"), [(say_yes, {"scorer": CodeScorer(crash)}), (hang, {"timeout_seconds": 0.1}), (cut, {})], ids=["scorer", "time", "cut"]
)
def test_crashes_of_the_scorer_timeouts_and_cut_answers_are_storms_too(tmp_path: Path, act: Any, more: dict[str, Any]) -> None:
    n, stopped = run(tmp_path, act, 10, 8, **more)
    assert 4 <= n < 8 and stopped == "error-storm"


def test_one_sick_task_stops_alone(tmp_path: Path) -> None:
    async def act(task: Task, index: int, context: AttemptContext) -> str:
        if task.id == "t2":
            raise RuntimeError("only me")
        return "yes"

    env = environment(act, 3)
    found = run_rollouts(env, k=12, concurrency=1, evals=tmp_path, quiet=True)
    assert [len(one.attempts) for one in found.task_results] == [12, 4, 12]
    assert found.stopped_early == "error-storm"
    assert found.n_planned == 36 and found.coverage == pytest.approx(24 / 36)


@pytest.mark.parametrize("odd", ["score", "kind"])
def test_one_that_went_another_way_is_no_storm(tmp_path: Path, odd: str) -> None:
    async def act(task: Task, index: int, context: AttemptContext) -> str:
        if index == 2 and odd == "score":
            return "no"
        raise ValueError("bad") if index == 2 else RuntimeError("bad")

    assert run(tmp_path, act, 1, 10, 1) == (10, None)


def test_what_was_not_tried_is_cancelled_in_the_store_and_stays_so(tmp_path: Path) -> None:
    env = environment(fail, 30)
    found = run_rollouts(env, k=8, evals=tmp_path, quiet=True)

    async def counted() -> Counts:
        async with await SQLStore.open(tmp_path / (found.run_id or "") / "store.db") as store:
            return await store.count(run_id=found.run_id)

    counts = asyncio.run(counted())
    assert (counts.failed, counts.cancelled, counts.total) == (found.n_attempts, 240 - found.n_attempts, 240)
    resumed = run_rollouts(env, resume="@latest", evals=tmp_path, quiet=True)
    assert (resumed.n_attempts, resumed.stopped_early) == (found.n_attempts, "error-storm")
