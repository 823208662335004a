"""The recipe's store methods, against a real store in a thread."""

from __future__ import annotations

import asyncio
import pickle

import pytest

import leyden.agentlightning as agl
from leyden.errors import Conflict, NotFound, UsageError
from leyden.types import Generation


def with_store(scenario):
    async def run():
        store = agl.InMemoryLightningStore()
        try:
            return await scenario(store)
        finally:
            await store.close()

    return asyncio.run(run())


def test_a_rollout_is_queued_taken_and_ended_by_hand():
    async def scenario(store):
        queued = await store.enqueue_rollout(input={"q": 1}, mode="val", metadata={"from": "me"})
        assert (queued.status, queued.mode, queued.metadata, queued.input) == ("queuing", "val", {"from": "me"}, {"q": 1})
        assert await store.wait_for_rollouts(rollout_ids=[queued.rollout_id], timeout=0.0) == []
        taken = await store.dequeue_rollout(worker_id="me")
        assert taken.rollout_id == queued.rollout_id
        assert (taken.attempt.attempt_id, taken.attempt.status) == ("1", "running")
        assert await store.dequeue_rollout() is None
        assert [r.rollout_id for r in await store.query_rollouts(status_in=["running"])] == [queued.rollout_id]
        span = agl.Span(
            rollout_id=taken.rollout_id, attempt_id="1", trace_id="a" * 32, span_id="b" * 16, name="mine", start_time=1.0,
            attributes={"agentlightning.reward.0.name": "reward", "agentlightning.reward.0.value": 0.75},
        )  # fmt: skip
        assert await store.add_span(span) is not None
        assert await store.add_span(span) is None  # it is there already
        attempt = await store.update_attempt(taken.rollout_id, "1", status="succeeded")
        assert attempt.status == "succeeded"
        (ended,) = await store.wait_for_rollouts(rollout_ids=[queued.rollout_id])
        assert ended.status == "succeeded"
        assert ended.end_time >= ended.start_time
        assert agl.find_final_reward(await store.query_spans(queued.rollout_id, "latest")) == 0.75
        with pytest.raises(UsageError, match="not ours to change"):
            await store.update_attempt(taken.rollout_id, "1", status="failed")  # final is final

    with_store(scenario)


def test_a_failed_attempt_is_tried_again_as_the_config_says():
    async def scenario(store):
        config = agl.RolloutConfig(max_attempts=2, retry_condition=["failed"], timeout_seconds=60.0)
        queued = await store.enqueue_rollout(input=1, config=config)
        first = await store.dequeue_rollout()
        await store.update_attempt(first.rollout_id, first.attempt.attempt_id, status="failed")
        assert (await store.get_rollout_by_id(queued.rollout_id)).status == "requeuing"
        while (second := await store.dequeue_rollout()) is None:  # the retry waits a moment
            await asyncio.sleep(0.05)
        assert second.attempt.attempt_id == "2"
        await store.update_attempt(second.rollout_id, "2", status="timeout")
        assert (await store.get_rollout_by_id(queued.rollout_id)).status == "failed"
        assert [attempt.status for attempt in await store.query_attempts(queued.rollout_id)] == ["failed", "timeout"]
        assert (await store.get_latest_attempt(queued.rollout_id)).sequence_id == 2

    with_store(scenario)


def test_a_query_for_nothing_finds_nothing_and_one_for_many_finds_all():
    async def scenario(store):
        queued = await store.enqueue_many_rollouts([agl.EnqueueRolloutRequest(input=n) for n in range(1001)])
        ids = [rollout.rollout_id for rollout in queued]
        assert [rollout.rollout_id for rollout in await store.query_rollouts(rollout_id_in=ids)] == ids  # more than one page
        assert await store.query_rollouts(rollout_id_in=[]) == []
        assert await store.query_rollouts(status_in=[]) == []

    with_store(scenario)


def test_start_rollout_takes_its_own_task_before_all_others():
    async def scenario(store):
        await store.enqueue_rollout(input="waiting since long")
        started = await store.start_rollout(input="now")
        assert started.input == "now"
        await store.update_rollout(started.rollout_id, status="cancelled")
        assert (await store.get_rollout_by_id(started.rollout_id)).status == "cancelled"
        with pytest.raises(UsageError, match="not offered"):
            await store.update_rollout(started.rollout_id, status="succeeded")

    with_store(scenario)


def test_resources_are_versions():
    async def scenario(store):
        assert await store.get_latest_resources() is None
        first = await store.add_resources({"prompt": agl.PromptTemplate(template="a")})
        second = await store.add_resources({"prompt": agl.PromptTemplate(template="b")})
        assert first.resources_id != second.resources_id
        assert (await store.get_latest_resources()).resources["prompt"].template == "b"
        assert (await store.get_resources_by_id(first.resources_id)).resources["prompt"].template == "a"
        assert await store.get_resources_by_id("nowhere") is None
        assert await store.get_rollout_by_id("nowhere") is None
        with pytest.raises((NotFound, Conflict, UsageError)):
            await store.enqueue_rollout(input=1, resources_id="nowhere")
        with pytest.raises(NotFound):
            await store.query_spans("nowhere")

    with_store(scenario)


def test_calls_and_rewards_become_spans_from_which_the_adapter_reads_exact_ids():
    async def scenario(store):
        await store.enqueue_rollout(input=1)
        taken = await store.dequeue_rollout()
        ref = store._taken[(taken.rollout_id, "1")]
        common = {"rollout_id": taken.rollout_id, "attempt": 1, "model": "m", "latency": 0.5}
        calls = [
            Generation(id="g1", call_id="c1", prompt_token_ids=[1, 2], response_token_ids=[3], logprobs=[-0.5], started_at=10, **common),
            Generation(id="g2", call_id="c2", status="error", error="400", started_at=20, **common),
            Generation(id="g3", call_id="c3", started_at=30, **common),  # a model that gives no ids
            Generation(
                id="g4", call_id="c4", prompt_token_ids=[1, 2, 3, 4], response_token_ids=[5, 6], started_at=40,
                request={"messages": [{"role": "user", "content": "hi"}]}, response={"role": "assistant", "content": "ho"}, **common,
            ),
        ]  # fmt: skip
        await store.inner.add_generations(ref, calls)
        await store.inner.add_rewards(ref, [agl_reward(0.25, "g1")])
        await store.inner.complete(ref, [agl_reward(1.0, "end")])
        return await store.query_spans(taken.rollout_id, "latest"), await store.query_spans(taken.rollout_id)

    spans, everything = with_store(scenario)
    assert spans == everything
    adapter = agl.LlmProxyTraceToTriplet()
    first, second = adapter.adapt(spans)
    assert (first.prompt["token_ids"], first.response["token_ids"], first.reward) == ([1, 2], [3], 0.25)
    assert (second.prompt["token_ids"], second.response["token_ids"], second.reward) == ([1, 2, 3, 4], [5, 6], 1.0)
    assert first.response["logprobs"] == [-0.5]
    assert adapter.skipped == {"error": 1, "no_ids": 1}
    assert agl.TracerTraceToTriplet().adapt(list(reversed(spans))) == [first, second]  # their order is in their numbers
    messages = agl.TraceToMessages().adapt(spans)
    assert messages == [{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}], "tools": None}]
    with pytest.raises(UsageError, match="no option 'llm_call_match'"):
        agl.TracerTraceToTriplet(llm_call_match="x")
    with pytest.raises(UsageError, match="no reward_match 'first_sibling'"):
        agl.TracerTraceToTriplet(reward_match="first_sibling")


def agl_reward(value, position):
    from leyden.types import Reward

    return Reward(value=value, position=position)


def test_a_store_goes_to_other_loops_and_processes_as_its_url():
    store = agl.InMemoryLightningStore()
    again = pickle.loads(pickle.dumps(store))
    assert isinstance(again, agl.LightningStoreClient)

    async def count(some):
        found = len(await some.query_rollouts())
        await agl.LightningStore.close(some)
        return found

    asyncio.run(store.enqueue_rollout(input=1))
    assert asyncio.run(count(again)) == asyncio.run(count(agl.LightningStoreClient(store.url))) == 1
    asyncio.run(store.close())


def test_a_server_gives_the_store_a_port_of_ones_choice(unused_port):
    async def scenario(store):
        server = agl.LightningStoreServer(store, port=unused_port)
        await server.start()
        assert server.endpoint == f"http://127.0.0.1:{unused_port}"
        client = agl.LightningStoreClient(server.endpoint)
        queued = await client.enqueue_rollout(input=1)
        assert (await store.get_rollout_by_id(queued.rollout_id)).input == 1
        await client.close()
        await server.stop()
        assert (await store.get_rollout_by_id(queued.rollout_id)).input == 1

    with_store(scenario)


@pytest.fixture
def unused_port():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


def test_a_config_that_means_nothing_here_says_so():
    with pytest.warns(UserWarning, match="unresponsive_seconds has no effect"):
        agl.RolloutConfig(unresponsive_seconds=5.0).ours()
