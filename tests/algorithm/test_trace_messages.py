"""Traces to conversations: every convention tells the same one."""

import json

import pytest
from traced import AGENTOPS, ANSWER, ASKED, GEN_AI, OPENINFERENCE, RESPONSES, TOOL, TRACELOOP, agent, reward, span

from leyden.algorithm.refusals import Refusal
from leyden.algorithm.trace_messages import TraceToMessages

CONVENTIONS = {"openinference": OPENINFERENCE, "gen_ai": GEN_AI, "traceloop": TRACELOOP, "agentops": AGENTOPS, "responses": RESPONSES}


def adapt(spans, **options):
    adapter = TraceToMessages(**options)
    return adapter.adapt(spans), adapter


@pytest.mark.parametrize("attributes", CONVENTIONS.values(), ids=CONVENTIONS)
def test_every_convention_tells_the_same_conversation(attributes):
    (chat,), adapter = adapt([span(1, attributes), reward(2, 0.5)])
    assert chat.messages == [*ASKED, ANSWER]
    assert chat.tools == [TOOL]
    assert (chat.reward, adapter.refused) == (0.5, {})
    assert chat.finish_reason == (None if attributes is RESPONSES else "tool_calls")


def test_the_agents_sdks_own_export_is_read_too():
    """Its spans of generations, as a processor that knows no convention passes them on; whole, or with their text as JSON."""
    whole = {"type": "generation", "input": ASKED, "output": [ANSWER], "model": "m", "usage": {"input_tokens": 3, "output_tokens": 3}}
    flat = {f"span_data.{name}": json.dumps(value) if isinstance(value, list) else value for name, value in whole.items()}
    for attributes in ({"span_data": whole}, flat):
        (chat,), _ = adapt([span(1, attributes)])
        assert chat.messages == [*ASKED, ANSWER]


def test_the_proxys_own_records_are_openais_messages_already():
    attributes = {
        "leyden.generation_id": "g1",
        "gen_ai.input.messages": ASKED,
        "gen_ai.output.messages": [ANSWER],
        "gen_ai.tool.definitions": [TOOL],
    }
    (chat,), _ = adapt([span(1, attributes)])
    assert (chat.generation_id, chat.messages, chat.tools) == ("g1", [*ASKED, ANSWER], [TOOL])


def test_an_incomplete_message_does_not_kill_the_pass():
    """agent-lightning 425, 311: KeyError 'role'."""
    no_role = {name: value for name, value in AGENTOPS.items() if name != "gen_ai.prompt.1.role"}
    no_answer = {name: value for name, value in TRACELOOP.items() if not name.startswith("gen_ai.completion.")}
    no_messages = {name: value for name, value in OPENINFERENCE.items() if not name.startswith("llm.input_messages.")}
    cut_off = GEN_AI | {"gen_ai.input.messages": GEN_AI["gen_ai.input.messages"][:50]}  # a limit on the length of attributes
    odd = [no_role, no_answer, no_messages, cut_off]
    spans = [span(number, {**attributes, "gen_ai.response.id": f"id-{number}"}) for number, attributes in enumerate([*odd, GEN_AI], 1)]
    (chat,), adapter = adapt(spans)
    assert chat.messages == [*ASKED, ANSWER]
    assert adapter.refused == {Refusal.NO_ROLE: 1, Refusal.NO_ANSWER: 1, Refusal.NO_MESSAGES: 2}
    assert next(entry.detail for entry in adapter.quarantined if entry.reason is Refusal.NO_ROLE) == "message 2 of 4"


def test_an_answer_without_a_role_is_the_assistants():
    attributes = {name: value for name, value in TRACELOOP.items() if name != "gen_ai.completion.0.role"}
    assert adapt([span(1, attributes)])[0][0].messages[-1] == ANSWER


def test_of_two_instrumentors_the_one_that_saw_more_is_believed():
    bare = {"gen_ai.operation.name": "chat", "gen_ai.response.id": "chatcmpl-1"}
    (chat,), _ = adapt([span(1, bare), span(2, OPENINFERENCE)])
    assert chat.messages == [*ASKED, ANSWER]


def test_a_tools_json_stays_the_text_it_was():
    text = '{"b":1,  "a": [1,2]}'
    asked = {"gen_ai.prompt.0.role": "tool", "gen_ai.prompt.0.content": text, "gen_ai.completion.0.content": "[1, 2]"}
    (chat,), _ = adapt([span(1, {"llm.request.type": "chat", **asked})])
    assert [message["content"] for message in chat.messages] == [text, "[1, 2]"]


def test_pictures_and_thoughts_are_kept():
    picture = {"type": "image_url", "image_url": {"url": "data:,"}}
    asked = [{"role": "user", "content": [{"type": "text", "text": "what?"}, picture]}]
    answered = [{"role": "assistant", "parts": [{"type": "reasoning", "content": "hm"}, {"type": "text", "content": "a cat"}]}]
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": json.dumps(asked),
        "gen_ai.output.messages": json.dumps(answered),
    }
    (chat,), _ = adapt([span(1, attributes)])
    assert chat.messages == [*asked, {"role": "assistant", "content": "a cat", "reasoning_content": "hm"}]


def test_conversations_of_one_agent_only():
    spans = [agent(1, "critic", 0, 1000), span(2, GEN_AI, parent=1), span(3, {**GEN_AI, "gen_ai.response.id": "other"}, start=2000)]
    (chat,), adapter = adapt(spans, agent="critic")
    assert chat.agent == "critic" and adapter.refused == {Refusal.OTHER_AGENT: 1}
