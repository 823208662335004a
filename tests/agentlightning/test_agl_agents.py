"""Agents written the recipe's ways: what they are given, what they may answer, and what is kept of what they say."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import leyden.agentlightning as agl
from leyden.errors import LeydenError, UsageError

LLM = agl.LLM(endpoint="http://127.0.0.1:1/v1", model="m")


def run(agent, *inputs, tracer=None, hooks=(), resources=None, mode="train"):
    """Each task by ``step``; the rollouts, and the spans of each."""

    async def scenario():
        store = agl.InMemoryLightningStore()
        runner = agl.LitAgentRunner[Any](tracer or agl.DummyTracer())
        try:
            with runner.run_context(agent=agent, store=store, hooks=hooks, worker_id=0):
                rollouts = [await runner.step(task, resources=resources, mode=mode) for task in inputs]
            return rollouts, [await store.query_spans(rollout.rollout_id, "latest") for rollout in rollouts]
        finally:
            await store.close()

    return asyncio.run(scenario())


def test_a_step_runs_one_task_now():
    @agl.rollout
    async def agent(task: str, prompt_template: agl.PromptTemplate) -> float:
        return float(len(prompt_template.format(any_question=task)))

    template = agl.PromptTemplate(template="You are asked: {any_question}", engine="f-string")
    (rollout,), (spans,) = run(agent, "why?", resources={"main_prompt": template})
    assert rollout.status == "succeeded"
    assert rollout.mode == "train"
    assert rollout.input == "why?"
    assert agl.find_final_reward(spans) == float(len("You are asked: why?"))


def test_a_failing_agent_fails_its_step_with_its_error():
    @agl.rollout
    async def agent(task: str) -> float:
        raise ValueError("no such word")

    with pytest.raises(LeydenError, match="failed: ValueError: no such word"):
        run(agent, "why?")


def test_the_rollout_an_agent_is_given_has_the_recipes_fields():
    seen = []

    @agl.rollout
    def agent(task: str, rollout: agl.Rollout) -> float:
        seen.append((rollout.rollout_id, rollout.attempt.attempt_id, rollout.mode, rollout.status, rollout.input))
        return 1.0

    (rollout,), _ = run(agent, "why?", mode="val")
    assert seen == [(rollout.rollout_id, "1", "val", "running", "why?")]


@pytest.mark.parametrize("decorate", [agl.llm_rollout, agl.llm_rollout(strip_proxy=True)])
def test_both_forms_of_llm_rollout(decorate):
    @decorate
    async def agent(task: str, llm: agl.LLM) -> float:
        return float(llm.model == "m")

    _, (spans,) = run(agent, "x", resources={"main_llm": LLM})
    assert agl.find_final_reward(spans) == 1.0


class Sync(agl.LitAgent[str]):
    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []  # never calls super().__init__()

    def rollout(self, task, resources, rollout):
        self.calls.append((task, threading.current_thread().name))
        return 1.0


class Async(agl.LitAgent[str]):
    async def rollout_async(self, task, resources, rollout):
        return 2.0

    async def validation_rollout_async(self, sample, named, attempted):  # whatever it calls its arguments
        assert named["main_llm"].model == "m"
        return 3.0


def test_a_class_is_an_agent():
    agent = Sync()
    _, spans = run(agent, "a", "b", resources={"main_llm": LLM})
    assert [agl.find_final_reward(some) for some in spans] == [1.0, 1.0]
    assert [task for task, _ in agent.calls] == ["a", "b"]
    assert all(thread != threading.current_thread().name for _, thread in agent.calls)  # it may block


@pytest.mark.parametrize(("mode", "reward"), [("train", 2.0), ("val", 3.0), ("test", 3.0)])
def test_training_and_validation_have_their_own_forms(mode, reward):
    _, (spans,) = run(Async(), "a", resources={"main_llm": LLM}, mode=mode)
    assert agl.find_final_reward(spans) == reward


def test_what_an_agent_emits_is_kept_in_order():
    @agl.rollout
    async def agent(task: str) -> None:
        agl.emit_message("thinking")
        agl.emit_object({"found": [1, 2]})
        agl.emit_annotation({"step": {"name": "first"}})
        agl.emit_exception(ValueError("handled"))
        agl.emit_reward(0.25)
        agl.emit_reward({"style": 0.5, "right": 1.0}, primary_key="right")

    _, (spans,) = run(agent, "x")
    assert [span.sequence_id for span in spans] == list(range(1, len(spans) + 1))
    assert agl.get_message_value(spans[0]) == "thinking"
    assert agl.get_object_value(spans[1]) == {"found": [1, 2]}
    assert spans[2].attributes["step.name"] == "first"
    assert spans[3].attributes["exception.message"] == "handled"
    rewards = agl.find_reward_spans(spans)
    assert [agl.get_reward_value(span) for span in rewards] == [0.25, 1.0]  # none of them twice
    assert agl.get_rewards_from_span(rewards[1]) == [{"name": "right", "value": 1.0}, {"name": "style", "value": 0.5}]
    assert agl.find_final_reward(spans) == 1.0


def test_nothing_is_emitted_outside_a_rollout():
    with pytest.raises(UsageError, match="outside a rollout"):
        agl.emit_reward(1.0)


def test_spans_of_the_opentelemetry_api_are_kept_with_their_attempt():
    from opentelemetry import trace

    @agl.rollout
    async def agent(task: str) -> float:
        with trace.get_tracer("mine").start_as_current_span("outer", attributes={"task": task}):
            await asyncio.sleep(0)
            with trace.get_tracer("mine").start_as_current_span("inner") as span:
                span.add_event("looked")
        return 1.0

    for tracer in (agl.OtelTracer(), agl.AgentOpsTracer()):
        _, both = run(agent, "a", "b", tracer=tracer)
        for task, spans in zip("ab", both, strict=True):
            named = {span.name: span for span in spans}
            assert named["outer"].attributes == {"task": task}
            assert named["inner"].parent_id == named["outer"].span_id
            assert named["outer"].parent_id == named["rollout"].span_id
            assert named["inner"].events[0]["name"] == "looked"
            assert len({named[name].trace_id for name in ("rollout", "outer", "inner")}) == 1
    with trace.get_tracer("mine").start_as_current_span("outside"):
        pass  # belongs to no attempt


def test_hooks_see_a_rollout_from_its_start_to_its_end():
    seen = []

    class Watch(agl.Hook):
        async def on_rollout_start(self, *, agent, runner, rollout):
            seen.append(("rollout_start", rollout.input))

        async def on_trace_start(self, *, agent, runner, tracer, rollout):
            seen.append(("trace_start", type(tracer).__name__))

        async def on_trace_end(self, *, agent, runner, tracer, rollout):
            agl.emit_reward(0.5)  # what a hook says is traced
            seen.append(("trace_end", agent.name.rpartition(".")[2]))

        async def on_rollout_end(self, *, agent, runner, rollout, spans):
            seen.append(("rollout_end", [span.name for span in spans]))

    @agl.rollout
    async def agent(task: str) -> float:
        seen.append(("agent", task))
        return 1.0

    run(agent, "x", hooks=[Watch()])
    assert seen == [
        ("rollout_start", "x"), ("trace_start", "Tracer"), ("agent", "x"), ("trace_end", "agent"),
        ("rollout_end", ["agentlightning.annotation"]),
    ]  # fmt: skip


def test_what_goes_wrong_in_a_hook_is_said_and_fails_nothing(capfd):
    class Broken(agl.Hook):
        async def on_trace_start(self, **_):
            raise RuntimeError("not today")

    @agl.rollout
    async def agent(task: str) -> float:
        return 1.0

    (rollout,), _ = run(agent, "x", hooks=[Broken()])
    assert rollout.status == "succeeded"
    assert "hook Broken.on_trace_start failed (time 1): RuntimeError: not today" in capfd.readouterr().err


def test_a_function_is_an_algorithm_and_gets_what_it_names(tmp_path):
    @agl.rollout
    async def agent(task: str, prompt_template: agl.PromptTemplate) -> float:
        return float(len(prompt_template.format(task=task)))

    @agl.algo
    async def find_best_prompt(*, store: agl.LightningStore, train_dataset) -> str:
        scores = {}
        for prompt in ("{task}", "{task}!!"):
            update = await store.add_resources({"prompt_template": agl.PromptTemplate(template=prompt, engine="f-string")})
            rollout = await store.enqueue_rollout(input=train_dataset[0], resources_id=update.resources_id)
            await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=60.0)
            scores[prompt] = agl.find_final_reward(await store.query_spans(rollout.rollout_id))
        return max(scores, key=scores.__getitem__)

    # The agent is a closure: the runner is a thread of this process.
    assert agl.Trainer(algorithm=find_best_prompt, runs=tmp_path / "runs").fit(agent, ["why"]) == "{task}!!"


def test_dev_runs_a_baseline(tmp_path):
    @agl.rollout
    async def agent(task: float) -> float:
        return task

    report = agl.Trainer(runs=tmp_path / "runs").dev(agent, [1.0, 2.0])
    assert report.mean_reward == 1.5
