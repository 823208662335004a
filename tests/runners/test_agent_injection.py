import asyncio
import threading
from typing import Any

import pytest

from leyden.errors import UsageError
from leyden.runners import Agent, emit_reward, rollout
from leyden.runners.dry_run import dev
from leyden.types import LLM, JSONResource, PromptTemplate, Resource, Rollout

ONE = LLM(endpoint="http://127.0.0.1:1/v1", model="one")
TWO = LLM(endpoint="http://127.0.0.1:2/v1", model="two")
PROMPT = PromptTemplate(template="Say {word}")


def _seen(agent: Agent, resources: dict[str, Resource]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    (result,) = dev(agent, [{"q": 1, "seen": seen}], resources=resources)
    assert result.error is None, result.error
    return seen


def test_arguments_are_filled_by_name() -> None:
    @rollout
    async def agent(task, llm, prompt_template, resources, rollout):  # type: ignore[no-untyped-def]
        task["seen"].update(llm=llm, prompt=prompt_template, resources=resources, rollout=rollout)

    seen = _seen(agent, {"main": ONE, "p": PROMPT})
    assert (seen["llm"], seen["prompt"], seen["resources"]) == (ONE, PROMPT, {"main": ONE, "p": PROMPT})
    assert isinstance(seen["rollout"], Rollout)


def test_arguments_are_filled_by_type_and_the_name_chooses_among_several() -> None:
    @rollout
    async def agent(task: Any, judge: LLM, settings: JSONResource | None, run: Rollout, llm: LLM | None = None) -> None:
        task["seen"].update(judge=judge, settings=settings, run=run, llm=llm)

    settings = JSONResource(value={"k": 3})
    seen = _seen(agent, {"actor": ONE, "judge": TWO, "settings": settings})
    assert (seen["judge"], seen["settings"], seen["run"].input["q"]) == (TWO, settings, 1)
    assert seen["llm"] is None  # two of the type, none of the name, and it may be missing


def test_a_missing_or_ambiguous_resource_is_named() -> None:
    @rollout
    async def agent(task: Any, llm: LLM) -> None: ...

    (missing,) = dev(agent, [1])
    (ambiguous,) = dev(agent, [1], resources={"a": ONE, "b": TWO})
    assert "asks for `llm`, but the resources hold no LLM" in str(missing.error)
    assert "`llm` could be any of a, b" in str(ambiguous.error)


def test_a_sync_function_runs_in_a_thread_and_may_emit_from_it() -> None:
    @rollout
    def agent(task: Any) -> None:
        assert threading.current_thread() is not threading.main_thread()
        emit_reward(task)

    assert [result.reward for result in dev(agent, [1, 2, 3])] == [1.0, 2.0, 3.0]


def test_a_class_with_a_method_rollout_is_an_agent() -> None:
    @rollout
    class Twice:
        factor = 2

        async def rollout(self, task: int) -> int:
            return self.factor * task

    assert dev(Twice, [4])[0].reward == 8.0


def test_a_decorated_function_can_still_be_called() -> None:
    @rollout
    async def agent(task: int) -> int:
        return task + 1

    assert asyncio.run(agent(1)) == 2
    assert agent.__name__ == "agent"


def _no_task(llm): ...  # type: ignore[no-untyped-def]
def _unknown(task, banana): ...  # type: ignore[no-untyped-def]
def _positional(task, /): ...  # type: ignore[no-untyped-def]
def _rest(task, *rest): ...  # type: ignore[no-untyped-def]
def _generator(task):
    yield 1  # type: ignore[no-untyped-def]


class _NoMethod: ...


class _NeedsArguments:
    def __init__(self, size: int) -> None: ...
    async def rollout(self, task: Any) -> None: ...


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (_no_task, "takes no task"),
        (_unknown, "argument `banana`"),
        (_positional, "cannot be filled by name"),
        (_rest, "cannot be filled by name"),
        (_generator, "is a generator"),
        (_NoMethod, "has no method `rollout`"),
        (_NeedsArguments, "cannot be made without arguments"),
        (7, "takes a function or a class"),
    ],
)
def test_what_cannot_be_an_agent_is_refused_where_it_is_decorated(wrong: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        rollout(wrong)
    assert raised.value.hint
