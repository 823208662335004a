"""Spans that are hard to keep: of odd values, of more than a tracer's limits, of providers that are not the SDK's, of ids chosen twice."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from tracing_room import run, traced

import leyden
from leyden.runners.tracer import LEFT_OUT, MAX_SPANS, Recorder, begun, owner_of, recording
from leyden.types import RolloutState, Span

agents = pytest.importorskip("agents")
trace = pytest.importorskip("opentelemetry.trace")
otel = pytest.importorskip("leyden.runners.otel")
tracer = trace.get_tracer("the agent's")


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with recording(Recorder()) as opened:
        yield opened


def of_each(agent: Any, inputs: Any) -> list[list[Span]]:
    found: list[list[Span]] = []

    async def scenario() -> None:
        for done, spans in await traced(agent, inputs):
            assert done.state is RolloutState.SUCCEEDED, done.error
            found.append(spans)

    run(scenario)
    return found


def circle() -> dict[str, Any]:
    around: dict[str, Any] = {"name": "around"}
    around["again"] = around
    return around


def test_half_a_character_or_a_circle_costs_only_itself(recorder: Recorder) -> None:
    long = "word " * 1000
    with leyden.operation("step", given=circle()) as step:
        step.set_input({"half": "a\ud83d", "long": long, "circle": circle(), "\udc00": 1})
    leyden.emit_annotation({"half": "b\ud83d", "ok": 1})
    leyden.emit_annotation(circle())
    leyden.emit_message("hello", {"circle": circle()})
    notes, around, message, made = sorted(recorder.spans, key=lambda span: (span.name, "name" in span.attributes))
    assert notes.attributes == {"half": "b\ufffd", "ok": 1}
    assert around.attributes["name"] == "around" and message.attributes["leyden.message.body"] == "hello"
    given = made.attributes["leyden.input"]
    assert (given["half"], given["long"], given["\ufffd"]) == ("a\ufffd", long, 1) and given["circle"]["name"] == "around"
    assert made.attributes["given"]["name"] == "around"


@dataclass
class Held:
    rest: Iterator[int]


def test_what_an_agent_may_read_only_once_is_not_read_for_it(recorder: Recorder) -> None:
    @leyden.operation
    def total(numbers: Iterator[int], held: Held, by_name: dict[str, Iterator[int]]) -> Iterator[int]:
        return iter([sum(numbers), sum(held.rest), sum(by_name["a"])])

    result = total((n for n in range(4)), Held(iter([5, 6])), {"a": map(int, "12")})
    leyden.emit_message("so", {"numbers": (rest := iter([1]))})
    assert list(result) == [6, 11, 3] and list(rest) == [1]
    made, said = recorder.spans
    assert "generator" in made.attributes["leyden.input"]["numbers"] and "iterator" in made.attributes["leyden.input"]["held"]["rest"]
    assert "iterator" in made.attributes["leyden.output"] and "iterator" in said.attributes["numbers"]


def test_a_span_of_the_agents_sdk_with_such_values_neither_stops_what_sends_spans_nor_loses_the_others() -> None:
    from agents.tracing import CustomSpanData

    class Unwilling(CustomSpanData):
        def export(self) -> dict[str, Any]:
            raise RuntimeError("no export")

    @leyden.rollout
    async def agent(task: str) -> float:
        with agents.trace("work"):
            with agents.custom_span("half", {"text": "a\ud83d", "circle": circle()}):
                pass
            with agents.tracing.get_trace_provider().create_span(Unwilling(name="unwilling", data={})):
                pass
            with agents.custom_span("last", {"n": 3}):
                pass
        return 1.0

    (spans,) = of_each(agent, ["x"])
    named = {span.name: span for span in spans}
    assert set(named) == {"rollout", "invoke_workflow work", "half", "last", LEFT_OUT}
    assert named["half"].attributes["span_data.data"]["text"] == "a\ufffd"
    assert named[LEFT_OUT].attributes == {
        "leyden.count": 1, "leyden.reason": "a span of the OpenAI Agents SDK: RuntimeError: no export",
    }  # fmt: skip


def test_attempts_that_choose_the_same_trace_id_each_keep_their_own_trace() -> None:
    @leyden.rollout
    async def agent(task: int) -> float:
        import asyncio

        with agents.trace(f"of {task}", trace_id="trace_of_one_task"):
            await asyncio.sleep(0.05 * task)  # the first one ends while the others are at work
            with agents.custom_span("own", {"n": task}):
                await asyncio.sleep(0)
        return task

    for task, spans in enumerate(of_each(agent, range(3))):
        named = {span.name: span for span in spans}
        assert set(named) == {"rollout", f"invoke_workflow of {task}", "own"}
        workflow = named[f"invoke_workflow of {task}"]
        assert workflow.parent_id == named["rollout"].span_id and named["own"].parent_id == workflow.span_id


def test_spans_of_the_agents_sdk_opentelemetrys_and_operations_nest_in_one_another() -> None:
    @leyden.rollout
    async def agent(task: str) -> float:
        with agents.trace("workflow"), agents.custom_span("tool", {}):
            with tracer.start_as_current_span("request"), agents.custom_span("inner tool", {}):
                leyden.emit_annotation({"said": 1})
                with leyden.operation("look"), tracer.start_as_current_span("page"):
                    pass
            with tracer.start_as_current_span("second request"):
                pass
        with tracer.start_as_current_span("after"):
            pass
        return 1.0

    (spans,) = of_each(agent, ["x"])
    names = {span.span_id: span.name for span in spans}
    assert {span.name: names.get(str(span.parent_id)) for span in spans} == {
        "rollout": None, "invoke_workflow workflow": "rollout", "tool": "invoke_workflow workflow", "request": "tool",
        "inner tool": "request", "leyden.annotation": "inner tool", "look": "inner tool", "page": "look", "second request": "tool",
        "after": "rollout",
    }  # fmt: skip
    assert len({span.trace_id for span in spans}) == 1


def test_a_span_that_cannot_be_read_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    read = otel.to_record

    def unwilling(span: Any, *more: Any) -> Any:
        if span.name == "odd":
            raise ValueError("cannot be read")
        return read(span, *more)

    monkeypatch.setattr(otel, "to_record", unwilling)

    @leyden.rollout
    async def agent(task: str) -> float:
        for name in ("first", "odd", "last"):
            tracer.start_span(name).end()
        return 1.0

    (spans,) = of_each(agent, ["x"])
    named = {span.name: span for span in spans}
    assert set(named) == {"first", "last", "rollout", LEFT_OUT}
    assert named[LEFT_OUT].attributes == {"leyden.count": 1, "leyden.reason": "ValueError: cannot be read"}


def test_what_begins_after_its_attempt_has_ended_is_nobodys_and_is_not_kept_for_ever() -> None:
    recorder = Recorder()
    begun("before", recorder)
    recorder.end({}, None)
    begun("after", recorder)
    assert owner_of("before") is owner_of("after") is None and recorder.left_out.n == 1 and MAX_SPANS > 1


def test_what_an_agent_says_after_its_attempt_has_ended_is_kept_and_marked_late() -> None:
    import asyncio

    ended, said = asyncio.Event(), asyncio.Event()
    background: list[asyncio.Task[None]] = []

    async def go_on() -> None:
        await ended.wait()
        leyden.emit_message("late")
        with tracer.start_as_current_span("a library's"):
            said.set()

    @leyden.rollout
    async def agent(task: int) -> float:
        if task == 0:
            leyden.emit_message("in time")
            background.append(asyncio.create_task(go_on()))
        else:  # claimed when the first one has ended
            ended.set()
            await said.wait()
        return 1.0

    found: list[list[tuple[str, bool]]] = []

    async def scenario() -> None:
        for _, spans in await traced(agent, range(2), concurrency=1):
            found.append([(str(span.attributes.get("leyden.message.body", span.name)), span.late) for span in spans])

    run(scenario)
    assert sorted(found[0]) == [("in time", False), ("late", True), ("rollout", False)] and found[1] == []


OWN_PROVIDER = """
from opentelemetry import trace
from leyden.runners import otel
from leyden.runners.tracer import AgentTracer, Recorder, recording
from leyden.types import Mode, Rollout, RolloutConfig, RolloutState
{provide}
item = Rollout(id="r", input=1, mode=Mode.TEST, priority=0, state=RolloutState.RUNNING, config=RolloutConfig(), created_at=0)
with recording(Recorder()) as recorder, AgentTracer().trace(item):
    with trace.get_tracer("mine").start_as_current_span("conversation") as span:
        for n in range(200):
            span.set_attribute(f"llm.input_messages.{{n}}.message.content", n)
            span.add_event(str(n))
kept, root = recorder.spans
dropped = [kept.attributes.get(f"otel.dropped_{{name}}_count") for name in ("attributes", "events")]
print(len(kept.attributes), dropped[0], len(kept.events), dropped[1])
"""
WRAPPED = """
from opentelemetry.sdk.trace import TracerProvider
class Wrapping(trace.TracerProvider):  # as those of services that come with an SDK of their own
    inner = TracerProvider()
    def get_tracer(self, *args, **kwargs): return self.inner.get_tracer(*args, **kwargs)
    def add_span_processor(self, processor): self.inner.add_span_processor(processor)
trace.set_tracer_provider(Wrapping())
"""


@pytest.mark.parametrize(
    ("provide", "limit", "kept"),
    [("", None, "200 None 200 None"), ("", "150", "151 50 200 None"), (WRAPPED, None, "130 72 128 72")],
    ids=["ours", "a limit of the user's", "a provider that wraps the SDK's"],
)
def test_a_long_conversation_keeps_all_its_attributes_and_what_a_limit_costs_is_told(provide: str, limit: str | None, kept: str) -> None:
    env = os.environ | ({"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": limit} if limit else {})
    code = OWN_PROVIDER.format(provide=provide)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == kept


def test_spans_in_memory_count_for_what_they_hold_before_they_are_read() -> None:
    from leyden.runners.buffer import FULL, Buffer
    from leyden.types import LeaseRef

    buffer = Buffer(max_spans=1000, max_bytes=1 << 20)
    recorder = Recorder(lambda item: buffer.put(LeaseRef(rollout_id="r", attempt=1, token=1), item)[0], keep=False)
    recorder.gathers = True
    otel.join()
    with recording(recorder):
        for _ in range(30):
            with tracer.start_as_current_span("call") as span:
                span.set_attribute("gen_ai.input.messages", "x" * 100_000)
    assert buffer.spans == 10 and recorder.left_out.n == 20 and recorder.left_out.reason == FULL
    while buffer.take(due=False):
        pass
    assert buffer.bytes == buffer.spans == 0
