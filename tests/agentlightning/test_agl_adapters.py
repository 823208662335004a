"""The recipe's adapters where a tracer, and no proxy of ours, saw the calls."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "algorithm"))

from traced import AGENTOPS, ANSWER, ASKED, GEN_AI, OPENINFERENCE, TOOL

import leyden.agentlightning as agl
from leyden.agentlightning.emit import REWARD
from leyden.agentlightning.spans import reward_attributes


def span(number, attributes, name="openai.chat.completion", parent=None, start=None, length=0.5):
    ids = {"trace_id": "a" * 32, "span_id": f"{number:016x}", "parent_id": None if parent is None else f"{parent:016x}"}
    times = {"start_time": start, "end_time": None if start is None else start + length}
    where = {"rollout_id": "ro", "attempt_id": "1", "sequence_id": number}
    return agl.Span(name=name, status=agl.TraceStatus(status_code="OK"), attributes=attributes, **ids, **times, **where)


def reward(number, value, **more):
    return span(number, reward_attributes({"reward": value}), REWARD, length=0.0, **more)


def test_a_tracers_calls_become_triplets_with_the_ids_that_its_instrumentation_kept():
    adapter = agl.TracerTraceToTriplet()
    spans = [span(1, AGENTOPS, start=1.0), span(2, OPENINFERENCE, start=1.1, length=0.3), reward(3, 0.5, start=2.0)]
    (triplet,) = adapter.adapt(spans)  # both saw the one call
    assert triplet.prompt == {"token_ids": [1, 2, 3], "raw_content": ASKED}
    assert triplet.response == {"token_ids": [4, 5, 2], "raw_content": [ANSWER], "logprobs": [-0.1] * 3}
    assert (triplet.reward, triplet.metadata["response_id"]) == (0.5, "chatcmpl-1")
    assert adapter(spans) == [triplet] and adapter.skipped == {}


def test_a_call_without_ids_is_counted_and_never_an_empty_triplet():
    """442, 74: training inputs of zeros."""
    adapter = agl.TracerTraceToTriplet()
    assert adapter.adapt([span(1, GEN_AI, start=1.0)]) == []
    assert adapter.skipped == {"no_ids": 1}


def test_what_the_proxy_recorded_is_not_told_again_by_a_tracer():
    recorded = {"leyden.generation_id": "g1", "leyden.prompt_token_ids": [1], "leyden.response_token_ids": [2]}
    adapter = agl.LlmProxyTraceToTriplet()
    (triplet,) = adapter.adapt([span(1, GEN_AI, start=1.0), span(2, recorded, start=1.1)])
    assert triplet.response["token_ids"] == [2] and adapter.skipped == {}


def test_calls_of_one_agent_are_picked_also_among_those_the_proxy_recorded():
    def call(number, **more):
        return span(
            number, {"leyden.generation_id": f"g{number}", "leyden.prompt_token_ids": [1], "leyden.response_token_ids": [number]}, **more
        )

    def agent(number, name, **more):
        return span(number, {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": name}, name, **more)

    spans = [agent(1, "planner", start=0.0, length=9.0), agent(2, "solver", start=1.0, length=3.0, parent=1)]
    spans += [call(3, start=0.2), call(4, start=1.5), call(5, start=5.0)]
    adapter = agl.TracerTraceToTriplet(agent_match="solver")
    assert [triplet.response["token_ids"] for triplet in adapter.adapt(spans)] == [[4]]
    assert adapter.skipped == {"other_agent": 2}


def test_rewards_go_to_the_latest_call_before_them_that_has_none_or_as_asked():
    spans = [span(n, {"prompt_token_ids": [1], "response_token_ids": [n]}, start=float(n)) for n in (1, 2, 3)] + [reward(4, 1.0, start=9.0)]
    assert [triplet.reward for triplet in agl.TracerTraceToTriplet().adapt(spans)] == [None, None, 1.0]
    assert [triplet.reward for triplet in agl.TracerTraceToTriplet(reward_match="final_to_all").adapt(spans)] == [1.0] * 3


def test_spans_without_times_are_in_the_order_of_their_numbers():
    spans = [
        reward(2, 0.5),
        span(3, {"prompt_token_ids": [1], "response_token_ids": [3]}),
        span(1, {"prompt_token_ids": [1], "response_token_ids": [1]}),
    ]
    assert [(one.response["token_ids"], one.reward) for one in agl.TracerTraceToTriplet().adapt(spans)] == [([1], 0.5), ([3], None)]


def test_an_incomplete_message_does_not_kill_the_pass():
    """425, 311: KeyError 'role'."""
    odd = {name: value for name, value in AGENTOPS.items() if name not in ("gen_ai.prompt.0.role", "gen_ai.response.id")}
    adapter = agl.TraceToMessages()
    assert adapter.adapt([span(1, odd, start=1.0), span(2, AGENTOPS, start=2.0)]) == [{"messages": [*ASKED, ANSWER], "tools": [TOOL]}]
    assert adapter.skipped == {"no_role": 1}


def test_an_adapter_of_ones_own_needs_adapt_only():
    class Names(agl.TraceAdapter[list[str]]):
        def adapt(self, source):
            return [one.name for one in source]

    assert Names()([span(1, {}, "a")]) == ["a"]
    with pytest.raises(NotImplementedError):
        agl.Adapter().adapt([])


def test_what_others_send_as_a_reward_and_is_no_name_with_a_number_is_none():
    sent = {"agentlightning.reward.0.value": 1.0, "agentlightning.reward.1.name": "style", "agentlightning.reward.1.value": "good"}
    sent |= {"agentlightning.reward.2.name": "right", "agentlightning.reward.2.value": 1, "agentlightning.reward.4.value": 2.0}
    assert agl.get_rewards_from_span(span(1, sent, REWARD)) == [{"name": "right", "value": 1.0}]
    assert agl.get_reward_value(span(1, {"agentlightning.reward.0.value": 1.0}, REWARD)) is None
