from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from leyden.environments import CodeScorer, Environment, RunOutput, Score, Task
from leyden.errors import UsageError
from leyden.runners import rollout
from leyden.types import LLM


@rollout
async def echo(task: str) -> str:
    return task


class Constant:
    async def ascore(self, run: RunOutput, expected: Any = None) -> Score:
        return Score(1.0, True)

    def digest(self) -> str:
        return "constant"


def make(**changes: Any) -> Environment:
    return Environment(**{"name": "sums", "tasks": [Task("1"), Task("2", id="two")], "scorer": Constant(), "agent": echo, **changes})


class NoDigest:
    async def ascore(self, run: RunOutput, expected: Any = None) -> Score:
        return Score(1.0, True)


class TakesNoExpected:
    async def ascore(self, run: RunOutput) -> Score:
        return Score(1.0, True)


class SyncScorer:
    def ascore(self, run: RunOutput, expected: Any = None) -> Score:
        return Score(1.0, True)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": ""}, "name is a text"),
        ({"name": 3}, "name is a text"),
        ({"tasks": []}, "at least one task"),
        ({"tasks": "abc"}, "sequence of Task, not str"),
        ({"tasks": Task("a")}, "sequence of Task, not Task"),
        ({"tasks": [Task("a"), "b"]}, r"tasks\[1\] is a str, not a Task"),
        ({"tasks": [Task("a", id=4)]}, r"the id of tasks\[0\] is 4"),
        ({"tasks": [Task("a", id="\ud800")]}, r"the id of tasks\[0\] is"),
        ({"tasks": [Task(threading.Lock())]}, "task 't1' cannot be copied"),
        ({"tasks": [Task("a", expected=(n for n in ""))]}, "task 't1' cannot be copied"),
        ({"tasks": [Task("a", metadata=None)]}, r"the metadata of tasks\[0\] is a NoneType"),
        ({"tasks": [Task("a", id="x"), Task("b", id="x")]}, "both called 'x'"),
        ({"tasks": [Task("a", id="t2"), Task("b")]}, "both called 't2'"),
        ({"scorer": None}, "has a method ascore, and a NoneType has none"),
        ({"scorer": lambda run, expected: True}, "has a method ascore, and a function has none"),
        ({"scorer": "exact"}, "has a method ascore, and a str has none"),
        ({"scorer": Constant}, "the scorer is the class Constant, not an instance"),
        ({"scorer": SyncScorer()}, "ascore is not async"),
        ({"scorer": TakesNoExpected()}, r"TakesNoExpected.ascore does not take \(run, expected\)"),
        ({"timeout_seconds": 0}, "timeout_seconds"),
        ({"timeout_seconds": -1}, "timeout_seconds"),
        ({"timeout_seconds": "x"}, "timeout_seconds"),
        ({"timeout_seconds": True}, "timeout_seconds"),
        ({"timeout_seconds": float("nan")}, "timeout_seconds"),
        ({"timeout_seconds": float("inf")}, "timeout_seconds"),
        ({"version": 2}, "version is a text or None"),
        ({"knowledge_version": 2}, "knowledge_version is a text or None"),
        ({"agent": 7}, "int is no kind of agent"),
        ({"agent": None}, "NoneType is no kind of agent"),
        ({"agent": "gpt"}, "str is no kind of agent"),
        ({"agent": Constant}, "the class Constant, not an instance"),
        ({"agent": lambda question: question}, "don't know what to give argument `question`"),
        ({"agent": LLM(endpoint="http://x/v1", model="m"), "tasks": [Task({"q": 1})]}, "the input of task 't1' is a dict"),
    ],
)
def test_what_an_environment_is_made_of_is_checked_when_it_is_made(changes: dict[str, Any], said: str) -> None:
    """By one kind of error, ``UsageError``, where others raise TypeError here and ValueError there: the command line prints it."""
    with pytest.raises(UsageError, match=said) as raised:
        make(**changes)
    assert raised.value.hint


def judge(run: RunOutput, expected: Any) -> bool:
    return True


@pytest.mark.parametrize(
    ("changes", "hint"), [({"scorer": judge}, "write scorer=CodeScorer(judge)"), ({"tasks": "tasks.jsonl"}, "Task.from_jsonl")]
)
def test_the_hint_says_what_was_forgotten(changes: dict[str, Any], hint: str) -> None:
    with pytest.raises(UsageError) as raised:
        make(**changes)
    assert raised.value.hint and hint in raised.value.hint


@pytest.mark.parametrize("seconds", [None, 1, 0.5])
def test_a_timeout_is_a_number_above_zero_or_none(seconds: float | None) -> None:
    assert make(timeout_seconds=seconds).timeout_seconds == seconds


def test_29_an_environment_is_frozen_equal_by_identity_and_hashable() -> None:
    env, same = make(), make()
    assert env != same and len({env, same, env}) == 2
    with pytest.raises(AttributeError):
        env.name = "other"  # type: ignore[misc]


def test_tasks_become_a_tuple_and_resolved_has_their_ids() -> None:
    env = make(tasks=(task for task in [Task("1"), Task("2", id="two")]))
    assert isinstance(env.tasks, tuple) and [task.id for task in env.tasks] == [None, "two"]
    assert [task.id for task in env.resolved] == ["t1", "two"] and env.resolved[1] is env.tasks[1]


def test_39_tasks_are_selected_by_id_by_themselves_and_by_the_tasks_of_a_result() -> None:
    env = make()
    from_a_file = Task("1", id="t1")
    assert env.select(["two", "t1"]) == (env.resolved[1], env.resolved[0])
    assert env.select([env.tasks[0]]) == env.select([env.resolved[0]]) == env.select([from_a_file]) == (env.resolved[0],)
    assert env.select([]) == ()


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (["twoo"], "no task 'twoo'"),
        (["t2"], "no task 't2'"),
        ([Task("1")], "is none of sums's"),
        ([Task("other", id="two")], "'?two'? is none of sums's"),
        (["two", "two"], "'two' is selected twice"),
        ("two", "several ids"),
    ],
)
def test_39_a_rebuilt_an_unknown_or_a_repeated_task_is_refused(ids: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        make().select(ids)
    assert raised.value.hint


def test_the_hint_names_the_id_that_was_meant() -> None:
    with pytest.raises(UsageError) as raised:
        make().select(["twoo"])
    assert raised.value.hint == "did you mean 'two'?"


def test_a_plain_function_with_a_task_counts_as_decorated_and_a_class_with_rollout_too() -> None:
    def plain(task: str) -> float:
        return 1.0

    class Held:
        def rollout(self, task: str) -> float:
            return 1.0

    for agent in (plain, Held):
        assert asyncio.run(make(agent=agent).subject.check()) is None


def test_a_scorer_without_a_digest_is_a_scorer_all_the_same() -> None:
    env = make(scorer=NoDigest())
    assert env.env_fingerprint().digest is None


def test_code_scorers_are_taken_as_they_are() -> None:
    scorer = CodeScorer(lambda run, expected: True)
    assert make(scorer=scorer).scorer is scorer
