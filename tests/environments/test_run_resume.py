"""Nothing that ended is lost: cancelled, interrupted or killed, a run goes on, and comes to what an undisturbed one comes to."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from run_room import environment, say_yes

from leyden.environments import (
    CodeScorer,
    Environment,
    EnvironmentRunResult,
    MismatchError,
    RunCancelled,
    RunInterrupted,
    Task,
    arun_rollouts,
    run_rollouts,
)
from leyden.environments.evaldir import EvalDir
from leyden.environments.subject import AttemptContext
from leyden.errors import NotFound, UsageError
from leyden.server.sqlstore import SQLStore


def told(found: EnvironmentRunResult) -> list[Any]:
    return [
        (task.id, attempt.index, attempt.run and attempt.run.content, attempt.score, str(attempt.stop_reason), attempt.error)
        for task, attempt in found.attempts()
    ]


class Some:
    """Answers by task and index; from the nth attempt on it waits for ever, until ``n`` is None."""

    def __init__(self, n: int | None) -> None:
        self.n = n
        self.began: list[tuple[str | None, int]] = []
        self.stuck = asyncio.Event()

    async def act(self, task: Task, index: int, context: AttemptContext) -> str:
        self.began.append((task.id, index))
        if self.n is not None and len(self.began) > self.n:
            self.stuck.set()
            await asyncio.Event().wait()
        if index == 1 and task.id == "t2":
            raise ValueError(f"{task.id} cannot")
        return "yes" if (index + int(task.id[1:] if task.id else 0)) % 2 else "no"


async def cancelled_after(agent: Some, env: Environment, evals: Path) -> RunCancelled:
    """Cancel the run once it is stuck and all that had ended is in the store."""
    ended = []
    run = asyncio.create_task(
        arun_rollouts(env, k=4, concurrency=2, evals=evals, quiet=True, on_attempt_end=lambda task, one: ended.append(one))
    )
    await agent.stuck.wait()
    while len(ended) < (agent.n or 0):
        await asyncio.sleep(0.01)
    run.cancel()
    with pytest.raises(RunCancelled) as caught:
        await run
    return caught.value


def test_a_cancelled_run_gives_what_it_has_and_goes_on_to_the_same_end(tmp_path: Path) -> None:
    undisturbed = run_rollouts(environment(Some(None).act, 3), k=4, evals=tmp_path / "other", quiet=True)
    agent = Some(5)
    env = environment(agent.act, 3)
    stopped = asyncio.run(cancelled_after(agent, env, tmp_path))
    assert stopped.result.n_attempts == 5 and stopped.result.n_planned == 12
    assert set(map(str, told(stopped.result))) <= set(map(str, told(undisturbed)))

    ended = {(task.id, attempt.index) for task, attempt in stopped.result.attempts()}
    agent.n, agent.began = None, []
    resumed = run_rollouts(env, resume=stopped.eval_id, evals=tmp_path, quiet=True)
    assert told(resumed) == told(undisturbed)
    assert ended.isdisjoint(agent.began), "tried again"
    assert len(agent.began) == 12 - len(ended)
    assert resumed.run_id == stopped.eval_id

    agent.began = []
    again = run_rollouts(env, resume="@latest", evals=tmp_path, quiet=True)
    assert told(again) == told(undisturbed) and not agent.began, "a finished one is only read"


def test_ctrl_c_carries_the_partial_result(tmp_path: Path) -> None:
    sent = threading.Event()

    async def act(task: Task, index: int, context: AttemptContext) -> str:
        if index == 1 and not sent.is_set():
            sent.set()
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        return "yes"

    env = environment(act, 2)
    with pytest.raises(RunInterrupted, match="2 of 4 attempts") as caught:
        run_rollouts(env, k=2, concurrency=1, evals=tmp_path, quiet=True)
    assert caught.value.result.n_passed == 2
    assert run_rollouts(env, resume=caught.value.eval_id, evals=tmp_path, quiet=True).n_passed == 4


def test_what_a_dead_driver_held_is_handed_back_at_once(tmp_path: Path) -> None:
    """A store that was killed still shows the leases of the process that died; nobody waits for those to run out."""
    agent = Some(1)
    env = environment(agent.act, 2)

    async def prepare() -> str:
        stopped = await cancelled_after(agent, env, tmp_path)
        async with await SQLStore.open(tmp_path / stopped.eval_id / "store.db") as store:
            await store.register_worker("dead", "eval", 4)
            assert await store.claim("dead", 4)
            return stopped.eval_id

    eval_id = asyncio.run(prepare())
    agent.n = None
    assert asyncio.run(asyncio.wait_for(arun_rollouts(env, resume=eval_id, evals=tmp_path, quiet=True), 30)).n_attempts == 8


def test_a_run_that_changed_since_is_refused_and_told_what_changed(tmp_path: Path) -> None:
    agent = Some(1)
    stopped = asyncio.run(cancelled_after(agent, environment(agent.act, 2), tmp_path))
    changed = {
        "tasks": environment(agent.act, [Task("q1", expected="yes"), Task("q2", expected="no")]),
        "scorer": environment(agent.act, 2, CodeScorer(lambda run, expected: True)),
        "termination": environment(agent.act, 2, timeout_seconds=7),
        "agent": environment(agent.act, 2, policy="another"),
    }
    for what, env in changed.items():
        with pytest.raises(MismatchError, match=f"{what} changed"):
            run_rollouts(env, resume=stopped.eval_id, evals=tmp_path, quiet=True)
    with pytest.raises(NotFound, match="no eval '9999'"):
        run_rollouts(environment(say_yes), resume="9999", evals=tmp_path, quiet=True)


def test_two_processes_do_not_drive_one_eval(tmp_path: Path) -> None:
    agent = Some(1)
    env = environment(agent.act, 2)
    stopped = asyncio.run(cancelled_after(agent, env, tmp_path))
    with EvalDir.find(tmp_path, stopped.eval_id).lock(), pytest.raises(UsageError, match=f"is being run by process {os.getpid()}"):
        run_rollouts(env, resume=stopped.eval_id, evals=tmp_path, quiet=True)


def test_evals_are_found_by_the_beginning_of_their_ids(tmp_path: Path) -> None:
    first, second = (run_rollouts(environment(say_yes, 1), k=1, evals=tmp_path, quiet=True).run_id or "" for _ in range(2))
    assert EvalDir.find(tmp_path, "@latest").id == second
    assert EvalDir.find(tmp_path, first).id == first
    with pytest.raises(UsageError, match="could be"):
        EvalDir.find(tmp_path, first[:4])
    assert [one.id for one in EvalDir.all(tmp_path)] == [first, second]


def test_typed_answers_come_back_as_what_they_were(tmp_path: Path) -> None:
    from pydantic import BaseModel

    class Answer(BaseModel):
        word: str

    async def act(task: Task, index: int, context: AttemptContext) -> Answer:
        return Answer(word="yes")

    env = environment(act, 1, CodeScorer(lambda run, expected: run.content.word == expected))
    env.subject.output_type = Answer  # type: ignore[attr-defined]
    found = run_rollouts(env, k=1, evals=tmp_path, quiet=True)
    again = run_rollouts(env, resume="@latest", evals=tmp_path, quiet=True)
    loaded = EnvironmentRunResult.load(tmp_path / "latest" / "result.jsonl", output_type=Answer)
    for one in (found, again, loaded):
        assert [attempt.run.content for _, attempt in one.attempts() if attempt.run] == [Answer(word="yes")]
    assert told(found) == told(again) == told(loaded)


def test_cancelled_while_it_is_saved_it_tells_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saving = asyncio.Event()

    async def never(result: EnvironmentRunResult, path: Path) -> None:
        saving.set()
        await asyncio.Event().wait()

    async def scenario() -> RunCancelled:
        run = asyncio.create_task(arun_rollouts(environment(say_yes, 2), k=2, evals=tmp_path, quiet=True))
        await saving.wait()
        run.cancel()
        with pytest.raises(RunCancelled) as gone:
            await run
        return gone.value

    with monkeypatch.context() as patch:
        patch.setattr(EnvironmentRunResult, "asave", never)
        gone = asyncio.run(asyncio.wait_for(scenario(), 60))
    assert gone.result.n_scored == 4
    assert told(run_rollouts(environment(say_yes, 2), evals=tmp_path, resume=gone.eval_id, quiet=True)) == told(gone.result)
