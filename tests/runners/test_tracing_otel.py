"""Spans of OpenTelemetry's API and of the instrumentations that use it: each under the rollout that made it, with no code in the agent."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from importlib import import_module
from itertools import pairwise
from typing import Any

import pytest
from sdk_stub import SDKStub
from tracing_room import run, traced

from leyden.runners import Runner, RunnerConfig, emit_annotation, emit_reward, operation, rollout
from leyden.runners.tracer import LEFT_OUT, Tracer
from leyden.server.client import StoreClient
from leyden.server.serving import listening
from leyden.server.sqlstore import SQLStore
from leyden.types import LLM, NewRollout, RolloutState, Span

trace = pytest.importorskip("opentelemetry.trace")
pytest.importorskip("opentelemetry.sdk")
from opentelemetry import context as contexts  # noqa: E402

tracer = trace.get_tracer("the agent's")
REAL = pytest.mark.parametrize(
    ("module", "operations"),
    [
        ("openinference.instrumentation.openai", "openinference.span.kind"),
        ("opentelemetry.instrumentation.openai", "gen_ai.operation.name"),
    ],
    ids=["openinference", "traceloop"],
)


@REAL
def test_an_instrumentation_works_as_it_is_for_many_rollouts_at_once(module: str, operations: str) -> None:
    """The agents call the model past the proxy, at a URL that names no rollout, and it gives no token ids."""
    instrumentor = pytest.importorskip(module).OpenAIInstrumentor()
    import_module("openai")

    @rollout
    async def agent(task: int, llm: LLM) -> None:
        from openai import AsyncOpenAI

        async with AsyncOpenAI(base_url=llm.endpoint, api_key="sk-0123456789abcdefghijklmnop") as client:
            await client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": f"of {task}"}])
            stream = await client.chat.completions.create(
                model=llm.model,
                messages=[{"role": "user", "content": f"of {task}"}],
                stream=True,
                stream_options={"include_usage": True},
            )
            async for _ in stream:
                pass
        emit_reward(task)

    async def scenario() -> None:
        with SDKStub() as stub:
            for done, spans in await traced(agent, range(12), {"llm": LLM(endpoint=stub.url, model="m")}):
                assert done.state is RolloutState.SUCCEEDED, done.error
                (root,) = [span for span in spans if span.parent_id is None]
                calls = [span for span in spans if operations in span.attributes]
                assert root.name == "rollout" and len(calls) == 2 and {call.parent_id for call in calls} == {root.span_id}
                for call in calls:
                    assert (call.operation, call.model, call.finish_reason) == ("chat", "stub", "stop")
                    assert (call.input_tokens, call.output_tokens) == (10, 3)
                    assert f"of {done.input}" in str(call.attributes) and "sk-0123" not in str(call.attributes)

    instrumentor.instrument()
    try:
        run(scenario)
    finally:
        instrumentor.uninstrument()


def test_spans_of_64_rollouts_at_once_are_each_under_their_own_and_none_is_missing() -> None:
    inside = 0
    all_inside = asyncio.Event()

    @rollout
    async def agent(task: int) -> float:
        nonlocal inside
        inside += 1
        if inside == 64:
            all_inside.set()
        await all_inside.wait()
        for n in range(5):
            with tracer.start_as_current_span("outer", attributes={"own": task, "n": n}):
                await asyncio.sleep(0)
                with tracer.start_as_current_span("inner", attributes={"own": task, "n": n}):
                    await asyncio.sleep(0)
        return task  # right after the last of them

    async def scenario() -> None:
        for done, spans in await traced(agent, range(64)):
            own = [span for span in spans if "own" in span.attributes]
            assert len(own) == 10 and {span.attributes["own"] for span in own} == {done.input}
            assert len({span.trace_id for span in spans}) == 1
            by_id = {span.span_id: span for span in spans}
            assert {by_id[str(span.parent_id)].name for span in own if span.name == "outer"} == {"rollout"}
            for span in own:
                if span.name == "inner":
                    outer = by_id[str(span.parent_id)]
                    assert (outer.name, outer.attributes["n"]) == ("outer", span.attributes["n"])

    run(scenario)


def test_runners_in_threads_of_one_process_with_agents_in_threads_keep_their_spans_and_rewards_apart() -> None:
    @rollout
    def agent(task: int) -> float:
        with tracer.start_as_current_span("mine", attributes={"own": task}):
            emit_annotation({"own": task})
        return task

    async def scenario() -> None:
        async with await SQLStore.open(sweep_every=0.1) as store, listening(store) as where:
            items = await store.enqueue([NewRollout(input=n) for n in range(24)])
            go: list[Any] = []

            async def work() -> None:
                runner = Runner(agent, lambda: StoreClient(where.url), RunnerConfig(concurrency=4))
                go.append((asyncio.get_running_loop(), runner))
                await runner.run()

            threads = [threading.Thread(target=lambda: asyncio.run(work())) for _ in range(4)]
            for thread in threads:
                thread.start()
            while len(await store.wait_rollouts([item.id for item in items], wait=5.0)) < len(items):
                pass
            for loop, runner in go:
                loop.call_soon_threadsafe(runner.drain)
            for thread in threads:
                await asyncio.to_thread(thread.join)
            rewards = {reward.rollout_id: reward.value for reward in await store.list_rewards([item.id for item in items])}
            for item in items:
                own = [span for span in await store.list_spans(item.id) if "own" in span.attributes]
                assert sorted(span.name for span in own) == ["leyden.annotation", "mine"]
                assert {span.attributes["own"] for span in own} == {item.input} and rewards[item.id] == item.input
            assert len({worker.id for worker in await store.list_workers()}) == 4

    run(scenario)


def spans_of(agent: Any, **more: Any) -> list[Span]:
    found: list[Span] = []

    async def scenario() -> None:
        ((done, spans),) = await traced(agent, ["x"], **more)
        assert done.state is RolloutState.SUCCEEDED, done.error
        found.extend(spans)

    run(scenario)
    return found


def test_a_child_is_stored_although_its_parent_never_ends_or_ends_before_it() -> None:
    @rollout
    async def agent(task: str) -> float:
        never = tracer.start_span("never ends")
        before = tracer.start_span("ends before", context=trace.set_span_in_context(never))
        child = tracer.start_span("child", context=trace.set_span_in_context(before))
        before.end()
        child.end()
        return 1.0

    named = {span.name: span for span in spans_of(agent)}
    assert set(named) == {"rollout", "ends before", "child", LEFT_OUT}
    assert named["child"].parent_id == named["ends before"].span_id
    assert named[LEFT_OUT].attributes["leyden.count"] == 1


def test_a_thread_that_was_given_opentelemetrys_context_alone_and_a_trace_begun_anew_belong_to_the_attempt() -> None:
    @rollout
    async def agent(task: str) -> float:
        with tracer.start_as_current_span("mine"):
            given = contexts.get_current()

            def work() -> None:
                token = contexts.attach(given)
                with tracer.start_as_current_span("in a thread"):
                    pass
                contexts.detach(token)
                with tracer.start_as_current_span("in a thread, of nobody"):
                    pass

            thread = threading.Thread(target=work)
            thread.start()
            await asyncio.to_thread(thread.join)
        with tracer.start_as_current_span("anew", context=contexts.Context()):
            pass
        return 1.0

    named = {span.name: span for span in spans_of(agent)}
    assert set(named) == {"rollout", "mine", "in a thread", "anew"}
    assert named["in a thread"].parent_id == named["mine"].span_id
    assert named["anew"].trace_id != named["rollout"].trace_id and named["anew"].parent_id is None


def test_operations_notes_and_opentelemetrys_spans_nest_in_one_another() -> None:
    @operation("plan")
    async def plan() -> None:
        with tracer.start_as_current_span("search"):
            emit_annotation({"found": 1})
            with operation("read"), tracer.start_as_current_span("page"):
                pass

    @rollout
    async def agent(task: str) -> float:
        await plan()
        return 1.0

    named = {span.name: span for span in spans_of(agent)}
    chain = ["rollout", "plan", "search", "read", "page"]
    for outer, inner in pairwise(chain):
        assert named[inner].parent_id == named[outer].span_id
    assert named["leyden.annotation"].parent_id == named["search"].span_id
    assert len({span.trace_id for span in named.values()}) == 1


def test_a_failing_span_keeps_its_error_its_events_and_its_links() -> None:
    @rollout
    async def agent(task: str) -> float:
        with tracer.start_as_current_span("first") as first:
            pass
        link = trace.Link(first.get_span_context(), {"why": "before"})
        try:
            with tracer.start_as_current_span("fails", links=[link], kind=trace.SpanKind.CLIENT):
                raise ValueError("no such page")
        except ValueError:
            return 1.0
        return 0.0

    named = {span.name: span for span in spans_of(agent)}
    failed = named["fails"]
    assert (failed.status, failed.status_message, failed.kind) == ("error", "ValueError: no such page", "client")
    assert failed.events[0]["attributes"]["exception.message"] == "no such page" and failed.scope == "the agent's"
    assert failed.links == [{"trace_id": named["first"].trace_id, "span_id": named["first"].span_id, "attributes": {"why": "before"}}]


def test_a_tracer_that_gathers_nothing_leaves_what_the_agent_says_itself() -> None:
    @rollout
    async def agent(task: str) -> float:
        with tracer.start_as_current_span("not gathered"):
            emit_annotation({"said": 1})
        return 1.0

    assert [span.name for span in spans_of(agent, tracer=Tracer())] == ["leyden.annotation"]


def test_an_agent_that_says_nothing_has_no_spans_at_all() -> None:
    @rollout
    async def agent(task: str) -> float:
        return 1.0

    assert spans_of(agent) == []


BESIDE_ANOTHER = """
import asyncio, socket
connected = set()
connect = socket.socket.connect
def watched(self, address):
    connected.add(address[1])
    return connect(self, address)
socket.socket.connect = watched

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
theirs = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(theirs))
{set_it}

from leyden.runners import Runner, RunnerConfig, rollout
from leyden.server.client import StoreClient
from leyden.server.serving import listening
from leyden.server.sqlstore import SQLStore
from leyden.types import NewRollout

@rollout
async def agent(task):
    with trace.get_tracer("mine").start_as_current_span("mine"):
        return 0.5

async def main():
    async with await SQLStore.open() as store, listening(store) as where:
        (item,) = await store.enqueue([NewRollout(input=1)])
        await Runner(agent, lambda: StoreClient(where.url), RunnerConfig(max_rollouts=1)).run()
        assert sorted(span.name for span in await store.list_spans(item.id)) == ["mine", "rollout"]
        assert [reward.value for reward in await store.list_rewards([item.id])] == [0.5]
        assert connected == {{where.port}}, connected

asyncio.run(main())
assert [span.name for span in theirs.get_finished_spans() if span.instrumentation_scope.name == "mine"] == {theirs}  # fastapi's beside
"""


@pytest.mark.parametrize(("set_it", "theirs"), [("trace.set_tracer_provider(provider)", ["mine"]), ("", [])], ids=["theirs", "ours"])
def test_spans_arrive_with_another_tracer_beside_ours_and_without_and_no_collector_is_asked(set_it: str, theirs: list[str]) -> None:
    code = BESIDE_ANOTHER.format(set_it=set_it, theirs=theirs)
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "4318" not in done.stderr
