from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import (
    Agent,
    FunctionTool,
    InputGuardrail,
    Model,
    ModelResponse,
    OpenAIChatCompletionsModel,
    RunConfig,
    Runner,
    Usage,
    function_tool,
    handoff,
)
from agents.tracing import TracingProcessor
from agents.tracing import setup as tracing_setup
from agents.tracing.provider import DefaultTraceProvider
from model_stub import ModelStub, call, in_turn, say
from one_attempt import context
from openai import AsyncOpenAI
from openai.types.responses import ResponseOutputMessage, ResponseOutputText
from tell_tales import Scene, frozen, hosted_tool, make_agent, marks, scene, write_everywhere

from leyden.environments import AgentsSDK, CodeScorer, Environment, Task
from leyden.environments.run import run_rollouts
from leyden.environments.subjects import as_subject
from leyden.environments.subjects.isolation import Isolation, refuse
from leyden.errors import UsageError

K = 6


@pytest.fixture(autouse=True)
def fresh_scene() -> Iterator[None]:
    for field in vars(Scene()):
        setattr(scene, field, getattr(Scene(), field))
    yield
    scene.together = None


def talk() -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "input_text", "text": "2 + 2?"}]}]


async def try_k_times(agent: Any, task: Task, k: int = K, given: Any = None) -> None:
    """All at once, and then all at once again."""
    subject = AgentsSDK(agent, context=given)
    await subject.check()
    for _ in range(2):
        scene.together = asyncio.Barrier(k)
        await asyncio.gather(*(subject.attempt(task, context()) for _ in range(k)))
    scene.together = None


def test_33_attempts_that_write_into_all_they_can_reach_change_nothing_of_the_callers_and_see_nothing_of_each_others() -> None:
    with ModelStub(lambda request: say("4")) as stub:
        model = OpenAIChatCompletionsModel("m", AsyncOpenAI(base_url=stub.url, api_key="k"))
        agent, task, given = make_agent(model), Task(talk(), expected={"sum": [4]}, metadata={"m": [1]}), {"notes": [], "deep": {"er": [1]}}
        before = frozen(agent, task, given)
        asyncio.run(try_k_times(agent, task, given=given))
        assert frozen(agent, task, given) == before and not marks(agent, task, given)
        assert scene.found == []
        assert len(scene.written) == 2 * K and min(scene.written) > 40  # they did write, into every corner


def test_32_every_attempt_asks_the_model_what_a_plain_run_of_a_fresh_agent_asks() -> None:
    with ModelStub(lambda request: say("4")) as stub:
        model = OpenAIChatCompletionsModel("m", AsyncOpenAI(base_url=stub.url, api_key="k"))
        asyncio.run(Runner.run(make_agent(model), talk(), run_config=RunConfig(tracing_disabled=True)))
        asyncio.run(try_k_times(make_agent(model), Task(talk())))
        assert len(stub.first_requests) == 1 + 2 * K and len(set(stub.first_requests)) == 1
        plain, *own = [sorted((name, value) for name, value in headers.items() if name != "Host") for headers in stub.headers]
        assert all(headers == plain for headers in own)
        assert "Asked 1 times. Tools: ['add']." in stub.bodies[0].decode()


@pytest.mark.parametrize("question", ["What is 2 + 2?", talk()])
@pytest.mark.parametrize("as_factory", [False, True])
def test_34_tools_and_the_turns_after_them_are_as_in_a_plain_run_too(question: Any, as_factory: bool) -> None:
    def make() -> Agent[Any]:
        return make_agent(model)

    with ModelStub(in_turn(call("add", {"a": 2, "b": 2}), call("transfer_to_second", call_id="call_2"), say("4"))) as stub:
        model = OpenAIChatCompletionsModel("m", AsyncOpenAI(base_url=stub.url, api_key="k"))
        asyncio.run(Runner.run(make(), question, run_config=RunConfig(tracing_disabled=True)))
        subject = as_subject(make if as_factory else make())
        for _ in range(2):
            asyncio.run(subject.attempt(Task(question, id="t"), context()))
        plain, first, second = (stub.bodies[place : place + 3] for place in (0, 3, 6))
        assert plain == first == second and len(stub.bodies) == 9


def test_10_every_attempt_has_its_own_agents_tools_and_ids() -> None:
    with ModelStub() as stub:
        agent = make_agent(OpenAIChatCompletionsModel("m", AsyncOpenAI(base_url=stub.url, api_key="k")))
        copies = [Isolation(refuse) for _ in range(3)]
        made = [isolated.agent(agent) for isolated in copies]
        everyone = [agent, *made]
        for of in (
            lambda each: each,
            lambda each: each.tools[0],
            lambda each: each.handoffs[0],
            lambda each: each.model,
            lambda each: each.hooks,
        ):
            assert len({id(of(each)) for each in everyone}) == 4
        assert [len(isolated.agents) for isolated in copies] == [3, 3, 3]
        assert made[0].handoffs[0].handoffs[0] is made[0]  # round again, within the copies
    assert len({value for _ in range(3) for value in context().ids.values()}) == 6


def test_9_each_attempt_has_a_model_of_its_own_over_the_callers_connections() -> None:
    client = AsyncOpenAI(base_url="http://127.0.0.1:1/v1", api_key="k")
    model = OpenAIChatCompletionsModel("m", client)
    agent = Agent(name="a", model=model)
    own = Isolation(refuse).agent(agent).model
    assert own is not model and own._client is client and agent.model is model  # type: ignore[union-attr]


class Remembering(Model):
    """A model of the caller's making, which says how often it was asked, and holds a client."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.client = AsyncOpenAI(base_url="http://127.0.0.1:1/v1", api_key="k")

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **rest: Any) -> ModelResponse:
        self.asked.append(input)
        text = ResponseOutputText(annotations=[], text=f"asked {len(self.asked)} times", type="output_text")
        message = ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed", type="message")
        return ModelResponse(output=[message], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


def test_9_a_model_with_a_memory_is_copied_and_forgets_nothing_it_should_not_know() -> None:
    model = Remembering()
    subject = as_subject(Agent(name="a", model=model))
    for _ in range(2):
        own = context()
        asyncio.run(subject.attempt(Task("x", id="t"), own))
        assert own.output is not None and own.output.content == "asked 1 times"
    assert model.asked == []


def test_a_tool_that_the_provider_runs_is_copied() -> None:
    tool = hosted_tool()
    own = Isolation(refuse).agent(Agent(name="a", tools=[tool])).tools[0]
    write_everywhere(own)
    assert own is not tool and not marks(tool)


def test_a_handoff_leads_to_the_attempts_own_agent() -> None:
    with ModelStub(in_turn(call("to_third"), say("third here"))) as stub:
        agent = make_agent(OpenAIChatCompletionsModel("m", AsyncOpenAI(base_url=stub.url, api_key="k")))
        target = agent.handoffs[1]
        isolated = Isolation(refuse)
        own = isolated.agent(agent).handoffs[1]
        reached = asyncio.run(own.on_invoke_handoff(None, ""))  # type: ignore[union-attr, arg-type]
        assert reached in isolated.agents and reached is not target._agent_ref()  # type: ignore[union-attr, misc]


# -- what is refused -------------------------------------------------------------------------------------------------


class Toolkit:
    """It might be a session too."""

    def __init__(self) -> None:
        self.calls = 0
        self.get_items = self.add_items = None

    def count_handoff(self, context: Any) -> None:
        self.calls += 1

    def count(self) -> int:
        """Count."""
        self.calls += 1
        return self.calls

    async def ask(self, *_: Any) -> str:
        return "done"

    async def __call__(self, *_: Any) -> str:
        return "done"


NO_ARGUMENTS = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}


def inner(**parts: Any) -> Agent[Any]:
    return Agent(name="a", tools=[Agent(name="b", **parts).as_tool("b", "B")])


# What remembers, in places that nothing is copied from, held by an agent that is otherwise new.
REMEMBERS: dict[str, tuple[Callable[[Toolkit], Agent[Any]], str]] = {
    "tool made by hand": (lambda kit: Agent(name="a", tools=[FunctionTool("t", "T", NO_ARGUMENTS, kit.ask)]), "whose method is tool 't'"),
    "object as a tool": (lambda kit: Agent(name="a", tools=[FunctionTool("t", "T", NO_ARGUMENTS, kit)]), "the callable of tool 't'"),
    "partial as a tool": (
        lambda kit: Agent(name="a", tools=[FunctionTool("t", "T", NO_ARGUMENTS, functools.partial(kit.ask))]), "given to tool 't'"
    ),
    "on a handoff": (lambda kit: Agent(name="a", handoffs=[handoff(Agent(name="b"), on_handoff=kit.count_handoff)]), "given to handoff"),
    "a tool's extractor": (
        lambda kit: Agent(name="a", tools=[Agent(name="b").as_tool("b", "B", custom_output_extractor=kit.ask)]), "given to tool 'b'"
    ),
    "a tool's session": (lambda kit: Agent(name="a", tools=[Agent(name="b").as_tool("b", "B", session=kit)]), "the session of tool 'b'"),
    "an inner tool": (lambda kit: inner(tools=[function_tool(kit.count)]), "whose method is tool 'count' of agent 'b'"),
    "an inner agent's instructions": (lambda kit: inner(instructions=kit.ask), "a part of agent 'b'"),
    "an inner agent's guardrail": (lambda kit: inner(input_guardrails=[InputGuardrail(kit)]), "a part of agent 'b'"),
    "an inner agent's handoff": (lambda kit: inner(handoffs=[Agent(name="c", tools=[function_tool(kit.count)])]), "'count' of agent 'c'"),
}  # fmt: skip


@pytest.mark.parametrize("place", REMEMBERS)
def test_10_what_remembers_is_new_for_every_attempt_wherever_it_is_held(place: str) -> None:
    make, said = REMEMBERS[place]
    kit = Toolkit()
    with pytest.raises(UsageError, match=f"{said}.* a second time"):
        asyncio.run(as_subject(lambda: make(kit)).check())
    asyncio.run(as_subject(lambda: make(Toolkit())).check())
    with pytest.raises(UsageError, match="cannot be copied for each attempt"):
        asyncio.run(as_subject(make(kit)).check())


class Uncopied:
    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("there is only one of me")


@function_tool
def plain() -> str:
    """Nothing."""
    return "done"


def with_extra(field: str) -> Agent[Any]:
    agent = Agent(name="a")
    vars(agent)[field] = []
    return agent


@dataclasses.dataclass
class NextYears(Agent[Any]):
    """An agent of an SDK that has grown."""

    mode: str = "plain"
    notes: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Unused(Agent[Any]):
    mode: str = "plain"


def test_a_field_of_a_newer_sdk_is_refused_unless_it_has_its_plain_default() -> None:
    Isolation(refuse).agent(Unused(name="a"))
    for agent, field in ((Unused(name="a", mode="other"), "mode"), (NextYears(name="a"), "notes")):
        with pytest.raises(UsageError, match=f"the field '{field}' of agent 'a'"):
            Isolation(refuse).agent(agent)


def with_extra_on_a_tool() -> Agent[Any]:
    tool = function_tool(lambda: "x", name_override="extra")
    vars(tool)["cache"] = {}
    return Agent(name="a", tools=[tool])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: with_extra("memory"), "the field 'memory' of agent 'a'"),
        (with_extra_on_a_tool, "the field 'cache' of tool 'extra' of agent 'a'"),
        (lambda: Agent(name="a", tools=[function_tool(Toolkit().count)]), "the object whose method is tool 'count'"),
        (lambda: Agent(name="a", hooks=Uncopied()), "hooks of agent 'a'"),
        (lambda: Agent(name="a", tools=[Agent(name="b").as_tool("b", "B")]), "agent 'b', a tool,"),
        (lambda: Agent(name="a", handoffs=[with_extra("memory")]), "the field 'memory'"),
    ],
)  # fmt: skip
def test_what_cannot_be_copied_is_refused_before_any_attempt_and_a_factory_may_make_it(make: Any, said: str) -> None:
    try:
        agent = make()
    except TypeError:  # the SDK looks at hooks itself
        agent = Agent(name="a")
        object.__setattr__(agent, "hooks", Uncopied())
    with pytest.raises(UsageError, match=said) as raised:
        asyncio.run(as_subject(agent).check())
    assert "give a function that makes the agent" in (raised.value.hint or "")


def test_a_factory_may_give_tools_with_an_object_of_their_own_but_not_the_same_object_twice() -> None:
    asyncio.run(as_subject(lambda: Agent(name="a", tools=[function_tool(Toolkit().count)])).check())
    kit = Toolkit()
    with pytest.raises(UsageError, match="a second time"):
        asyncio.run(as_subject(lambda: Agent(name="a", tools=[function_tool(kit.count)])).check())


def test_a_context_that_cannot_be_copied_is_refused() -> None:
    with pytest.raises(UsageError, match="the context"):
        asyncio.run(AgentsSDK(Agent(name="a"), context=Uncopied()).check())


def test_none_of_the_sessions_ids_or_keys_of_the_caller_are_in_a_request() -> None:
    with ModelStub() as stub:
        subject = as_subject(
            Agent(name="a", tools=[plain], model=OpenAIChatCompletionsModel("m", AsyncOpenAI(base_url=stub.url, api_key="k")))
        )
        own = context()
        asyncio.run(subject.attempt(Task("x", id="secret-id", expected="secret", metadata={"secret": 1}), own))
        sent = json.dumps(stub.requests)
        assert "secret" not in sent and not any(value in sent for value in own.ids.values())


class Heard(TracingProcessor):
    def __init__(self) -> None:
        self.traces: list[Any] = []

    def on_trace_start(self, trace: Any) -> None:
        self.traces.append(trace)

    def on_trace_end(self, trace: Any) -> None: ...
    def on_span_start(self, span: Any) -> None: ...
    def on_span_end(self, span: Any) -> None: ...
    def shutdown(self) -> None: ...
    def force_flush(self) -> None: ...


def test_the_sdks_tracing_hears_a_plain_run_and_no_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    heard, agent = Heard(), Agent(name="a", model=Remembering())
    provider = DefaultTraceProvider()
    provider.set_disabled(False)
    provider.register_processor(heard)
    monkeypatch.setattr(tracing_setup, "GLOBAL_TRACE_PROVIDER", provider)
    asyncio.run(Runner.run(agent, "x"))
    assert len(heard.traces) == 1
    asyncio.run(as_subject(agent).attempt(Task("x", id="t"), context()))
    assert len(heard.traces) == 1


def test_33_a_scorer_and_an_agent_that_write_into_a_task_reach_no_other_attempt(tmp_path: Path) -> None:
    async def agent(task: list[Any]) -> list[str]:
        found = marks(task)
        write_everywhere(task)
        return found

    def score(run: Any, expected: Any) -> bool:
        clean = not marks(expected) and run.content == []
        write_everywhere(expected)
        return clean

    task = Task([{"deep": ["x"]}], expected={"sum": [4]}, metadata={"m": [1]})
    before = frozen(task)
    result = run_rollouts(Environment("e", [task], CodeScorer(score), agent), k=6, evals=tmp_path, quiet=True)
    assert result.pass_rate == 1.0 and result.n_scored == 6 and frozen(task) == before
