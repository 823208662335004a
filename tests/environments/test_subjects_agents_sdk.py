from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from agents import (
    Agent,
    AgentOutputSchema,
    GuardrailFunctionOutput,
    InputGuardrailTripwireTriggered,
    MaxTurnsExceeded,
    Model,
    ModelBehaviorError,
    ModelResponse,
    ModelSettings,
    OpenAIChatCompletionsModel,
    RunContextWrapper,
    ToolGuardrailFunctionOutput,
    Usage,
    function_tool,
    input_guardrail,
    set_default_openai_api,
    tool_input_guardrail,
)
from model_stub import ModelStub, call, in_turn, say
from one_attempt import attempt, context, run_once
from openai import AsyncOpenAI
from openai.types.responses import ResponseOutputMessage, ResponseOutputText
from pydantic import BaseModel

from leyden.environments import AgentsSDK, RunOutput, RunStatus, Task, ToolCall, ToolOutcome
from leyden.environments.subjects import agents_sdk, as_subject
from leyden.errors import UsageError
from leyden.types import LLM


@pytest.fixture
def stub() -> Iterator[ModelStub]:
    with ModelStub() as server:
        yield server


def llm(stub: ModelStub, **changes: Any) -> LLM:
    return LLM(**{"endpoint": stub.url, "model": "m", "api_key": "key-of-the-attempt", **changes})


def own_model(stub: ModelStub) -> OpenAIChatCompletionsModel:
    return OpenAIChatCompletionsModel("own", AsyncOpenAI(base_url=stub.url, api_key="key-of-the-caller"))


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


ADD = {"a": 2, "b": 2}


def test_the_whole_conversation_is_kept_as_the_model_saw_and_said_it(stub: ModelStub) -> None:
    stub.answer = in_turn(call("add", ADD), say("It is 4"))
    run = run_once(Agent(name="adder", instructions="Be exact.", tools=[add]), llm=llm(stub))
    assert run.messages == (
        {"role": "system", "content": "Be exact."},
        {"role": "user", "content": "What is 2 + 2?"},
        {"role": "assistant", "content": None, "tool_calls": call("add", ADD)["tool_calls"]},
        {"role": "tool", "tool_call_id": "call_1", "content": "4"},
        {"role": "assistant", "content": "It is 4"},
    )
    assert list(run.messages[:-1]) == [{"content": None, **message} for message in stub.requests[-1]["messages"]]
    assert list(run.tool_schemas) == stub.requests[-1]["tools"]
    assert run.tools == (ToolCall("add", ADD, ToolOutcome.OK, 4, "call_1"),)
    assert (run.content, run.status, run.finish_reason, run.model) == ("It is 4", RunStatus.COMPLETED, "stop", "stub")
    assert (run.input_tokens, run.output_tokens) == (20, 6)


def test_a_list_of_messages_is_an_input_too(stub: ModelStub) -> None:
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}, {"role": "user", "content": "2 + 2?"}]
    assert list(run_once(Agent(name="a"), talk, llm(stub)).messages) == [*talk, {"role": "assistant", "content": "4"}]


def test_38_another_model_answers_with_its_own_key_and_sampling_and_the_agent_stays_as_it_was(stub: ModelStub) -> None:
    agent = Agent(name="a", model=own_model(stub), model_settings=ModelSettings(temperature=0.1, top_p=0.9, extra_body={"mine": 1}))
    before = (agent.model, agent.model_settings.to_json_dict())
    run_once(agent, llm=llm(stub, sampling_parameters={"temperature": 0.7, "top_k": 5, "seed": 3}))
    run_once(agent)
    other, own = stub.requests
    assert {"model": "m", "temperature": 0.7, "top_p": 0.9, "top_k": 5, "seed": 3, "mine": 1}.items() <= other.items()
    assert {"model": "own", "temperature": 0.1}.items() <= own.items() and "top_k" not in own
    keys = [headers["Authorization"] for headers in stub.headers]
    assert keys == ["Bearer key-of-the-attempt", "Bearer key-of-the-caller"]
    assert (agent.model, agent.model_settings.to_json_dict()) == before


def test_49_an_agent_without_a_model_has_the_default_one_without_its_settings_leaking_into_another(
    stub: ModelStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", stub.url)
    monkeypatch.setenv("OPENAI_API_KEY", "ambient")
    agent = Agent(name="a")
    assert not as_subject(agent).needs_llm
    set_default_openai_api("chat_completions")
    try:
        run = run_once(agent)
    finally:
        set_default_openai_api("responses")
    run_once(agent, llm=llm(stub))
    default, other = stub.requests
    assert default["model"].startswith("gpt-") and default["verbosity"] and agent.model is None
    assert set(other) == {"model", "messages"}
    assert run.messages[-1] == {"role": "assistant", "content": "4"}


def test_an_agent_without_a_model_and_without_a_key_needs_one_from_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert as_subject(Agent(name="a")).needs_llm and as_subject(Agent(name="a", model="gpt-x")).needs_llm
    assert not as_subject(Agent(name="a", model=Parrot())).needs_llm
    factory = as_subject(lambda: Agent(name="a"))
    asyncio.run(factory.check())
    assert factory.needs_llm


@pytest.mark.parametrize("text", ["It is", None])
def test_an_answer_cut_at_its_limit_is_truncated_and_no_error(stub: ModelStub, text: str | None) -> None:
    stub.answer = lambda request: say(text, finish="length")
    run = run_once(Agent(name="a"), llm=llm(stub))
    assert (run.status, run.content, run.finish_reason) == (RunStatus.TRUNCATED, text, "length")
    assert run.messages[-1] == {"role": "assistant", "content": text}


class City(BaseModel):
    name: str


class Town(BaseModel):
    name: str
    people: int


def test_a_typed_output_is_the_content_and_its_text_is_in_the_messages(stub: ModelStub) -> None:
    stub.answer = lambda request: say('{"name": "Köln"}')
    run = run_once(Agent(name="a", output_type=City), llm=llm(stub))
    assert run.content == City(name="Köln") and run.messages[-1]["content"] == '{"name": "Köln"}'
    loose = Agent(name="a", output_type=AgentOutputSchema(City, strict_json_schema=False))
    assert run_once(loose, llm=llm(stub)).content == City(name="Köln")


def test_the_type_of_an_answer_is_that_of_any_agent_that_may_give_it() -> None:
    loose = AgentOutputSchema(City, strict_json_schema=False)
    towns, cities, texts = Agent(name="t", output_type=Town), Agent(name="c", output_type=loose), Agent(name="s", output_type=str)
    agents = (texts, cities, lambda: Agent(name="f", output_type=City), Agent(name="a", handoffs=[towns, cities, texts]))
    kinds = [as_subject(agent).output_type for agent in agents]  # type: ignore[attr-defined]
    assert kinds == [None, City, City, Town | City]


def test_a_typed_output_that_was_cut_is_truncated_and_one_that_is_wrong_is_an_error(stub: ModelStub) -> None:
    stub.answer = lambda request: say('{"name": "Kö', finish="length")
    assert run_once(Agent(name="a", output_type=City), llm=llm(stub)).status is RunStatus.TRUNCATED
    stub.answer = lambda request: say("Köln")
    with pytest.raises(ModelBehaviorError):
        run_once(Agent(name="a", output_type=City), llm=llm(stub))


# -- what became of tool calls ---------------------------------------------------------------------------------------


def broken(name: str, **options: Any) -> Any:
    def tool() -> str:
        """Break."""
        raise ValueError("broken")

    tool.__name__ = name
    return function_tool(tool, **options)


async def hang() -> str:
    """Hang."""
    await asyncio.Event().wait()
    return "never"


@tool_input_guardrail
def never(data: Any) -> ToolGuardrailFunctionOutput:
    return ToolGuardrailFunctionOutput.reject_content("not allowed")


def refused() -> Any:
    tool = function_tool(hang, name_override="guarded")
    tool.tool_input_guardrails = [never]
    return tool


@pytest.mark.parametrize(
    ("tool", "outcome", "said"),
    [
        (broken("by_default"), ToolOutcome.ERROR, "An error occurred"),
        (broken("own_words", failure_error_function=lambda context, error: f"oh: {error}"), ToolOutcome.ERROR, "oh: broken"),
        (function_tool(hang, name_override="slow", timeout=0.01), ToolOutcome.ERROR, "timed out"),
        (
            function_tool(hang, name_override="slow_own", timeout=0.01, timeout_error_function=lambda context, error: "too slow"),
            ToolOutcome.ERROR,
            "too slow",
        ),
        (refused(), ToolOutcome.REFUSED, "not allowed"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_11_a_call_that_failed_or_was_refused_says_so_and_the_model_hears_what_it_hears_without_us(
    stub: ModelStub, tool: Any, outcome: ToolOutcome, said: str
) -> None:
    stub.answer = in_turn(call(tool.name), say("done"))
    run = run_once(Agent(name="a", tools=[tool]), llm=llm(stub))
    assert [each.outcome for each in run.tools] == [outcome]
    assert said in run.messages[-2]["content"] and run.tools[0].result == run.messages[-2]["content"]
    assert run.tool_call_limit_hit is (outcome is ToolOutcome.REFUSED) and run.content == "done"


def test_a_call_of_a_tool_that_is_not_there_is_the_sdks_typed_error_and_what_is_known_is_kept(stub: ModelStub) -> None:
    stub.answer = in_turn(call("nothing"))
    own = context(llm(stub))
    with pytest.raises(ModelBehaviorError, match="nothing"):
        asyncio.run(as_subject(Agent(name="a", tools=[add])).attempt(Task("2 + 2", id="t"), own))
    assert own.output is None and own.partial is not None
    assert own.partial.messages[-1]["tool_calls"][0]["function"]["name"] == "nothing"


def test_too_many_turns_are_a_typed_error_with_the_conversation_kept(stub: ModelStub) -> None:
    stub.answer = lambda request: call("add", ADD, f"call_{len(request['messages'])}")
    own = context(llm(stub))
    with pytest.raises(MaxTurnsExceeded):
        asyncio.run(AgentsSDK(Agent(name="a", tools=[add]), max_turns=2).attempt(Task("2 + 2", id="t"), own))
    assert len(stub.requests) == 2 and own.partial is not None
    assert [message["role"] for message in own.partial.messages] == ["user", "assistant", "tool", "assistant", "tool"]
    assert [each.outcome for each in own.partial.tools] == [ToolOutcome.OK, ToolOutcome.OK]


def test_a_tool_that_waits_for_an_approval_pauses_the_run(stub: ModelStub) -> None:
    stub.answer = in_turn(call("add", ADD))
    asked = function_tool(lambda a, b: 0, name_override="add", strict_mode=False, needs_approval=True)
    run = run_once(Agent(name="a", tools=[asked]), llm=llm(stub))
    assert run.status is RunStatus.PAUSED and run.content is None
    assert run.tools == (ToolCall("add", ADD, ToolOutcome.PAUSED, None, "call_1"),)


def test_a_run_that_ends_with_a_tools_result_has_it_as_its_last_message(stub: ModelStub) -> None:
    stub.answer = in_turn(call("add", ADD))
    run = run_once(Agent(name="a", tools=[add], tool_use_behavior="stop_on_first_tool"), llm=llm(stub))
    assert run.content == "4" and run.messages[-1] == {"role": "tool", "tool_call_id": "call_1", "content": "4"}


def test_an_agent_that_takes_over_answers_in_the_same_conversation(stub: ModelStub) -> None:
    stub.answer = in_turn(call("transfer_to_second"), say("from the second"))
    second = Agent(name="second", instructions="You are second.")
    run = run_once(Agent(name="first", instructions="You are first.", handoffs=[second]), llm=llm(stub))
    assert run.content == "from the second" and run.messages[0] == {"role": "system", "content": "You are second."}
    assert [message["role"] for message in run.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert [(each.name, each.outcome) for each in run.tools] == [("transfer_to_second", ToolOutcome.OK)]


def test_the_talk_of_an_agent_used_as_a_tool_is_its_own_and_its_tokens_count(stub: ModelStub) -> None:
    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if request["messages"][0]["content"] == "You are inner.":
            return say("inner says 4")
        return in_turn(call("inner", {"input": "2 + 2"}), say("outer says 4"))(request)  # type: ignore[return-value]

    stub.answer = answer

    def make() -> Agent:
        inner = Agent(name="inner", instructions="You are inner.")
        return Agent(name="outer", instructions="You are outer.", tools=[inner.as_tool("inner", "Asks inner.")])

    run = run_once(make, llm=llm(stub))
    assert len(stub.requests) == 3 and run.input_tokens == 30
    assert run.content == "outer says 4" and [message["content"] for message in run.messages] == [
        "You are outer.", "What is 2 + 2?", None, "inner says 4", "outer says 4",
    ]  # fmt: skip


@input_guardrail
async def trip(context: RunContextWrapper[Any], agent: Agent, question: Any) -> GuardrailFunctionOutput:
    return GuardrailFunctionOutput(None, tripwire_triggered=True)


def test_a_guardrail_that_trips_is_a_typed_error(stub: ModelStub) -> None:
    with pytest.raises(InputGuardrailTripwireTriggered):
        run_once(Agent(name="a", input_guardrails=[trip]), llm=llm(stub))


class Parrot(Model):
    """A model that is no chat-completions one."""

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **rest: Any) -> ModelResponse:
        text = ResponseOutputText(annotations=[], text="said", type="output_text")
        message = ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed", type="message")
        return ModelResponse(output=[message], usage=Usage(requests=1, input_tokens=7, output_tokens=2), response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


def test_any_other_model_is_recorded_in_the_same_form() -> None:
    run = run_once(Agent(name="a", instructions="Be.", tools=[add], model=Parrot()))
    assert run.messages == (
        {"role": "system", "content": "Be."}, {"role": "user", "content": "What is 2 + 2?"}, {"role": "assistant", "content": "said"},
    )  # fmt: skip
    assert run.tool_schemas[0]["function"]["name"] == "add" and (run.input_tokens, run.output_tokens) == (7, 2)


# -- factories -------------------------------------------------------------------------------------------------------


def test_a_factory_async_or_not_makes_an_agent_for_every_attempt(stub: ModelStub) -> None:
    made: list[Agent] = []

    def make() -> Agent:
        made.append(Agent(name=f"agent {len(made)}", instructions=f"You are {len(made)}."))
        return made[-1]

    async def amake() -> Agent:
        return make()

    for factory in (make, amake, lambda: amake()):
        run_once(factory, llm=llm(stub))
    assert [request["messages"][0]["content"] for request in stub.requests] == ["You are 0.", "You are 1.", "You are 2."]


def fails() -> Agent:
    raise KeyError("no such prompt")


@pytest.mark.parametrize(
    ("factory", "error", "said"),
    [
        (lambda: 4, UsageError, "made a int, not an agents.Agent"),
        (lambda: None, UsageError, "made a NoneType"),
        (fails, KeyError, "no such prompt"),
    ],
)
def test_47_a_factory_that_fails_does_so_before_any_attempt(factory: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        asyncio.run(as_subject(factory).check())


def test_7_the_output_is_committed_before_anything_else_may_hang(stub: ModelStub) -> None:
    server = Server(hangs=True)

    async def main() -> RunOutput | None:
        own = context(llm(stub))
        task = asyncio.create_task(AgentsSDK(lambda: Agent(name="a", mcp_servers=[server])).attempt(Task("2 + 2", id="t"), own))
        await server.cleaning.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return own.output

    output = asyncio.run(main())
    assert output is not None and output.content == "4"


# -- MCP servers -----------------------------------------------------------------------------------------------------


class Server:
    """As much of an MCP server as an agent that calls no tool of it asks for."""

    name = "server"

    def __init__(self, hangs: bool = False, connected: bool = False, fails: bool = False, cancels: bool = False) -> None:
        self.session: Any = "open" if connected else None
        self.log: list[str] = []
        self.cleaning = asyncio.Event()
        self._hangs = hangs
        self._fails = fails
        self._cancels = cancels

    async def connect(self) -> None:
        self.log.append("connect")
        self.session = "open"

    async def list_tools(self, *_: Any) -> list[Any]:
        assert self.session == "open"
        self.log.append("list")
        return []

    async def cleanup(self) -> None:
        self.log.append("cleanup")
        self.session = None
        self.cleaning.set()
        if self._fails:
            raise RuntimeError("cancel scope in a different task")
        if self._cancels:
            raise asyncio.CancelledError
        if self._hangs:
            await asyncio.Event().wait()

    def _get_failure_error_function(self, default: Any) -> Any:
        return default

    cached_tools = None
    use_structured_content = False


@pytest.mark.parametrize("answer", [say("4"), 400])
def test_48_a_factorys_servers_are_connected_before_and_cleaned_up_after_however_the_attempt_ends(stub: ModelStub, answer: Any) -> None:
    stub.answer = lambda request: answer
    servers = [Server(), Server(connected=True), Server()]

    async def make() -> Agent:
        return Agent(name="a", mcp_servers=servers[:2], handoffs=[Agent(name="b", mcp_servers=[servers[2], servers[0]])])

    subject = AgentsSDK(make)
    if isinstance(answer, int):
        with pytest.raises(Exception, match="scripted failure"):
            asyncio.run(subject.attempt(Task("x", id="t"), context(llm(stub))))
    else:
        asyncio.run(subject.attempt(Task("x", id="t"), context(llm(stub))))
    assert [(server.log[0], server.log[-1], server.log.count("cleanup")) for server in servers] == [
        ("connect", "cleanup", 1), ("list", "cleanup", 1), ("connect", "cleanup", 1),
    ]  # fmt: skip


def test_48_a_server_that_cannot_be_cleaned_up_takes_nothing_from_the_attempt_nor_from_the_others(
    stub: ModelStub, caplog: pytest.LogCaptureFixture
) -> None:
    servers = [Server(), Server(fails=True), Server()]
    run = run_once(lambda: Agent(name="a", mcp_servers=servers), llm=llm(stub))
    assert run.content == "4" and all("cleanup" in server.log for server in servers)
    assert "'server' could not be cleaned up: RuntimeError: cancel scope" in caplog.text


@pytest.mark.parametrize("server", [{"hangs": True}, {"cancels": True}])
def test_48_a_server_that_never_ends_or_cancels_is_left_to_itself(stub: ModelStub, server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents_sdk, "CLEANUP", 0.05)
    subject = as_subject(lambda: Agent(name="a", mcp_servers=[Server(**server)]))
    own = context(llm(stub))

    async def main() -> None:
        await subject.check()
        await subject.attempt(Task("x", id="t"), own)

    asyncio.run(main())
    assert own.output is not None and own.output.content == "4"


async def waits() -> Agent:
    await asyncio.Event().wait()
    raise AssertionError


async def cancels() -> Agent:
    raise asyncio.CancelledError


@pytest.mark.parametrize(("factory", "said"), [(waits, "waits was not made within 0.05 s"), (cancels, "cancels cancelled itself")])
def test_48_an_agent_that_is_never_made_is_given_up_before_any_attempt(factory: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents_sdk, "MAKING", 0.05)
    with pytest.raises(UsageError, match=said):
        asyncio.run(as_subject(factory).check())


def test_48_an_agent_that_holds_servers_is_refused_also_in_a_handoff() -> None:
    held = Agent(name="held", mcp_servers=[Server()])
    for agent in (held, Agent(name="a", handoffs=[held]), Agent(name="a", tools=[held.as_tool("t", "d")])):
        with pytest.raises(UsageError, match="'held'") as raised:
            asyncio.run(as_subject(agent).check())
        assert "give a function that makes the agent" in (raised.value.hint or "")


def test_48_a_factory_that_gives_an_agent_or_a_server_twice_is_refused_before_any_attempt() -> None:
    agent, server = Agent(name="same"), Server()
    inner = Agent(name="inner")

    def shares_a_server() -> Agent:
        return Agent(name="a", handoffs=[Agent(name="b", mcp_servers=[server])])

    def shares_an_agent_used_as_a_tool() -> Agent:
        return Agent(name="a", tools=[inner.as_tool("t", "d")])

    for factory, what in (
        (lambda: agent, "the agent"),
        (shares_a_server, "MCP server 'server'"),
        (shares_an_agent_used_as_a_tool, "'inner'"),
    ):
        with pytest.raises(UsageError, match=f"gave .*{what}.* a second time"):
            asyncio.run(as_subject(factory).check())


def test_a_factory_may_share_what_is_copied_for_every_attempt(stub: ModelStub) -> None:
    shared = Agent(name="shared")

    def make() -> Agent:
        return Agent(name="a", tools=[add], handoffs=[shared])

    async def main() -> None:
        subject = as_subject(make)
        await subject.check()
        await asyncio.gather(*(subject.attempt(Task("x", id="t"), context(llm(stub))) for _ in range(3)))

    asyncio.run(main())
    assert len(stub.requests) == 3


def test_the_context_is_each_attempts_own(stub: ModelStub) -> None:
    seen: list[list[str]] = []

    async def notes(context: RunContextWrapper[dict[str, list[str]]], agent: Agent) -> str:
        context.context["notes"].append("written")
        seen.append(list(context.context["notes"]))
        return "Be."

    given: dict[str, list[str]] = {"notes": []}
    for made in (given, lambda: {"notes": []}):
        for _ in range(2):
            asyncio.run(attempt(AgentsSDK(Agent(name="a", instructions=notes), context=made), llm=llm(stub)))
    assert seen == [["written"]] * 4 and given == {"notes": []}
    with pytest.raises(UsageError, match=r"the context .* a second time"):
        asyncio.run(AgentsSDK(lambda: Agent(name="a"), context=lambda: given).check())


@pytest.mark.parametrize("turns", [0, -1, True, "3"])
def test_a_limit_of_turns_is_a_number_from_one(turns: Any) -> None:
    with pytest.raises(UsageError, match="max_turns"):
        AgentsSDK(Agent(name="a"), max_turns=turns)
