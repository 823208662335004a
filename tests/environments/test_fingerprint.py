from __future__ import annotations

import asyncio
import functools
import logging
from dataclasses import dataclass
from typing import Any

import pytest
from agents import (
    Agent,
    AgentOutputSchema,
    HostedMCPTool,
    InputGuardrail,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OutputGuardrail,
    WebSearchTool,
    function_tool,
    handoff,
)
from openai import AsyncOpenAI
from pydantic import BaseModel
from tell_tales import frozen, make_agent

from leyden.environments import (
    AgentsSDK,
    CodeScorer,
    Endpoint,
    Environment,
    Fingerprint,
    FingerprintError,
    MismatchError,
    RunOutput,
    Score,
    Task,
)
from leyden.environments.fingerprint import canonical, take
from leyden.errors import UsageError
from leyden.types import LLM


class Constant:
    async def ascore(self, run: RunOutput, expected: Any = None) -> Score:
        return Score(1.0, True)

    def digest(self) -> str:
        return "constant"


class Other(Constant):
    def digest(self) -> str:
        return "other"


def tool(doc: str = "Add.", name: str = "add", **options: Any) -> Any:
    def add(a: int, b: int) -> int:
        return a + b

    add.__doc__ = doc
    return function_tool(add, name_override=name, **options)


@functools.cache  # making one takes 30 ms
def client(url: str, key: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=url, api_key=key)


def model(name: str = "m", url: str = "http://127.0.0.1:1/v1", key: str = "k") -> OpenAIChatCompletionsModel:
    return OpenAIChatCompletionsModel(name, client(url, key))


def agent(**changes: Any) -> Agent[Any]:
    return Agent(**{"name": "a", "instructions": "Be exact.", "tools": [tool()], "model": model(), **changes})


def env(**changes: Any) -> Environment:
    base = {"name": "e", "tasks": [Task("1", "one"), Task("2", "two", id="b")], "scorer": Constant(), "agent": agent()}
    return Environment(**{**base, **changes})


class City(BaseModel):
    name: str


class Town(BaseModel):
    name: str
    people: int


async def instruct(context: Any, agent: Any) -> str:
    return "Be exact."


async def instruct_otherwise(context: Any, agent: Any) -> str:
    return "Be kind."


B = agent(name="b", handoff_description="Helps.")

ENV_EDITS = {
    "tasks": [
        {"tasks": [Task("1", "one"), Task("2", "zwei", id="b")]},
        {"tasks": [Task("1", "one"), Task("3", "two", id="b")]},
        {"tasks": [Task("1", "one"), Task("2", "two")]},
        {"tasks": [Task("1", "one")]},
        {"tasks": [Task("2", "two", id="b"), Task("1", "one", id="t1")]},
    ],
    "scorer": [{"scorer": Other()}],
    "termination": [{"timeout_seconds": 5}, {"timeout_seconds": None}],
    "version": [{"version": "2"}],
    "knowledge_version": [{"knowledge_version": "corpus 4"}],
    "tools": [
        {"agent": agent(tools=[tool("Add two numbers.")])},
        {"agent": agent(tools=[tool(name="plus")])},
        {"agent": agent(tools=[])},
        {"agent": agent(tools=[tool(), WebSearchTool()])},
        {"agent": agent(model_settings=ModelSettings(tool_choice="required"))},
        {"agent": agent(tool_use_behavior="stop_on_first_tool")},
        {"agent": agent(reset_tool_choice=False)},
        {"agent": agent(tools=[tool(is_enabled=False)])},
        {"agent": agent(tools=[tool(needs_approval=True)])},
        {"agent": agent(tools=[tool(failure_error_function=lambda context, error: "oh")])},
        {"agent": agent(mcp_config={"convert_schemas_to_strict": True})},
    ],
    "prompt": [{"agent": agent(instructions="Be kind.")}, {"agent": agent(instructions=None)}, {"agent": agent(instructions=instruct)}],
    "output_schema": [{"agent": agent(output_type=City)}, {"agent": agent(output_type=Town)}],
    "handoffs": [],
    "guardrails": [
        {"agent": agent(input_guardrails=[InputGuardrail(instruct)])},
        {"agent": agent(output_guardrails=[OutputGuardrail(instruct)])},
    ],
    "max_turns": [{"agent": AgentsSDK(agent(), max_turns=3)}],
}


@pytest.mark.parametrize(("component", "change"), [(name, change) for name, changes in ENV_EDITS.items() for change in changes])
def test_16_24_an_edit_of_the_question_flips_its_component_of_the_environment_alone(component: str, change: dict[str, Any]) -> None:
    base, changed = env(), env(**change)
    assert base.env_fingerprint().difference(changed.env_fingerprint()) == (component,)
    assert not base.env_matches(changed) and env().env_matches(base)
    assert base.policy_fingerprint().matches(changed.policy_fingerprint())


def test_24_schemas_prompts_and_handoffs_are_told_apart_from_each_other() -> None:
    outputs = [None, City, Town, AgentOutputSchema(City, strict_json_schema=False)]
    prompts = [instruct, instruct_otherwise, "Be exact."]
    handoffs = [[], [B], [handoff(B, tool_name_override="to_b")], [handoff(B, input_filter=lambda data: data)],
                [handoff(B, is_enabled=False)]]  # fmt: skip
    for name, values in (("output_type", outputs), ("instructions", prompts), ("handoffs", handoffs)):
        digests = [env(agent=agent(**{name: value})).env_fingerprint().digest for value in values]
        assert None not in digests and len(set(digests)) == len(values), name


@pytest.mark.parametrize(
    ("component", "changed"),
    [
        ("model", agent(model=model("n"))),
        ("endpoint", agent(model=model(url="http://127.0.0.1:2/v1"))),
        ("sampling", agent(model_settings=ModelSettings(temperature=0.5))),
        ("sampling", agent(model_settings=ModelSettings(extra_body={"top_k": 5}))),
    ],
)
def test_16_17_an_edit_of_the_model_flips_its_component_of_the_policy_alone(component: str, changed: Agent[Any]) -> None:
    base, other = env(), env(agent=changed)
    assert base.policy_fingerprint().difference(other.policy_fingerprint()) == (component,)
    assert base.env_matches(other)


def using(**changes: Any) -> Any:
    """A factory of an agent with another one as its tool."""
    return lambda: agent(tools=[agent(name="inner", **changes).as_tool("inner", "Asks.")])


def test_16_the_agents_used_as_tools_count_as_well() -> None:
    base, told, other = env(agent=using()), env(agent=using(instructions="Be kind.")), env(agent=using(model=model("n")))
    assert base.env_fingerprint().difference(told.env_fingerprint()) == ("prompt",)
    assert base.policy_fingerprint().difference(other.policy_fingerprint()) == ("model",)
    assert base.env_matches(env(agent=using())) and base.env_matches(other)


def test_16_a_name_of_a_model_is_known_with_where_it_would_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    taken = []
    for place in ("http://127.0.0.1:1/v1", "http://127.0.0.1:2/v1"):
        monkeypatch.setenv("OPENAI_BASE_URL", place)
        taken.append(env(agent=agent(model="gpt-x")).policy_fingerprint())
    assert taken[0].difference(taken[1]) == ("endpoint",)


def test_an_agent_that_was_changed_since_is_known_as_it_is() -> None:
    held = agent()
    environment = env(agent=held)
    before, held.instructions = environment.env_fingerprint(), "Be kind."
    assert before.difference(environment.env_fingerprint()) == ("prompt",)


def test_an_endpoint_whose_model_comes_with_the_run_equals_none() -> None:
    taken = env(agent=Endpoint()).policy_fingerprint()
    assert taken.digest is None and taken.components == {"model": None}


def mcp(**config: Any) -> Agent[Any]:
    return agent(tools=[HostedMCPTool(tool_config={"type": "mcp", "server_label": "s", "require_approval": "never", **config})])


def test_65_the_key_to_a_server_of_the_providers_is_not_in_the_question() -> None:
    secret = {"server_url": "http://me:pass@x/mcp?api_key=k", "authorization": "Bearer x", "headers": {"x-who": "me"}}
    assert env(agent=mcp(server_url="http://x/mcp")).env_matches(env(agent=mcp(**secret)))
    assert not env(agent=mcp(server_url="http://x/mcp")).env_matches(env(agent=mcp(server_url="http://y/mcp")))


@pytest.mark.parametrize(
    "same",
    [
        agent(model=model(key="another")),
        agent(model=model(url="http://127.0.0.1:1/v1?api-key=secret")),
        agent(model_settings=ModelSettings(extra_args={"api_key": "x"})),
        agent(model_settings=ModelSettings(extra_headers={"authorization": "Bearer x"})),
        agent(model_settings=ModelSettings(extra_body={"api_key": "x"})),
        agent(model=model(url="http://someone:secret@127.0.0.1:1/v1/")),
        agent(model_settings=ModelSettings(timeout=3.0, store=False, metadata={"run": "7"})),
    ],
)
def test_65_credentials_and_what_changes_no_answer_are_not_in_the_policy(same: Agent[Any]) -> None:
    assert env().policy_fingerprint().matches(env(agent=same).policy_fingerprint())


def test_65_every_setting_of_the_sdk_is_sampling_or_is_known_not_to_be() -> None:
    """What is not named apart counts: a new setting of the SDK flips the policy rather than passing unseen."""
    from leyden.environments.subjects.describing import _NOT_SAMPLING
    from leyden.environments.subjects.isolation_rules import MODEL_SETTINGS

    assert set(MODEL_SETTINGS) >= _NOT_SAMPLING
    assert set(MODEL_SETTINGS) - _NOT_SAMPLING == {
        "temperature", "top_p", "frequency_penalty", "presence_penalty", "truncation", "max_tokens", "reasoning", "verbosity",
        "top_logprobs", "extra_query", "extra_body", "extra_args", "context_management",
    }  # fmt: skip


def test_38_another_model_for_the_run_flips_the_policy_and_not_the_environment() -> None:
    base, llm = env(), LLM(endpoint="http://127.0.0.1:9/v1", model="other", sampling_parameters={"temperature": 0.2})
    assert base.policy_fingerprint().difference(base.policy_fingerprint(llm)) == ("endpoint", "model", "sampling")
    assert base.policy_fingerprint(llm).matches(base.policy_fingerprint(llm.model_copy(update={"api_key": "k"})))
    same = {
        "endpoint": "http://someone:sec@ret@127.0.0.1:9/v1/?api-key=k",
        "sampling_parameters": {"temperature": 0.2, "api_key": "k", "extra_headers": {"a": "b"}},
    }
    assert base.policy_fingerprint(llm).matches(base.policy_fingerprint(llm.model_copy(update=same)))
    for change in ({"model": "third"}, {"endpoint": "http://x/v1"}, {"sampling_parameters": {}}, {"checkpoint": "version_2"},
                   {"endpoint": "http://127.0.0.1:9/v1?version=2"}):  # fmt: skip
        assert not base.policy_fingerprint(llm).matches(base.policy_fingerprint(llm.model_copy(update=change)))


def test_a_proxys_address_says_nothing_of_who_answers() -> None:
    llm = LLM(endpoint="http://127.0.0.1:1/v1", model="m", proxied=True, checkpoint="version_1")
    moved = llm.model_copy(update={"endpoint": "http://127.0.0.1:2/v1"})
    assert env().policy_fingerprint(llm).matches(env().policy_fingerprint(moved))


def test_17_environments_with_different_models_and_names_match() -> None:
    assert env(agent=agent(model="gpt-x")).env_matches(env(agent=agent(model=None), name="other"))
    assert env(agent=Endpoint(LLM(endpoint="http://x/v1", model="m"))).env_matches(env(agent=Endpoint()))


def test_an_explicit_id_is_the_same_as_the_one_by_place_and_metadata_is_nobodys() -> None:
    assert env(tasks=[Task("1", id="t1")]).env_matches(env(tasks=[Task("1", metadata={"level": 3})]))


def test_20_taking_a_fingerprint_changes_nothing() -> None:
    held = make_agent(model())
    environment, before = env(agent=held), frozen(held)
    assert environment.env_fingerprint().digest and environment.policy_fingerprint().digest
    assert frozen(held) == before


def test_the_order_of_tools_does_not_count() -> None:
    assert env(agent=agent(tools=[tool(), tool(name="plus")])).env_matches(env(agent=agent(tools=[tool(name="plus"), tool()])))


def test_26_a_provider_side_tool_is_known_by_its_settings() -> None:
    searches = [agent(tools=[WebSearchTool(search_context_size=size)]) for size in ("low", "low", "high")]
    low, same, high = (env(agent=each).env_fingerprint() for each in searches)
    assert low.matches(same) and low.difference(high) == ("tools",)


@pytest.mark.parametrize("expected", [object(), {1, 2}, float("nan"), {1: "a"}, b"x"])
def test_21_an_expectation_that_cannot_be_written_down_makes_its_component_unknown_with_a_warning(
    expected: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Taking it raises nothing, unlike elsewhere: whoever only wants the digest meets what a run meets."""
    with caplog.at_level(logging.WARNING):
        taken = env(tasks=[Task("1", expected)]).env_fingerprint()
    assert taken.digest is None and taken.components["tasks"] is None and taken.components["scorer"]
    assert "env1 fingerprint: tasks is unknown (FingerprintError" in caplog.text


class Broken(Constant):
    def digest(self) -> str:
        raise RuntimeError("no digest today")


class Nothing(Constant):
    def digest(self) -> str:
        return None  # type: ignore[return-value]


def fails() -> Agent[Any]:
    raise RuntimeError("no agent today")


class Exotic:
    """Instructions that cannot be written down."""

    __slots__ = ()

    def __call__(self, context: Any, agent: Any) -> str:
        return "Be exact."


@pytest.mark.parametrize(
    ("change", "unknown"),
    [
        ({"scorer": Broken()}, {"scorer"}),
        ({"scorer": Nothing()}, {"scorer"}),
        ({"scorer": CodeScorer(lambda run, expected, own=object(): True)}, {"scorer"}),
        ({"agent": agent(instructions=Exotic())}, {"prompt"}),
        ({"agent": fails}, {"tools", "prompt", "output_schema", "handoffs", "guardrails"}),
    ],
)
def test_22_whatever_a_component_raises_it_alone_is_unknown_and_nothing_is_raised(change: dict[str, Any], unknown: set[str]) -> None:
    taken = env(**change).env_fingerprint()
    assert {name for name, digest in taken.components.items() if digest is None} == unknown and taken.digest is None


@dataclass
class NoComponents:
    """A subject that cannot say what it asks."""

    name: str = "none"
    needs_llm: bool = False

    def accept(self, task: Task) -> None: ...
    async def check(self) -> None: ...
    async def attempt(self, task: Task, context: Any) -> None: ...
    def question(self) -> Any:
        raise RuntimeError("no question today")

    def policy(self, llm: Any) -> Any:
        raise RuntimeError("no policy today")


def test_22_a_subject_that_fails_as_a_whole_is_one_unknown_component() -> None:
    environment = env(agent=NoComponents())
    assert environment.env_fingerprint().components["agent"] is None
    assert environment.policy_fingerprint() == Fingerprint(None, {"agent": None})


def test_23_none_equals_nothing_and_the_difference_names_what_is_unknown() -> None:
    unknown = env(scorer=Broken()).env_fingerprint()
    assert not unknown.matches(unknown) and unknown.difference(unknown) == ("scorer",)
    assert env().env_fingerprint().difference(unknown) == unknown.difference(env().env_fingerprint()) == ("scorer",)
    assert not env(scorer=Broken()).env_matches(env(scorer=Broken()))
    assert not Fingerprint(None).matches(Fingerprint(None)) and Fingerprint(None).difference(Fingerprint(None))


def test_25_digests_carry_the_version_of_their_rules_and_match_none_of_another() -> None:
    components = {"tasks": lambda: 1}
    one, two = take("env1", components), take("env2", components)
    assert one.digest is not None and one.digest.startswith("env1:") and one.difference(two) == ("version",)
    bare = Fingerprint(one.digest.removeprefix("env1:"), one.components)
    assert not one.matches(bare) and one.difference(bare) == ("version",)


def test_a_component_that_one_side_does_not_have_differs() -> None:
    one, both = take("env1", {"a": lambda: 1}), take("env1", {"a": lambda: 1, "b": lambda: 2})
    assert one.difference(both) == both.difference(one) == ("b",)


def test_a_factory_is_known_by_what_it_makes_also_from_inside_an_event_loop() -> None:
    def make() -> Agent[Any]:
        return agent()

    async def amake() -> Agent[Any]:
        return agent()

    async def inside() -> bool:
        return env(agent=amake).env_matches(env(agent=make))

    assert env(agent=make).env_matches(env()) and env(agent=make).policy_fingerprint().matches(env().policy_fingerprint())
    assert asyncio.run(inside())


def test_a_context_given_to_the_agent_is_part_of_the_question() -> None:
    contexts = [AgentsSDK(agent(), context=given) for given in (None, {"a": 1}, {"a": 2})]
    assert len({env(agent=each).env_fingerprint().digest for each in contexts}) == 3


def test_canonical_json_is_sorted_ascii_and_compact() -> None:
    assert canonical({"b": ["é", 1.5, None, True], "a": {}}) == '{"a":{},"b":["\\u00e9",1.5,null,true]}'
    assert canonical((1, 2)) == canonical([1, 2])


@pytest.mark.parametrize("value", [{1: 2}, {"a": {None: 1}}, float("inf"), object(), {1, 2}, b"x", City(name="x")])
def test_canonical_json_has_no_fallback(value: Any) -> None:
    with pytest.raises(FingerprintError):
        canonical(value)


def test_a_value_that_holds_itself_has_no_canonical_json() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(FingerprintError):
        canonical(loop)


def test_a_mismatch_is_wrong_use_and_a_value_error() -> None:
    with pytest.raises(ValueError) as raised:
        raise MismatchError("the tasks differ", "leyden eval again")
    assert isinstance(raised.value, UsageError) and raised.value.hint and raised.value.exit_code == 2
