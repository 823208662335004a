"""What an agent says of itself: notes, rewards and operations, as spans of its own attempt and of nobody else's."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import leyden
from leyden.errors import UsageError
from leyden.runners.dry_run import dev
from leyden.runners.rewards import BadReward
from leyden.runners.tracer import Recorder, recording
from leyden.types import Span


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with recording(Recorder()) as opened:
        yield opened


def only(recorder: Recorder) -> Span:
    (span,) = recorder.spans
    return span


# -- notes ------------------------------------------------------------------------------------------------------------


def test_a_note_is_a_span_with_what_was_said(recorder: Recorder) -> None:
    leyden.emit_message("thinking", {"step": 1})
    leyden.emit_object({"found": [1, 2.5, None]})
    leyden.emit_annotation({"step": {"name": "first", "n": 1}, "ok": True})
    leyden.emit_exception(ValueError("handled"), {"tool": "search"})
    message, found, annotation, exception = recorder.spans
    assert (message.name, message.attributes) == ("leyden.message", {"leyden.message.body": "thinking", "step": 1})
    assert (found.name, found.attributes) == ("leyden.object", {"leyden.object": {"found": [1, 2.5, None]}})
    assert annotation.attributes == {"step.name": "first", "step.n": 1, "ok": True}
    assert exception.attributes == {"exception.type": "ValueError", "exception.message": "handled", "tool": "search"}
    assert (exception.status, exception.status_message) == ("error", "ValueError: handled")
    assert len({span.trace_id for span in recorder.spans}) == 1 and len({span.span_id for span in recorder.spans}) == 4


def test_what_was_said_does_not_change_when_the_agent_changes_its_objects(recorder: Recorder) -> None:
    notes = {"seen": ["a"]}
    leyden.emit_object(notes)
    leyden.emit_annotation(notes)
    notes["seen"].append("b")
    first, second = recorder.spans
    assert first.attributes["leyden.object"] == {"seen": ["a"]} and second.attributes["seen"] == ["a"]


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", {"when": threading.Lock()}])
def test_an_object_that_is_not_json_is_refused_where_it_is_emitted(recorder: Recorder, value: Any) -> None:
    with pytest.raises(UsageError, match="takes a value of JSON"):
        leyden.emit_object(value)
    assert recorder.spans == []


def test_of_an_annotation_that_is_not_json_its_text_is_kept(recorder: Recorder) -> None:
    leyden.emit_annotation({"kind": ValueError, "ok": 1})
    assert only(recorder).attributes == {"kind": "<class 'ValueError'>", "ok": 1}


def test_outside_an_attempt_a_note_is_a_line_for_whoever_debugs(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "leyden.tracing"):
        assert leyden.emit_message("to nobody") is None
        assert leyden.emit_annotation({"a": 1}) is None
        assert leyden.emit_object([1]) is None
        assert leyden.emit_exception(ValueError()) is None
    assert caplog.messages[0] == "leyden.message outside a rollout is kept nowhere" and len(caplog.messages) == 4


def test_a_dry_run_keeps_rewards_and_no_notes() -> None:
    @leyden.rollout
    async def agent(task: str) -> None:
        leyden.emit_message(task)
        leyden.emit_reward(0.5)

    (result,) = dev(agent, ["a"])
    assert result.reward == 0.5


# -- rewards ----------------------------------------------------------------------------------------------------------


def rewards_of(*emitted: Any, **options: Any) -> dict[str, float]:
    @leyden.rollout
    async def agent(task: Any) -> None:
        for value in emitted:
            leyden.emit_reward(value, **options)

    (result,) = dev(agent, [None])
    assert result.error is None, result.error
    return {reward.name: reward.value for reward in result.rewards}


def test_named_rewards_have_a_primary_one_if_they_say_so() -> None:
    several = {"style": 0.5, "right": 1}
    assert rewards_of(several) == {"style": 0.5, "right": 1.0}  # as an agent that returns them
    assert rewards_of(several, primary_key="right") == {"style": 0.5, "right": 1.0, "reward": 1.0}
    assert rewards_of(several, several, primary_key="right", name="score") == {"style": 0.5, "right": 1.0, "score": 1.0}


def test_a_primary_key_names_one_of_the_rewards() -> None:
    @leyden.rollout
    async def agent(task: Any) -> None:
        leyden.emit_reward(task, primary_key="wrong")

    named, plain = dev(agent, [{"right": 1.0}, 1.0])
    assert "no 'wrong' among right" in str(named.error) and "no 'wrong' among reward" in str(plain.error)


def test_a_second_value_for_a_named_reward_is_refused() -> None:
    @leyden.rollout
    async def agent(task: Any) -> None:
        leyden.emit_reward({"a": 1.0})
        with pytest.raises(BadReward, match="two values for reward 'a'"):
            leyden.emit_reward({"a": 0.0})
        with pytest.raises(BadReward, match=r"two values for reward 'reward': 0\.5 and 1\.0"):
            leyden.emit_reward({"reward": 0.5, "right": 1.0}, primary_key="right")

    assert dev(agent, [None])[0].error is None


# -- operations -------------------------------------------------------------------------------------------------------


def test_an_operation_keeps_what_went_in_and_what_came_out(recorder: Recorder) -> None:
    @leyden.operation
    def search(query: str, *, limit: int = 3, **more: Any) -> list[str]:
        """Looks."""
        return [query] * limit

    assert search("a", limit=2, lang="en") == ["a", "a"]
    span = only(recorder)
    assert span.name.endswith("search") and span.end_ns >= span.start_ns > 0
    assert span.attributes["leyden.input"] == {"query": "a", "limit": 2, "more": {"lang": "en"}}
    assert span.attributes["leyden.output"] == ["a", "a"]
    assert search.__name__ == "search" and search.__doc__ == "Looks." and next(iter(inspect.signature(search).parameters)) == "query"


def test_an_operation_of_an_async_function(recorder: Recorder) -> None:
    @leyden.operation("fetch", index="wiki")
    async def fetch(url: str) -> str:
        await asyncio.sleep(0)
        return url.upper()

    assert inspect.iscoroutinefunction(fetch) and asyncio.run(fetch("u")) == "U"
    span = only(recorder)
    assert (span.name, span.attributes) == ("fetch", {"index": "wiki", "leyden.input": {"url": "u"}, "leyden.output": "U"})


def test_an_operation_as_a_context_and_what_begins_inside_it(recorder: Recorder) -> None:
    with leyden.operation("plan") as plan:
        plan.set_input({"goal": "x"})
        leyden.emit_message("inside")
        with leyden.operation("step", n=1):
            leyden.emit_message("deeper")
        plan.set_output(["done"])
        plan.set_attribute("cost", 2)
    inside, deeper, step, outer = recorder.spans
    assert outer.attributes == {"leyden.input": {"goal": "x"}, "leyden.output": ["done"], "cost": 2}
    assert (inside.parent_id, deeper.parent_id, step.parent_id) == (outer.span_id, step.span_id, outer.span_id)
    assert step.attributes == {"n": 1}


def test_an_exception_passes_through_an_operation_and_is_noted(recorder: Recorder) -> None:
    @leyden.operation
    def fail() -> None:
        raise KeyError("no such page")

    with pytest.raises(KeyError):
        fail()
    span = only(recorder)
    assert (span.status, span.attributes["exception.type"]) == ("error", "KeyError") and "no such page" in str(span.status_message)


def test_an_operation_of_a_generator_lasts_until_its_end_and_the_callers_own_work_is_not_inside_it(recorder: Recorder) -> None:
    @leyden.operation
    def count(n: int) -> Iterator[Any]:
        got = []
        for i in range(n):
            leyden.emit_message("mine")
            got.append((yield i))
        return got

    generator = count(2)
    assert next(generator) == 0
    leyden.emit_message("the caller's")
    assert generator.send("a") == 1
    with pytest.raises(StopIteration) as ended:
        generator.send("b")
    assert ended.value.value == ["a", "b"]
    *notes, span = recorder.spans
    assert [(note.attributes["leyden.message.body"], note.parent_id == span.span_id) for note in notes] == [
        ("mine", True), ("the caller's", False), ("mine", True),
    ]  # fmt: skip
    assert span.attributes == {"leyden.input": {"n": 2}, "leyden.items": 2, "leyden.output": [0, 1]}


def test_a_generator_that_is_left_early_or_thrown_into_is_told_so(recorder: Recorder) -> None:
    told = []

    @leyden.operation
    def count() -> Iterator[int]:
        try:
            yield 1
            yield 2
        except ValueError:
            told.append("thrown")
            yield 3
        finally:
            told.append("closed")

    generator = count()
    next(generator)
    generator.close()
    thrown = count()
    next(thrown)
    assert thrown.throw(ValueError()) == 3  # type: ignore[attr-defined]
    assert next(thrown, None) is None
    assert told == ["closed", "thrown", "closed"]
    assert [(span.status, span.attributes["leyden.items"]) for span in recorder.spans] == [("unset", 1), ("unset", 2)]


def test_an_operation_of_an_async_generator(recorder: Recorder) -> None:
    closed = []

    @leyden.operation
    async def count(n: int) -> AsyncIterator[int]:
        try:
            for i in range(n):
                leyden.emit_message("mine")
                yield i
            if n == 3:
                raise RuntimeError("three")
        finally:
            closed.append(n)

    async def use() -> list[int]:
        found = [i async for i in count(2)]
        early = count(5)
        found.append(await anext(early))
        await early.aclose()  # type: ignore[attr-defined]
        with pytest.raises(RuntimeError):
            found += [i async for i in count(3)]
        return found

    assert asyncio.run(use()) == [0, 1, 0]
    assert closed == [2, 5, 3]
    done, early, failed = [span for span in recorder.spans if span.name.endswith("count")]
    assert done.attributes["leyden.output"] == [0, 1] and early.attributes["leyden.items"] == 1
    assert (early.status, failed.status) == ("unset", "error")
    assert {span.parent_id for span in recorder.spans if span.name == "leyden.message"} == {done.span_id, early.span_id, failed.span_id}


def test_of_what_a_generator_yields_only_the_first_hundred_are_kept(recorder: Recorder) -> None:
    @leyden.operation
    def many() -> Iterator[int]:
        yield from range(250)

    assert sum(1 for _ in many()) == 250
    assert only(recorder).attributes["leyden.items"] == 250 and len(only(recorder).attributes["leyden.output"]) == 100


@leyden.operation  # decorated where no attempt runs, and no tracer exists
def at_the_top(value: int) -> int:
    return value + 1


def test_an_operation_at_the_top_of_a_module_runs_without_any_tracer_and_is_kept_inside_an_attempt() -> None:
    assert at_the_top(1) == 2
    with leyden.operation("alone") as alone:
        alone.set_output(1)
    with recording(Recorder()) as recorder:
        assert at_the_top(2) == 3
    assert only(recorder).attributes == {"leyden.input": {"value": 2}, "leyden.output": 3}


def test_a_method_leaves_its_own_object_out_and_a_wrong_call_is_the_functions_own_error(recorder: Recorder) -> None:
    class Tools:
        @leyden.operation
        def add(self, a: int, b: int) -> int:
            return a + b

    assert Tools().add(1, b=2) == 3
    assert only(recorder).attributes["leyden.input"] == {"a": 1, "b": 2}
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'b'"):
        Tools().add(1)  # type: ignore[call-arg]


def test_arguments_of_any_class_are_kept_as_texts(recorder: Recorder) -> None:
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError("no text")

    circle: list[Any] = []
    circle.append(circle)
    leyden.operation(lambda *values: None)(Odd(), circle, b"\xff")
    assert only(recorder).attributes["leyden.input"] is not None
