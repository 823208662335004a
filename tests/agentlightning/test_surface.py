"""Every name that the recipes' users import is there, or says what to use instead."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import leyden.agentlightning as agl
from leyden.agentlightning import store as store_room

# What `import agentlightning as agl` offered, as its users' code names it.
SURFACE = re.findall(
    r"\w+",
    """
    LLM LLMProxy ProxyLLM PromptTemplate NamedResources Resource ResourcesUpdate Dataset Hook LightningStore LightningStoreClient
    LightningStoreServer InMemoryLightningStore LightningStoreThreaded MongoLightningStore LitAgent LitAgentRunner Runner rollout
    llm_rollout prompt_rollout Algorithm algo Baseline FastAlgorithm APO VERL with_store with_llm_proxy Trainer ExecutionStrategy
    ClientServerExecutionStrategy SharedMemoryExecutionStrategy LlmProxyTraceToTriplet TracerTraceToTriplet TraceToMessages Adapter
    TraceAdapter OtelTraceAdapter TraceToTripletBase OtelTracer AgentOpsTracer DummyTracer WeaveTracer Tracer get_active_tracer
    set_active_tracer emit_reward emit_message emit_object emit_annotation emit_exception operation reward find_final_reward
    find_reward_spans is_reward_span get_reward_value get_rewards_from_span get_message_value get_object_value make_tag_attributes
    make_link_attributes query_linked_spans Rollout RolloutConfig RolloutMode RolloutStatus Attempt AttemptStatus AttemptedRollout
    EnqueueRolloutRequest Span TraceStatus Triplet SpanCoreFields PaginatedResult FilterOptions SortOptions Worker WorkerStatus
    AgentLightningClient AgentLightningServer DevTaskLoader lightning_cli configure_logger setup_logging
    """,
)

STORE = re.findall(
    r"\w+",
    """
    capabilities statistics otlp_traces_endpoint start_rollout enqueue_rollout enqueue_many_rollouts dequeue_rollout
    dequeue_many_rollouts start_attempt add_span add_many_spans add_otel_span query_rollouts query_attempts get_latest_attempt
    get_rollout_by_id query_resources get_resources_by_id get_latest_resources add_resources update_resources
    get_next_span_sequence_id get_many_span_sequence_ids wait_for_rollouts query_spans update_rollout update_attempt query_workers
    get_worker_by_id update_worker
    """,
)


@pytest.mark.parametrize("name", SURFACE)
def test_a_name_is_there_or_names_ours(name):
    if name in agl.__all__:
        assert getattr(agl, name) is not None
        return
    with pytest.raises(agl.NotOffered, match=f"does not offer {name}") as caught:
        getattr(agl, name)
    assert caught.value.hint.startswith("instead: ")


@pytest.mark.parametrize("name", STORE)
def test_a_method_of_the_store_is_there_or_names_ours(name):
    store = agl.LightningStoreClient("http://127.0.0.1:1")
    if name not in store_room.NOT_OFFERED:
        assert getattr(store, name) is not None
        return
    with pytest.raises(agl.NotOffered, match=f"does not offer {name}") as caught:
        getattr(store, name)
    assert caught.value.hint.startswith("instead: ")


def test_what_nobody_ever_offered_is_an_ordinary_missing_name():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        agl.nonsense  # noqa: B018
    assert not hasattr(agl.LightningStoreClient("http://127.0.0.1:1"), "nonsense")
    assert not hasattr(agl, "VERL")  # `hasattr` and friends see that it is missing


def test_the_lists_hold_together():
    assert set(agl.__all__) | set(agl.NOT_OFFERED) >= set(SURFACE)
    assert not set(agl.__all__) & set(agl.NOT_OFFERED)
    assert all(hasattr(agl, name) for name in agl.__all__)


def test_the_page_for_those_who_migrate_names_every_name():
    page = (Path(__file__).parents[2] / "docs" / "migrating-from-agent-lightning.md").read_text()
    words = set(re.findall(r"\w+", page))
    assert set(SURFACE) | set(STORE) <= words


@pytest.mark.parametrize("options", [{"strategy": "shm"}, {"runner": object()}, {"n_workers": 4}, {"max_tasks": 3}])
def test_arguments_of_the_trainer_that_are_not_offered_name_ours(options):
    with pytest.raises(agl.NotOffered, match="is not offered") as caught:
        agl.Trainer(**options)
    assert caught.value.hint.startswith("instead: ")
