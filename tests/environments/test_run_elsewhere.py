"""Runs whose attempts are made by runners on a shared store, and runs whose model's calls go through the proxy."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from model_stub import ModelStub, say
from run_agents import env
from run_room import environment, say_yes

from leyden.environments import Endpoint, Environment, RunCancelled, RunOutput, Task, arun_rollouts, run_rollouts
from leyden.environments.chat import ask
from leyden.environments.scorers import CodeScorer
from leyden.environments.subject import AttemptContext
from leyden.errors import UsageError
from leyden.runners import PoolConfig, RunnerPool, load_agent
from leyden.runners.runner import Runner, RunnerConfig
from leyden.server.client import StoreClient
from leyden.server.serving import listening
from leyden.server.sqlstore import SQLStore
from leyden.types import LLM, Mode, RolloutState

AGENTS = Path(__file__).with_name("run_agents.py")


def told(found: Any) -> list[Any]:
    return [(task.id, one.index, one.run and one.run.content, one.score, str(one.stop_reason), one.error) for task, one in found.attempts()]


def test_runners_elsewhere_do_what_is_done_here(tmp_path: Path) -> None:
    here = run_rollouts(env, k=3, concurrency=8, evals=tmp_path / "here", quiet=True)

    async def there() -> tuple[Any, Any]:
        async with await SQLStore.open(tmp_path / "s.db", sweep_every=0.1) as store, listening(store) as where:
            config = PoolConfig(f"{AGENTS}:env", where.url, n=2, concurrency=4, log_dir=tmp_path, queues=("sums",))
            async with RunnerPool(config):
                found = await arun_rollouts(env, k=3, store=where.url, evals=tmp_path / "there", quiet=True)
                again = await arun_rollouts(env, resume="@latest", evals=tmp_path / "there", quiet=True)
            rollouts = await store.list_rollouts(run_id=found.run_id)
            rewards = await store.list_rewards([rollout.id for rollout in rollouts])
            return (found, again, await store.get_run(found.run_id or "")), (rollouts, rewards)

    (found, again, run), (rollouts, rewards) = asyncio.run(asyncio.wait_for(there(), 120))
    assert told(found) == told(again) == told(here)
    assert [one.n_passed for one in found.task_results] == [3, 0, 1, 1]
    assert [str(one.stop_reason) for one in found.task_results[3].attempts] == ["timeout", "completed", "completed"]
    assert found.errors()["broken"][0] == "ValueError: no 0"

    assert run.state == "succeeded" and len(rollouts) == 12
    first = rollouts[0]
    assert {rollout.queue for rollout in rollouts} == {"sums"}, "runners of others leave them alone"
    assert (first.mode, first.group, first.input) == (Mode.TEST, "easy", {"task": "easy", "input": "1 + 1", "attempt": 0})
    assert first.metadata == {"env": "sums", "step": "eval", "k": 0} and first.episode.environment_class_id == found.env_fingerprint.digest
    assert len({rollout.episode.episode_spec_id for rollout in rollouts}) == 4
    assert sum(rollout.state is RolloutState.FAILED for rollout in rollouts) == 4
    names = {reward.name for reward in rewards}
    assert names == {"reward", "passed", "reward.length"} and {reward.source for reward in rewards} == {env.scorer.digest()}  # type: ignore[attr-defined]
    assert len(rewards) == 3 * found.n_scored


def test_an_environment_is_an_agent_to_runners() -> None:
    assert load_agent(f"{AGENTS}:env").name == "sums"


def test_runners_of_another_version_of_the_environment_refuse_it(tmp_path: Path) -> None:
    mine = environment(say_yes, [Task("a", "yes", id="a")])
    edited = environment(say_yes, [Task("a", "no", id="a")])

    async def scenario() -> Any:
        async with await SQLStore.open(tmp_path / "s.db") as store, listening(store) as where:
            runner = Runner(edited.as_agent(), lambda: StoreClient(where.url), RunnerConfig(queues=("room",)))
            working = asyncio.create_task(runner.run())
            try:
                return await arun_rollouts(mine, k=1, store=where.url, evals=tmp_path, quiet=True)
            finally:
                runner.drain()
                await working

    found = asyncio.run(asyncio.wait_for(scenario(), 60))
    assert found.n_scored == 0 and "is of another room than this runner's" in found.errors()["a"][0]


def test_a_driver_that_went_away_comes_back_to_what_runners_did_meanwhile(tmp_path: Path) -> None:
    async def scenario() -> tuple[Any, Any]:
        async with await SQLStore.open(tmp_path / "s.db", sweep_every=0.1) as store, listening(store) as where:
            driving = asyncio.create_task(arun_rollouts(env, k=2, store=where.url, evals=tmp_path, quiet=True))
            while not (rollouts := await store.list_rollouts()):
                await asyncio.sleep(0.02)
            driving.cancel()
            with pytest.raises(RunCancelled) as gone:
                await driving
            async with RunnerPool(PoolConfig(f"{AGENTS}:env", where.url, n=1, log_dir=tmp_path, queues=("sums",))):
                assert len(await store.wait_rollouts([rollout.id for rollout in rollouts], 20.0)) == 8
            return gone.value, await arun_rollouts(env, resume="@latest", evals=tmp_path, quiet=True)

    gone, found = asyncio.run(asyncio.wait_for(scenario(), 120))
    assert gone.result.n_attempts == 0 and found.n_attempts == 8 and found.run_id == gone.eval_id


def test_calls_of_a_given_model_are_captured_under_their_attempts(tmp_path: Path) -> None:
    async def act(task: Task, index: int, context: AttemptContext) -> RunOutput:
        assert context.llm is not None
        for _ in range(2):
            body = await ask(context.llm, [{"role": "user", "content": task.input}])
        return RunOutput(content=body["choices"][0]["message"]["content"])

    async def kept(found: Any) -> dict[str, Any]:
        async with await SQLStore.open(tmp_path / (found.run_id or "") / "store.db") as store:
            ids = [attempt.rollout_id for _, attempt in found.attempts()]
            return {generation.id: generation for generation in await store.list_generations(ids)}

    with ModelStub(lambda request: say(request["messages"][0]["content"].upper())) as stub:
        llm = LLM(endpoint=stub.url, model="m", api_key="secret-key", sampling_parameters={"temperature": 0.5})
        env = environment(act, [Task("a", "A"), Task("b", "B")], needs_llm=True)
        found = run_rollouts(env, k=2, model=llm, evals=tmp_path, quiet=True)
        assert found.n_passed == 4 and len(stub.requests) == 8
        assert {header["Authorization"] for header in stub.headers} == {"Bearer secret-key"}
    generations = asyncio.run(kept(found))
    for _, attempt in found.attempts():
        assert attempt.run is not None and len(attempt.run.generation_ids) == 2
        assert {generations[name].rollout_id for name in attempt.run.generation_ids} == {attempt.rollout_id}
    assert len({name for _, attempt in found.attempts() if attempt.run for name in attempt.run.generation_ids}) == 8
    with pytest.raises(UsageError, match="needs a model"):
        run_rollouts(env, k=1, evals=tmp_path, quiet=True)


def test_an_endpoint_is_asked_through_the_proxy_only_where_the_model_is_given(tmp_path: Path) -> None:
    with ModelStub(lambda request: say("yes")) as stub:
        llm = LLM(endpoint=stub.url, model="m")
        scorer = CodeScorer(lambda run, expected: run.content == expected)
        env = Environment("ask", (Task("q", "yes"),), scorer, Endpoint(llm))
        own = run_rollouts(env, k=1, evals=tmp_path, quiet=True)
        given = run_rollouts(env, k=1, model=llm, evals=tmp_path, quiet=True)
    ((_, first),), ((_, second),) = own.attempts(), given.attempts()
    assert first.passed and second.passed
    assert first.run and second.run and (len(first.run.generation_ids), len(second.run.generation_ids)) == (0, 1)
