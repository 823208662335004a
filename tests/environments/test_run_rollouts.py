"""``run_rollouts``: what is tried, in which order, what is scored, and what one bad attempt does to the others (nothing)."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from run_room import Acting, Reverse, environment, say_yes

from leyden.environments import CodeScorer, Environment, RunOutput, RunStatus, Score, StopReason, Task, arun_rollouts, run_rollouts
from leyden.environments.adaptive import AdaptiveK
from leyden.environments.subject import AttemptContext
from leyden.errors import UsageError
from leyden.types import LLM


def stops(env: Environment, evals: Path, **more: Any) -> list[StopReason]:
    return [attempt.stop_reason for _, attempt in run_rollouts(env, k=1, evals=evals, quiet=True, **more).attempts()]


def test_results_are_in_the_tasks_and_attempts_order_whatever_ends_first(tmp_path: Path) -> None:
    keys = [(f"t{n}", index) for index in range(3) for n in (1, 2, 3, 4)]

    async def go() -> tuple[list[tuple[str, int]], list[tuple[str, list[Any]]]]:
        order = Reverse(keys)
        found = await arun_rollouts(environment(order.act, 4), k=3, concurrency=12, evals=tmp_path, quiet=True)
        return order.ended, [(one.task.id or "", [one.run and one.run.content for one in one.attempts]) for one in found.task_results]

    ended, grouped = asyncio.run(go())
    assert ended == keys[::-1]
    assert grouped == [(f"t{n}", [f"t{n} {index}" for index in range(3)]) for n in (1, 2, 3, 4)]


def test_the_first_attempt_of_every_task_comes_before_any_second(tmp_path: Path) -> None:
    seen: list[tuple[str | None, int]] = []

    async def act(task: Task, index: int, context: AttemptContext) -> str:
        seen.append((task.id, index))
        return "yes"

    run_rollouts(environment(act, 3), k=2, concurrency=1, evals=tmp_path, quiet=True)
    assert seen == [("t1", 0), ("t2", 0), ("t3", 0), ("t1", 1), ("t2", 1), ("t3", 1)]


def test_one_failing_attempt_of_ten_gives_ten_results(tmp_path: Path) -> None:
    async def act(task: Task, index: int, context: AttemptContext) -> str:
        if index == 4:
            raise KeyError("gone")
        return "yes"

    (one,) = run_rollouts(environment(act, 1), k=10, evals=tmp_path, quiet=True).task_results
    assert [attempt.index for attempt in one.attempts] == list(range(10))
    assert [attempt.passed for attempt in one.attempts] == [index != 4 for index in range(10)]
    broken = one.attempts[4]
    assert (broken.stop_reason, broken.error, broken.error_type) == (StopReason.ERROR, "KeyError: 'gone'", "KeyError")
    assert broken.score is None and one.n_unscored == 1


def test_each_task_is_judged_by_its_own_expectation(tmp_path: Path) -> None:
    given: list[Any] = []

    def judge(run: RunOutput, expected: Any) -> bool:
        given.append((run.content, expected))
        return True

    async def act(task: Task, index: int, context: AttemptContext) -> str:
        return task.input.upper()

    tasks = [Task("a", expected=1), Task("b", expected={"two": 2}), Task("c")]
    run_rollouts(environment(act, tasks, CodeScorer(judge)), k=1, evals=tmp_path, quiet=True)
    assert sorted(given, key=str) == [("A", 1), ("B", {"two": 2}), ("C", None)]


def test_only_what_completed_is_scored(tmp_path: Path) -> None:
    asked: list[str] = []

    class Counting:
        async def ascore(self, run: RunOutput, expected: Any = None) -> Score:
            asked.append(run.content)
            return Score(1.0, True)

    async def act(task: Task, index: int, context: AttemptContext) -> Any:
        match task.input:
            case "error":
                raise RuntimeError("no")
            case "nothing":
                return None
            case "self-cancelled":
                raise asyncio.CancelledError
            case "timeout":
                await asyncio.Event().wait()
        return RunOutput(content=task.input, status=RunStatus(task.input))

    names = ["completed", "truncated", "paused", "cancelled", "error", "nothing", "self-cancelled", "timeout"]
    env = environment(act, [Task(name) for name in names], Counting(), timeout_seconds=0.3)
    found = run_rollouts(env, k=1, concurrency=8, evals=tmp_path, quiet=True)
    assert asked == ["completed"]
    assert found.n_scored == 1
    kinds = [str(attempt.stop_reason) for _, attempt in found.attempts()]
    assert kinds == ["completed", "truncated", "paused", "cancelled", "error", "error", "cancelled", "timeout"]
    assert found.errors()["t6"] == ["no run output recorded"] and found.errors()["t8"] == ["timeout: exceeded 0.3 s"]
    assert found.env_fingerprint.digest is None, "a scorer without a digest"


def test_what_was_committed_before_the_time_ran_out_is_kept(tmp_path: Path) -> None:
    async def act(task: Task, index: int, context: AttemptContext) -> None:
        context.commit(RunOutput(content="yes"))
        await asyncio.Event().wait()

    ((_, attempt),) = run_rollouts(environment(act, 1, timeout_seconds=0.2), k=1, evals=tmp_path, quiet=True).attempts()
    assert attempt.stop_reason is StopReason.TIMEOUT
    assert attempt.run is not None and attempt.run.content == "yes" and attempt.score is None


def test_a_timeout_is_for_the_scorer_too(tmp_path: Path) -> None:
    async def judge(run: RunOutput, expected: Any) -> bool:
        return await asyncio.Event().wait()

    assert stops(environment(say_yes, 1, CodeScorer(judge), timeout_seconds=0.2), tmp_path) == [StopReason.TIMEOUT]


@pytest.mark.parametrize("returns", [None, True, 0.5])
def test_a_scorer_that_breaks_leaves_the_attempt_completed_and_unscored(tmp_path: Path, returns: Any) -> None:
    class Broken:
        async def ascore(self, run: RunOutput, expected: Any = None) -> Any:
            if returns is None:
                raise ZeroDivisionError("by zero")
            return returns

    ((_, attempt),) = run_rollouts(environment(say_yes, 1, Broken()), k=1, evals=tmp_path, quiet=True).attempts()
    assert attempt.stop_reason is StopReason.COMPLETED and attempt.score is None
    expected = "scorer: ZeroDivisionError: by zero" if returns is None else "scorer: TypeError: a scorer returns a Score, not"
    assert attempt.error is not None and attempt.error.startswith(expected)


def test_a_callback_that_fails_is_not_called_again_and_costs_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    called = []

    def callback(task: Task, attempt: Any) -> None:
        called.append((task.id, attempt.index))
        if len(called) == 2:
            raise RuntimeError("no")

    found = run_rollouts(environment(say_yes), k=3, evals=tmp_path, quiet=True, on_attempt_end=callback)
    assert found.n_scored == 6 and len(called) == 2
    assert "on_attempt_end failed" in caplog.text


@pytest.mark.parametrize("wrong", [{"k": 0}, {"k": True}, {"k": 1.0}, {"concurrency": 0}, {"concurrency": False}, {"seed": "x"}])
def test_numbers_are_looked_at_before_the_first_attempt(tmp_path: Path, wrong: dict[str, Any]) -> None:
    async def never(task: Task, index: int, context: AttemptContext) -> str:
        raise AssertionError("it was tried")

    with pytest.raises(UsageError, match=f"{next(iter(wrong))} is a whole number"):
        run_rollouts(environment(never), evals=tmp_path, quiet=True, **wrong)
    assert not list(tmp_path.iterdir()), "a directory was made for nothing"


def test_a_model_is_no_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a str, not a leyden\.LLM"):
        run_rollouts(environment(say_yes), model="gpt", evals=tmp_path, quiet=True)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="needs a model"):
        run_rollouts(environment(say_yes, needs_llm=True), evals=tmp_path, quiet=True)


def test_some_tasks_keep_the_fingerprint_and_their_names(tmp_path: Path) -> None:
    env = environment(say_yes, 3)
    some = {"evals": tmp_path, "quiet": True, "k": 1}
    whole = run_rollouts(env, **some)
    ways = {
        "itself": [env.tasks[2], env.tasks[0]],
        "id": ["t3", "t1"],
        "result": list(whole.select(["t3", "t1"]).task_results),
        "result's task": [one.task for one in whole.select(["t3", "t1"]).task_results],
    }
    for way, tasks in ways.items():
        part = run_rollouts(env, tasks=tasks, **some)
        assert [one.task.id for one in part.task_results] == ["t3", "t1"], way
        assert part.env_matches(whole), way
    with pytest.raises(UsageError, match="none of room's"):
        run_rollouts(env, tasks=[Task("q1", expected="yes")], **some)
    with pytest.raises(UsageError, match="twice"):
        run_rollouts(env, tasks=["t1", "t1"], **some)
    with pytest.raises(UsageError, match="no task 't9'"):
        run_rollouts(env, tasks=["t9"], **some)


def test_the_sync_door_names_the_other_one_inside_a_loop(tmp_path: Path) -> None:
    async def inside() -> None:
        run_rollouts(environment(say_yes), evals=tmp_path)

    with pytest.raises(RuntimeError, match="arun_rollouts"):
        asyncio.run(inside())


def test_a_factory_that_fails_is_named_before_any_attempt(tmp_path: Path) -> None:
    def factory() -> Any:
        raise OSError("no config")

    env = Environment("room", (Task("q"),), CodeScorer(lambda run, expected: True), factory)
    with pytest.raises(UsageError, match="factory failed before any attempt: OSError: no config"):
        run_rollouts(env, k=1, evals=tmp_path, quiet=True)
    assert not list(tmp_path.iterdir())


def test_the_model_decides_over_the_policy_alone(tmp_path: Path) -> None:
    class Asking(Acting):
        def policy(self, llm: LLM | None) -> Any:
            return {"model": lambda: llm.model if llm else "own"}

    async def act(task: Task, index: int, context: AttemptContext) -> str:
        return context.llm.model if context.llm else "own"

    env = Environment("room", (Task("q", expected="other"),), CodeScorer(lambda run, expected: run.content == expected), Asking(act))
    own = run_rollouts(env, k=1, evals=tmp_path, quiet=True)
    other = run_rollouts(env, k=1, evals=tmp_path, quiet=True, model=LLM(endpoint="http://127.0.0.1:9/v1", model="other"))
    assert own.env_matches(other) and not own.policy_fingerprint.matches(other.policy_fingerprint)
    assert (own.pass_rate, other.pass_rate) == (0.0, 1.0)


def test_an_attempt_that_the_infrastructure_failed_is_tried_again_and_is_no_further_sample(tmp_path: Path) -> None:
    tries: dict[int, int] = {}

    async def act(task: Task, index: int, context: AttemptContext) -> str:
        tries[index] = tries.get(index, 0) + 1
        if index == 1 and tries[index] == 1:
            raise ConnectionError("engine away")
        return "yes"

    (one,) = run_rollouts(environment(act, 1), k=3, evals=tmp_path, quiet=True).task_results
    assert [attempt.index for attempt in one.attempts] == [0, 1, 2]
    assert one.n_passed == 3 and tries == {0: 1, 1: 2, 2: 1}
    assert [attempt.attempt for attempt in one.attempts] == [1, 2, 1]


def test_an_answer_that_cannot_be_kept_is_an_error_and_not_lost(tmp_path: Path) -> None:
    async def act(task: Task, index: int, context: AttemptContext) -> Any:
        return object() if index else "yes"

    first, second = (attempt for _, attempt in run_rollouts(environment(act, 1), k=2, evals=tmp_path, quiet=True).attempts())
    assert first.passed
    assert second.stop_reason is StopReason.ERROR and "run.content cannot be written as JSON" in (second.error or "")


def test_a_score_that_cannot_be_kept_leaves_the_attempt_unscored_and_keeps_its_answer(tmp_path: Path) -> None:
    async def act(task: Task, index: int, context: AttemptContext) -> str:
        return "yes"

    def unwritable(run: RunOutput, expected: Any) -> Score:
        return Score(1.0, True, detail={"found": object()})

    found = run_rollouts(environment(act, scorer=CodeScorer(unwritable)), k=1, evals=tmp_path)
    (attempt,) = found.task_results[0].attempts
    assert (attempt.stop_reason, attempt.score) == (StopReason.COMPLETED, None)
    assert (attempt.error or "").startswith("scorer: UsageError") and attempt.run is not None and attempt.run.content == "yes"


def test_something_else_than_an_environment_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="takes an Environment, not str"):
        run_rollouts("capitals", evals=tmp_path)  # type: ignore[arg-type]


def test_adaptive_k_stops_where_enough_is_known(tmp_path: Path) -> None:
    async def act(task: Task, index: int, context: AttemptContext) -> str:
        return "yes" if task.input == "q1" or index % 2 else "no"

    found = run_rollouts(environment(act, 2), adaptive=AdaptiveK(max_k=12), concurrency=2, evals=tmp_path, quiet=True)
    always, sometimes = found.task_results
    assert (always.planned, always.n_scored, always.pass_rate) == (7, 7, 1.0)
    assert (sometimes.planned, sometimes.n_scored) == (2, 2)
    assert (found.k, found.n_planned, found.coverage, found.stopped_early) == (12, 9, 1.0, None)


def test_nothing_is_said_but_to_a_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        run_rollouts(environment(say_yes), k=1, evals=tmp_path)
    out, err = capfd.readouterr()
    assert (out, err, caplog.text) == ("", "", "")


def test_context_variables_of_one_attempt_are_not_the_next_ones(tmp_path: Path) -> None:
    from contextvars import ContextVar

    mark: ContextVar[str] = ContextVar("mark", default="clean")

    async def act(task: Task, index: int, context: AttemptContext) -> str:
        before = mark.get()
        mark.set("used")
        return before

    found = run_rollouts(environment(act, 2), k=3, concurrency=1, evals=tmp_path, quiet=True)
    assert {attempt.run.content for _, attempt in found.attempts() if attempt.run} == {"clean"}
