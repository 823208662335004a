from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from one_attempt import context, run_once
from pydantic import BaseModel
from tell_tales import MARK, frozen, marks, write_everywhere

from leyden.environments import Environment, RewardScorer, RunOutput, Task
from leyden.environments.subjects import as_subject
from leyden.errors import UsageError
from leyden.runners import BadReward, emit_reward, rollout
from leyden.types import LLM, Rollout

MODEL = LLM(endpoint="http://127.0.0.1:1/v1", model="m")


@rollout
async def answers(task: str) -> str:
    emit_reward(0.5, "style")
    return f"answer to {task}"


@rollout
def in_a_thread(task: str) -> str:
    return threading.current_thread().name


@rollout
async def rewards(task: str) -> dict[str, float]:
    return {"reward": 1.0, "steps": 3}


@rollout
async def emits(task: str) -> None:
    emit_reward(0.25)


@rollout
async def scores_itself(task: str) -> float:
    return 0.75


@rollout
async def whole(task: str) -> RunOutput:
    return RunOutput("content", messages=({"role": "user", "content": task},))


@pytest.mark.parametrize(
    ("agent", "content", "metrics"),
    [
        (answers, "answer to 2 + 2", {"style": 0.5}),
        (rewards, {"reward": 1.0, "steps": 3}, {"reward": 1.0, "steps": 3.0}),
        (emits, None, {"reward": 0.25}),
        (scores_itself, 0.75, {"reward": 0.75}),
    ],
)
def test_what_a_function_returns_is_the_content_and_its_numbers_are_the_metrics(
    agent: Any, content: Any, metrics: dict[str, float]
) -> None:
    run = run_once(agent, "2 + 2")
    assert (run.content, run.metrics) == (content, metrics)


def test_a_function_may_return_a_whole_output_and_a_sync_one_runs_in_a_thread() -> None:
    assert run_once(whole, "q").messages == ({"role": "user", "content": "q"},)
    assert run_once(in_a_thread, "q").content.startswith("leyden-")


def test_a_function_gets_the_task_as_a_runner_would_give_it_and_the_model_of_the_run() -> None:
    given: list[Any] = []

    @rollout
    async def agent(task: Any, llm: LLM, rollout: Rollout) -> None:
        given.extend([task, llm, rollout.input, rollout.id])

    question = {"input": "2 + 2", "target": 4}
    run_once(agent, question, MODEL)
    assert given == [question, MODEL, question, "r1"] and given[0] is not question
    assert as_subject(agent).needs_llm and not as_subject(answers).needs_llm
    with pytest.raises(UsageError, match="asks for `llm`"):
        run_once(agent, question)


def test_what_a_function_raises_comes_out_and_what_it_emitted_is_kept() -> None:
    @rollout
    async def broken(task: str) -> float:
        emit_reward(1.0, "progress")
        raise KeyError("broken")

    own = context()
    with pytest.raises(KeyError):
        asyncio.run(as_subject(broken).attempt(Task("x", id="t"), own))
    assert own.output is None and own.partial is not None and own.partial.metrics == {"progress": 1.0}


def test_a_number_that_is_none_is_the_agents_fault() -> None:
    @rollout
    async def agent(task: str) -> float:
        return float("nan")

    with pytest.raises(BadReward):
        run_once(agent, "x")


class Remembers:
    def __init__(self) -> None:
        self.seen: list[str] = []
        self.deep = {"er": [{"still": []}]}

    async def rollout(self, task: list[Any]) -> list[str]:
        found = [*marks(self), *marks(task)]
        write_everywhere(self, task)
        await asyncio.sleep(0)
        return found


def test_33_an_agent_made_of_a_class_has_a_copy_of_its_object_for_every_attempt_and_the_task_is_its_own_too() -> None:
    agent, question = rollout(Remembers), [{"role": "user", "content": ["x"]}]
    task = Task(question, id="t", expected={"x": [1]}, metadata={"m": [1]})
    before = frozen(agent.function, task)

    async def main() -> list[Any]:
        owns = [context() for _ in range(6)]
        await asyncio.gather(*(as_subject(agent).attempt(task, own) for own in owns))
        return [own.output.content for own in owns if own.output]

    assert asyncio.run(main()) == [[]] * 6
    assert frozen(agent.function, task) == before and MARK not in str(question)


def test_an_object_that_is_called_is_copied_as_well() -> None:
    class Counts:
        def __init__(self) -> None:
            self.n = 0

        def __call__(self, task: str) -> str:
            self.n += 1
            return f"{self.n} times"

    agent = rollout(Counts())
    assert [run_once(agent, "x").content for _ in range(2)] == ["1 times", "1 times"]


def test_an_object_that_cannot_be_copied_is_refused_before_any_attempt() -> None:
    class Locked:
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def rollout(self, task: str) -> float:
            return 1.0

    with pytest.raises(UsageError, match=r"Locked\.rollout cannot be copied for each attempt"):
        asyncio.run(as_subject(Locked).check())


class City(BaseModel):
    name: str


def test_the_type_of_an_answer_is_known_where_the_agent_says_it() -> None:
    async def typed(task: str) -> City:
        return City(name=task)

    async def unresolved(task: str) -> Nowhere:  # type: ignore[name-defined]  # noqa: F821
        return task

    kinds = [as_subject(agent).output_type for agent in (typed, unresolved, answers, whole, rewards)]  # type: ignore[attr-defined]
    assert kinds == [City, None, None, None, None]


def test_two_functions_on_the_same_tasks_ask_the_same_and_are_two_policies() -> None:
    envs = [Environment("e", [Task("x")], RewardScorer(), agent) for agent in (emits, scores_itself, emits)]
    assert envs[0].env_matches(envs[1])
    policies = [env.policy_fingerprint() for env in envs]
    assert policies[0].matches(policies[2]) and policies[0].difference(policies[1]) == ("agent",)
    assert policies[0].difference(envs[0].policy_fingerprint(MODEL)) == ("endpoint", "model", "sampling")


def test_an_agent_of_a_class_is_known_by_its_class_and_what_it_holds() -> None:
    class Greets:
        def __init__(self, word: str = "hello") -> None:
            self.word = word

        def rollout(self, task: str) -> str:
            return self.word

    def policy(agent: Any) -> str | None:
        return Environment("e", [Task("x")], RewardScorer(), agent).policy_fingerprint().digest

    changed = rollout(Greets)
    changed.function.__self__.word = "goodbye"  # type: ignore[attr-defined]
    assert policy(Greets) == policy(rollout(Greets)) != policy(changed) is not None
