"""Traces to triplets: whoever traced it, a call is one triplet with the engine's own ids, or is refused by reason."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from traced import AGENTOPS, COMPLETION, GEN_AI, LITELLM, OPENINFERENCE, RESPONSES, TRACELOOP, agent, ids, reward, span

from leyden.algorithm.attribution import Attribution
from leyden.algorithm.refusals import Refusal
from leyden.algorithm.rows import build_rows
from leyden.algorithm.trace_triplets import TraceToTriplets
from leyden.types import Reward


def adapt(spans, rewards=(), **options):
    adapter = TraceToTriplets(**options)
    return adapter.adapt(spans, rewards), adapter


@pytest.mark.parametrize("attributes", [OPENINFERENCE, AGENTOPS, LITELLM], ids=["openinference", "agentops", "litellm"])
def test_ids_are_read_from_whichever_attribute_carries_them(attributes):
    (triplet,), adapter = adapt([span(1, attributes)])
    assert (triplet.prompt_ids, triplet.response_ids, triplet.logprobs) == ([1, 2, 3], [4, 5, 2], [-0.1] * 3)
    assert adapter.refused == {}


@pytest.mark.parametrize("attributes", [GEN_AI, TRACELOOP, RESPONSES], ids=["gen_ai", "traceloop", "responses"])
def test_a_call_without_ids_is_refused_and_never_an_empty_triplet(attributes):
    """agent-lightning 442 (all-zero training input), 44, PR 250."""
    triplets, adapter = adapt([span(1, attributes)])
    assert triplets == [] and adapter.refused == {Refusal.NO_IDS: 1}


def test_half_of_the_ids_are_none():
    halves = [([1, 2], None), ([], [3]), ("[1, 2", [3]), ([1, "x"], [3])]
    for prompt, response in halves:
        assert adapt([span(1, {"prompt_token_ids": prompt, "response_token_ids": response})])[1].refused == {Refusal.NO_IDS: 1}


def test_two_instrumentors_of_one_call_make_one_triplet():
    """One sees the ids, another the model's response id: the recipe's all-in-one mode recorded every call twice."""
    for spans in (
        [span(1, GEN_AI), span(2, OPENINFERENCE)],
        [span(1, OPENINFERENCE), span(2, GEN_AI)],
        [span(2, AGENTOPS), span(1, LITELLM)],
    ):
        (triplet,), adapter = adapt(spans)
        assert triplet.response_ids == [4, 5, 2] and triplet.finish_reason == "tool_calls" and adapter.refused == {}


def test_a_frameworks_view_around_the_call_it_makes_is_the_same_call():
    """LangChain's structured output calls its span another name (agent-lightning 308): no name of a span is looked for."""
    outer = span(1, {"openinference.span.kind": "LLM", "llm.model_name": "m"}, "chat_model.llm", start=100, end=300)
    inner = span(2, OPENINFERENCE, "ChatCompletion", parent=1, start=120, end=280)
    (triplet,), adapter = adapt([inner, outer])
    assert triplet.generation_id == inner.span_id and adapter.refused == {}


def test_a_frameworks_view_of_a_call_and_its_retry_is_no_call_of_its_own():
    outer = span(1, {"openinference.span.kind": "LLM"}, start=100, end=900)
    failed = span(2, {"gen_ai.operation.name": "chat"}, parent=1, start=120, status="error", status_message="429")
    triplets, adapter = adapt([outer, failed, ids(3, parent=1, start=400)])
    assert len(triplets) == 1
    assert [(entry.reason, entry.detail) for entry in adapter.quarantined] == [("error", "429")]


def test_views_of_a_view_are_the_same_call_however_deep():
    """A framework's span around a client's, around a proxy's."""
    frameworks = [span(n, {"openinference.span.kind": "LLM"}, parent=n - 1 or None, start=100 + n, end=900 - n) for n in (1, 2, 3)]
    called = ids(4, parent=3, start=200, end=300)
    retried = ids(5, response=[8, 2], parent=3, start=400, end=500)
    assert [triplet.generation_id for triplet in adapt([*frameworks, called])[0]] == [called.span_id]
    triplets, adapter = adapt([*frameworks, called, retried])
    assert [triplet.generation_id for triplet in triplets] == [called.span_id, retried.span_id] and adapter.refused == {}


def test_calls_in_each_other_with_answers_of_their_own_are_each_a_call():
    """A span of a call that lasts until its tools have run, one of which asks the model."""
    outer = ids(1, response=[3, 2], start=100, end=900)
    inner = ids(2, response=[4, 2], parent=1, start=200, end=300)
    named = [one.model_copy(update={"attributes": one.attributes | {"gen_ai.response.id": id}}) for one, id in ((outer, "a"), (inner, "b"))]
    assert [triplet.response_ids for triplet in adapt(named)[0]] == [[3, 2], [4, 2]]


def test_of_a_call_and_its_retry_the_frameworks_view_is_of_the_one_with_its_answer():
    outer = span(1, {**OPENINFERENCE, "openinference.span.kind": "LLM"}, start=100, end=900)
    failed = span(2, {"gen_ai.operation.name": "chat"}, parent=1, start=120, status="error", status_message="429")
    triplets, adapter = adapt([outer, failed, span(3, GEN_AI, parent=1, start=400)])
    assert [triplet.response_ids for triplet in triplets] == [[4, 5, 2]] and adapter.refused == {Refusal.ERROR: 1}


def test_other_operations_are_no_calls():
    kinds = ({"gen_ai.operation.name": "embeddings"}, {"openinference.span.kind": "TOOL"}, {"traceloop.span.kind": "workflow"}, {})
    others = [span(number, attributes) for number, attributes in enumerate(kinds, 1)]
    # A chain that hands the whole answer on has it among its attributes, ids included.
    others.append(span(9, {"openinference.span.kind": "CHAIN", "output.value": OPENINFERENCE["output.value"]}))
    triplets, adapter = adapt(others)
    assert (triplets, adapter.refused) == ([], {})


def test_an_agents_calls_are_picked_by_its_name():
    spans = [
        agent(1, "planner", 0, 1000),
        agent(2, "solver", 100, 500, parent=1),
        ids(3, response=[3, 2], parent=1, start=50),
        ids(4, response=[4, 2], parent=2, start=150),
        ids(5, response=[5, 2], parent=99, start=250),  # its parent never arrived: by time it is the solver's
        ids(6, response=[6, 2], parent=99, start=600),
    ]
    (first, second), adapter = adapt(spans, agent="^solver$")
    assert (first.response_ids, second.response_ids) == ([4, 2], [5, 2])
    assert adapter.refused == {Refusal.OTHER_AGENT: 2} and {entry.detail for entry in adapter.quarantined} == {"planner"}


def test_calls_made_while_scoring_are_not_the_agents():
    judge = span(2, {"agentlightning.reward.0.name": "reward", "agentlightning.reward.0.value": 1.0}, "judge", start=300, end=500)
    (triplet,), adapter = adapt([ids(1), judge, ids(3, response=[9, 2], parent=2, start=350)])
    assert (triplet.response_ids, triplet.reward) == ([7, 2], 1.0)
    assert adapter.refused == {Refusal.OTHER_AGENT: 1}


def test_what_the_proxys_audit_would_have_found_is_found_here():
    counted = {"gen_ai.usage.output_tokens": 9}
    odd = {
        Refusal.COUNT_MISMATCH: span(1, {"prompt_token_ids": [1], "response_token_ids": [2], **counted}),
        Refusal.OUT_OF_VOCABULARY: span(1, {"prompt_token_ids": [1], "response_token_ids": [100]}),
        Refusal.LOGPROBS_MISALIGNED: span(1, {"prompt_token_ids": [1], "response_token_ids": [2], "leyden.logprobs": [-0.1, -0.2]}),
        Refusal.LOGPROBS_NOT_FINITE: span(1, {"prompt_token_ids": [1], "response_token_ids": [2], "leyden.logprobs": [float("nan")]}),
        Refusal.LATE: ids(1, late=True),
        Refusal.ERROR: ids(1, status="error"),
    }
    for reason, one in odd.items():
        triplets, adapter = adapt([one], vocabulary=100)
        assert (triplets, dict(adapter.refused)) == ([], {reason: 1})


@pytest.mark.parametrize("logprobs", [[-0.1, None], [-0.1, -9999.0], [-0.1, "x"], [-0.1, float("-inf")]])
def test_a_log_probability_that_is_no_number_is_never_taken_for_none_at_all(logprobs):
    attributes = {"prompt_token_ids": [1], "response_token_ids": [2, 3], "leyden.logprobs": logprobs}
    assert adapt([span(1, attributes)])[1].refused == {Refusal.LOGPROBS_NOT_FINITE: 1}


def test_ids_that_no_dataset_can_hold_are_refused_though_nobody_knows_the_vocabulary():
    for odd in (-1, 1 << 31, 1 << 70):
        triplets, adapter = adapt([ids(1, response=[odd])])
        assert (triplets, [entry.detail for entry in adapter.quarantined]) == ([], [f"id {odd}"])


def test_names_that_are_no_ids_cost_nothing_but_the_name():
    odd = ids(1).attributes | {"leyden.generation_id": "a b", "leyden.checkpoint": 7}
    (triplet,) = adapt([span(1, odd)])[0]
    assert (triplet.generation_id, triplet.checkpoint) == (f"{1:016x}", None)


def test_several_choices_are_a_triplet_each():
    choices = [
        COMPLETION["choices"][0],
        {**COMPLETION["choices"][0], "index": 1, "token_ids": [6, 2], "finish_reason": "stop", "logprobs": None},
    ]
    attributes = {"llm.hosted_vllm.prompt_token_ids": "[1]", "llm.hosted_vllm.choices": str(choices)}
    first, second = adapt([span(1, attributes)])[0]
    assert (first.response_ids, second.response_ids, second.logprobs) == ([4, 5, 2], [6, 2], None)
    assert first.generation_id != second.generation_id


def test_each_choice_ended_as_it_says_itself_and_none_as_the_first_did():
    """A choice that stopped at its limit was taken for one that the model ended."""
    other = {**COMPLETION["choices"][0], "index": 1, "token_ids": [6, 2], "finish_reason": "length", "logprobs": None}
    choices = [COMPLETION["choices"][0], other]
    litellm = {"llm.hosted_vllm.prompt_token_ids": "[1]", "llm.hosted_vllm.choices": str(choices)}
    openinference = OPENINFERENCE | {"output.value": json.dumps(COMPLETION | {"choices": choices}), "llm.token_count.completion": 5}
    for attributes in (litellm, openinference):
        assert [triplet.finish_reason for triplet in adapt([span(1, attributes)])[0]] == ["tool_calls", "length"]
    untold = {"leyden.prompt_token_ids": [1], "leyden.response_token_ids": [[4, 2], [5, 2]], "gen_ai.response.finish_reasons": ["stop"]}
    assert [triplet.finish_reason for triplet in adapt([span(1, untold)])[0]] == ["stop", None]


# -- rewards -----------------------------------------------------------------------------------------------------------------


def test_a_reward_belongs_after_the_calls_that_had_ended_when_it_was_given():
    """agent-lightning pull request 403: it went to a call that was still running."""
    long, short = ids(1, response=[1, 2], start=0, end=900), ids(2, response=[3, 2], start=100, end=200)
    triplets, _ = adapt([long, short, reward(3, 0.5, start=300)], attribution=Attribution(policy="first_occurrence"))
    assert [triplet.reward for triplet in triplets] == [None, 0.5]


def test_rewards_of_the_store_and_of_the_trace_are_told_once():
    calls = [ids(1), ids(2), ids(3)]
    at_end = Reward(value=1.0, rollout_id="r", attempt=1)
    spans = [*calls, reward(4, 0.25, start=160), reward(5, 1.0, start=900)]
    triplets, adapter = adapt(spans, [at_end], attribution=Attribution(policy="discounted", gamma=1.0))
    assert [triplet.reward for triplet in triplets] == [1.25, 1.0, 1.0] and adapter.unplaced_rewards == 0
    on_second = Reward(value=0.5, position=calls[1].span_id, rollout_id="r", attempt=1)
    assert [one.reward for one in adapt(calls, [on_second, at_end])[0]] == [0.5, 0.5, 1.0]


def test_a_reward_counts_once_however_often_its_span_comes():
    spans = [ids(1), ids(2), reward(3, 0.5)]
    triplets, adapter = adapt([*spans, *spans], attribution=Attribution(policy="first_occurrence"))
    assert [triplet.reward for triplet in triplets] == [None, 0.5] and adapter.unplaced_rewards == 0


def test_a_reward_under_a_lost_lease_changes_nothing_and_is_counted():
    late = reward(3, 0.0, start=900).model_copy(update={"late": True})
    triplets, adapter = adapt([ids(1), reward(2, 1.0, start=300), late])
    assert [triplet.reward for triplet in triplets] == [1.0] and adapter.unplaced_rewards == 1


def test_a_dimension_is_chosen_by_name():
    both = {"agentlightning.reward.0.name": "total", "agentlightning.reward.0.value": 1.0,
            "agentlightning.reward.1.name": "style", "agentlightning.reward.1.value": 0.5}  # fmt: skip
    spans = [ids(1), span(2, both, "agentlightning.annotation", start=300)]
    assert adapt(spans)[0][0].reward == 1.0
    assert adapt(spans, reward_name="style")[0][0].reward == 0.5


# -- whatever comes --------------------------------------------------------------------------------------------------------


def test_spans_may_come_in_any_order_twice_and_with_parents_that_go_in_circles():
    spans = [
        agent(1, "solver", 0, 5000, parent=2),
        span(2, {}, "root", parent=1, start=0, end=9000),
        *(ids(n, response=[n, 2], parent=1) for n in range(3, 9)),
    ]
    expected = adapt(spans)[0]
    assert [triplet.response_ids[0] for triplet in expected] == list(range(3, 9))
    for seed in range(5):
        shuffled = [*spans, *spans]
        random.Random(seed).shuffle(shuffled)
        assert adapt(shuffled)[0] == expected


def test_a_trace_becomes_rows_like_any_other_calls():
    spans = [ids(1, [1, 5], [7, 2]), ids(2, [1, 5, 7, 2, 9], [8, 2]), reward(3, 1.0)]
    (row,) = build_rows(adapt(spans)[0], {"r": "task"}, {2}).rows
    assert (row.input_ids, row.labels, row.reward) == ([1, 5, 7, 2, 9, 8, 2], [-100, -100, 7, 2, -100, 8, 2], 1.0)


names = st.sampled_from(
    [*OPENINFERENCE, *GEN_AI, *AGENTOPS, *LITELLM, *RESPONSES, "span_data", "input.value", "gen_ai.prompt", "gen_ai.prompt.0",
     "agentlightning.reward.0.value", "agentlightning.reward.0.name", "llm.tools.0.tool", "leyden.prompt_token_ids", "leyden.generation_id",
     "leyden.checkpoint", "leyden.logprobs"]
)  # fmt: skip
TEXTS = ["", "[", "[1, 2]", "{}", '{"role": 1}', '[{"type": "text"}]', "chat", "llm", "a text"]
KEYS = ["role", "content", "type", "parts", "message", "tool_calls", "choices", "token_ids", "messages", "function", "arguments"]
json_like = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.just(10**400) | st.floats() | st.sampled_from(TEXTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=6,
)
parents = st.none() | st.integers(1, 5)  # circles too, and one that never arrived
real = st.sampled_from([OPENINFERENCE, GEN_AI, AGENTOPS, TRACELOOP, LITELLM, RESPONSES, {}])


@given(st.lists(st.tuples(real, st.dictionaries(names, json_like, max_size=4), parents), max_size=4))
def test_whatever_attributes_hold_no_adapter_fails(drawn):
    from leyden.algorithm.trace_messages import TraceToMessages

    spans = [span(number, {**known, **odd}, parent=parent) for number, (known, odd, parent) in enumerate(drawn, 1)]
    for adapter in (TraceToTriplets(), TraceToMessages()):
        made = adapter.adapt(spans)
        assert all(one.rollout_id == "r" for one in made)
        assert len({entry.generation_ids for entry in adapter.quarantined}) == len(adapter.quarantined)


def test_spans_are_read_as_the_store_gives_them():
    import asyncio

    from leyden.server.sqlstore import SQLStore
    from leyden.types import NewRollout

    async def through_the_store():
        async with await SQLStore.open(None) as store:
            await store.enqueue([NewRollout(input="task")])
            (lease,) = await store.claim("w")
            await store.add_spans(lease.ref, [ids(2, [1, 5, 7, 2, 9], [8, 2]), span(3, OPENINFERENCE), ids(1, [1, 5], [7, 2])])
            await store.complete(lease.ref, [Reward(value=1.0)])
            return await store.list_spans(lease.ref.rollout_id), await store.list_rewards([lease.ref.rollout_id])

    triplets, adapter = adapt(*asyncio.run(through_the_store()))
    assert [(triplet.response_ids, triplet.reward) for triplet in triplets] == [([7, 2], 1.0), ([8, 2], 1.0), ([4, 5, 2], 1.0)]
    assert triplets[0].rollout_id != "r" and adapter.refused == {}
