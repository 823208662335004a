"""Runner processes, killed and interrupted, against a real store over HTTP."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from leyden import cli
from leyden.errors import Unavailable, UsageError
from leyden.process import MARKER, find_by_marker
from leyden.runners import PoolConfig, RunnerPool, pool
from leyden.server.serving import listening
from leyden.server.sqlstore import SQLStore
from leyden.types import LLM, AttemptState, FailureKind, NewRollout, Rollout, RolloutConfig, RolloutState

LIMIT = 150.0  # seconds until a test that hangs is told so
ROOT = Path(__file__).parents[2]
AGENTS = Path(__file__).with_name("agents_for_tests.py")
MATH = ROOT / "examples" / "math"

sys.path.insert(0, str(ROOT / "tests" / "examples"))
from scripted_llm import ScriptedLLM, call  # noqa: E402


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), LIMIT))


@asynccontextmanager
async def a_store() -> AsyncIterator[tuple[SQLStore, str]]:
    async with await SQLStore.open(sweep_every=0.1) as store, listening(store) as where:
        yield store, where.url


def config(url: str, agent: str, n: int = 1, **more: Any) -> PoolConfig:
    return PoolConfig(agent=f"{AGENTS}:{agent}", store_url=url, n=n, **more)


def new(*inputs: Any, **more: Any) -> list[NewRollout]:
    return [NewRollout(input=item, config=RolloutConfig(retry_delay=0.0, **more)) for item in inputs]


async def finals(store: SQLStore, rollouts: list[Rollout]) -> list[Rollout]:
    ids = [item.id for item in rollouts]
    while len(await store.wait_rollouts(ids, wait=20.0)) < len(ids):
        pass
    return await store.list_rollouts(ids=ids)


async def until(condition: Callable[[], Any]) -> Any:
    while not (found := condition()):
        await asyncio.sleep(0.02)
    return found


def started(place: Path) -> list[int]:
    """Process ids of the agents that have begun."""
    return [int(path.name.split("-")[1]) for path in place.glob("started-*")]


def test_what_a_killed_runner_held_is_done_again_by_another_and_counts_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_store() as (store, url), RunnerPool(config(url, "meet", n=2, concurrency=4, lease_seconds=2.0)) as runners:
            items = await store.enqueue(new(*({"dir": str(tmp_path), "value": i} for i in range(4))))
            pids = await until(lambda: len(started(tmp_path)) >= 4 and started(tmp_path))
            victim = pids[0]
            assert victim in runners.pids
            os.kill(victim, signal.SIGKILL)
            (tmp_path / "go").touch()
            done = await finals(store, items)
            assert all(item.state is RolloutState.SUCCEEDED for item in done)
            rewards = await store.list_rewards([item.id for item in items])
            assert sorted(reward.value for reward in rewards) == [0.0, 1.0, 2.0, 3.0]
            again = [item for item in done if item.attempt == 2]
            assert len(again) == pids.count(victim)
            for item in again:
                first, second = await store.list_attempts(item.id)
                unharmed = AttemptState.RELEASED if len(again) > 1 else AttemptState.LOST  # what it did alone may have killed it
                assert (first.state, second.state) == (unharmed, AttemptState.SUCCEEDED)
                assert first.worker_id != second.worker_id
            await until(lambda: len(runners.pids) == 2 and victim not in runners.pids)  # replaced

    run(scenario)


def test_a_runner_with_an_agent_that_cannot_be_stopped_is_replaced_and_the_others_start_anew(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "MAX_DEATHS", 1)  # each such end has ended an attempt: it is no sign that runners cannot live

    async def scenario() -> None:
        async with a_store() as (store, url), RunnerPool(config(url, "stubborn")):
            tasks = [{"dir": str(tmp_path), "value": i, "stubborn": i == 0} for i in range(3)]
            (stubborn,) = await store.enqueue(new(tasks[0], attempt_timeout=3.0))
            others = await store.enqueue(new(*tasks[1:]))
            first = await until(lambda: len(started(tmp_path)) == 3 and set(started(tmp_path)))
            await until(lambda: len(set(started(tmp_path))) == 2)  # another process took them over
            (tmp_path / "go").touch()
            done = await finals(store, others)
            assert all(item.state is RolloutState.SUCCEEDED for item in done)
            attempts = await store.list_attempts(others[0].id)
            assert [attempt.state for attempt in attempts] == [AttemptState.RELEASED, AttemptState.SUCCEEDED]
            (end,) = await store.list_attempts(stubborn.id)
            assert end.state is AttemptState.TIMED_OUT
            assert len(first) == 1

    run(scenario)
    said = capfd.readouterr().err
    assert "cannot be stopped" in said and "runner-1 ended (an agent could not be stopped); starting another" in said


def test_a_runner_that_keeps_dying_ends_the_pool(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(pool, "MAX_DEATHS", 2)
    doomed = "import os, threading\nthreading.Timer(0.2, os._exit, [9]).start()\nasync def agent(task): ...\n"
    (tmp_path / "doomed.py").write_text(doomed)

    async def scenario() -> None:
        async with a_store() as (_, url):
            with pytest.raises(Unavailable, match=r"runner-1 died 2 times in a row \(exit status 9\)"):
                await RunnerPool(PoolConfig(agent=f"{tmp_path / 'doomed.py'}:agent", store_url=url, n=1)).run()

    run(scenario)
    assert "runner-1 ended (exit status 9); starting another in 0.5 s" in capfd.readouterr().err


def test_an_agent_that_kills_its_runner_loses_its_attempts_and_the_others_beside_it_none(capfd: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> None:
        async with a_store() as (store, url), RunnerPool(config(url, "die", concurrency=4)):
            killers = await store.enqueue(new(*({"die": True} for _ in range(2)), max_lost=2))
            others = await store.enqueue(new(*({"die": False} for _ in range(6)), max_attempts=1))
            ended = await finals(store, killers)
            assert [(item.state, item.failure) for item in ended] == [(RolloutState.FAILED, FailureKind.LOST)] * 2
            assert all("its runner died: exit status 9" in str(item.error) for item in ended)
            assert all(item.state is RolloutState.SUCCEEDED for item in await finals(store, others))
            for item in ended:
                states = [attempt.state for attempt in await store.list_attempts(item.id)]
                assert states.count(AttemptState.LOST) == 2 and set(states) <= {AttemptState.LOST, AttemptState.RELEASED}

    run(scenario)
    assert "runner-1 ended (exit status 9) with rollout" in capfd.readouterr().err


def test_a_named_variable_reaches_the_agents_although_it_looks_like_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOL_API_KEY", "0.25")
    monkeypatch.setenv("OTHER_API_KEY", "0.5")

    async def scenario() -> None:
        async with a_store() as (store, url), RunnerPool(config(url, "keys", pass_env=("TOOL_API_KEY",))):
            (item,) = await finals(store, await store.enqueue(new({})))
            assert {r.name: r.value for r in await store.list_rewards([item.id])} == {"TOOL_API_KEY": 0.25, "OTHER_API_KEY": 0.0}

    run(scenario)
    with pytest.raises(UsageError, match="NO_SUCH_KEY"):
        config("http://127.0.0.1:9", "keys", pass_env=("NO_SUCH_KEY",))


def test_a_runner_whose_agent_blocks_it_is_replaced_when_the_attempt_is_over(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> None:
        async with a_store() as (store, url), RunnerPool(config(url, "block", concurrency=1, lease_seconds=2.0)):
            blocking, other = await store.enqueue(new(*({"dir": str(tmp_path), "value": i} for i in range(2)), attempt_timeout=1.0))
            blocked, done = await finals(store, [blocking, other])
            assert blocked.failure is FailureKind.TIMEOUT and done.state is RolloutState.SUCCEEDED

    run(scenario)
    assert "an agent blocks the event loop" in capfd.readouterr().err


def test_a_runner_whose_agent_blocks_it_is_killed_after_the_second_interrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "HAND_BACK", 0.5)
    marker = secrets.token_hex(6)

    async def scenario() -> None:
        async with a_store() as (store, url):
            runners = RunnerPool(config(url, "block"), marker)
            running = asyncio.create_task(runners.run())
            await store.enqueue(new({"dir": str(tmp_path), "value": 0}))
            await until(lambda: started(tmp_path))
            runners.signal(signal.SIGINT)
            runners.signal(signal.SIGINT)
            await asyncio.wait_for(running, 20)
        assert not find_by_marker(marker)

    run(scenario)


@pytest.mark.parametrize("sig", ["SIGTERM", "SIGINT"])
def test_a_runner_that_is_stopped_while_it_starts_ends(sig: str, tmp_path: Path) -> None:
    source = f"""
import os, signal, sys
class AtTheClient:  # what the runner imports first inside its event loop
    def find_spec(self, name, path=None, target=None):
        if name == "leyden.server.client":
            os.kill(os.getpid(), signal.{sig})
sys.meta_path.insert(0, AtTheClient())
async def agent(task): ...
"""
    (tmp_path / "stopped_early.py").write_text(source)

    async def scenario() -> None:
        async with a_store() as (store, url):
            await RunnerPool(PoolConfig(agent=f"{tmp_path / 'stopped_early.py'}:agent", store_url=url, n=1)).run()
            assert await store.list_workers() == []

    run(scenario)


@pytest.mark.parametrize("spec", ["no_such_module:agent", f"{AGENTS}:anser"])
def test_an_agent_that_cannot_be_loaded_is_one_error_and_leaves_nothing_behind(spec: str) -> None:
    marker = secrets.token_hex(6)

    async def scenario() -> None:
        async with a_store() as (_, url):
            with pytest.raises(UsageError) as raised:
                async with RunnerPool(PoolConfig(agent=spec, store_url=url, n=2), marker=marker):
                    pytest.fail("it was started")
            assert raised.value.hint

    run(scenario)
    assert not find_by_marker(marker)


# -- the example's program, as a person starts it -----------------------------------------------------------------------------


@asynccontextmanager
async def math_runners(url: str, *args: str) -> AsyncIterator[tuple[subprocess.Popen[str], str]]:
    """``python examples/math/runners.py`` and the marker of all it starts."""
    marker = secrets.token_hex(6)
    process = subprocess.Popen(  # noqa: ASYNC220 (it only starts it)
        [sys.executable, str(MATH / "runners.py"), "--store", url, *args],
        env=os.environ | {MARKER: marker, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process, marker
    finally:
        process.kill()
        process.wait()


def calculators(marker: str) -> list[psutil.Process]:
    return [process for process in find_by_marker(marker) if "mcp_server_calculator" in " ".join(process.cmdline())]


async def a_stuck_calculator(llm: ScriptedLLM, marker: str) -> psutil.Process:
    """The calculator, busy with what it was asked: one that waits uses no time."""
    await until(lambda: llm.requests)
    (process,) = calculators(marker)
    before = process.cpu_times().user
    await until(lambda: process.cpu_times().user > before + 0.5)
    return process


async def math_rollouts(store: SQLStore, llm: ScriptedLLM, n: int, question: str = "What is 2 + {i}?") -> list[Rollout]:
    await store.add_resources({"llm": LLM(endpoint=llm.url, model="m", sampling_parameters={"temperature": 1.0})})
    return await store.enqueue(new(*({"input": question.format(i=i), "target": 2 + i} for i in range(n))))


def test_two_math_runners_are_small_have_one_calculator_each_and_leave_nothing_behind() -> None:
    async def scenario() -> None:
        with ScriptedLLM() as llm:
            async with a_store() as (store, url), math_runners(url, "-n", "2", "--concurrency", "4") as (process, marker):
                while len(await store.list_workers()) < 2:
                    await asyncio.sleep(0.02)
                idle = [p.memory_info().rss / 1e6 for p in find_by_marker(marker) if "leyden.runners.process" in p.cmdline()]
                print("idle math runners:", *(f"{megabytes:.0f} MB" for megabytes in idle))
                assert len(idle) == 2 and max(idle) < 150
                while len(calculators(marker)) < 2:  # until both have had some
                    done = await finals(store, await math_rollouts(store, llm, 16))
                    assert all(item.state is RolloutState.SUCCEEDED for item in done)
                    rewards = await store.list_rewards([item.id for item in done])
                    assert [reward.value for reward in rewards] == [1.0] * 16
                assert len(calculators(marker)) == 2
                process.send_signal(signal.SIGINT)
                _, said = await asyncio.to_thread(process.communicate)
                assert process.returncode == 130 and "finishing what is held; Ctrl+C again" in said and "Traceback" not in said
                assert not find_by_marker(marker)

    run(scenario)


def test_the_first_interrupt_finishes_and_the_second_hands_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        answers = asyncio.Event()
        loop = asyncio.get_running_loop()

        def never(messages: list[dict[str, Any]]) -> int:
            asyncio.run_coroutine_threadsafe(answers.wait(), loop).result(LIMIT)
            return 503

        with ScriptedLLM(never) as llm:
            async with a_store() as (store, url), math_runners(url, "-n", "1") as (process, marker):
                items = await math_rollouts(store, llm, 3)
                await until(lambda: len(llm.requests) == 3)
                process.send_signal(signal.SIGINT)
                assert process.stderr
                while "finishing 3 rollouts" not in await asyncio.to_thread(process.stderr.readline):
                    pass
                process.send_signal(signal.SIGINT)
                _, said = await asyncio.to_thread(process.communicate)
                assert process.returncode == 130 and "handing back" in said
                assert all(item.state is RolloutState.QUEUED for item in await store.list_rollouts(ids=[item.id for item in items]))
                assert not find_by_marker(marker)
                answers.set()

    run(scenario)


def test_killed_outright_the_program_leaves_no_runner_and_no_calculator_not_even_a_stuck_one() -> None:
    async def scenario() -> None:
        with ScriptedLLM(lambda messages: call("9**9**9")) as llm:
            async with a_store() as (store, url), math_runners(url, "-n", "1") as (process, marker):
                await math_rollouts(store, llm, 1)
                await a_stuck_calculator(llm, marker)
                process.kill()
                await until(lambda: not find_by_marker(marker))

    run(scenario)


def test_a_runner_killed_outright_leaves_no_calculator_not_even_a_stuck_one() -> None:
    async def scenario() -> None:
        marker = secrets.token_hex(6)
        with ScriptedLLM(lambda messages: call("9**9**9")) as llm:
            async with a_store() as (store, url):
                pool_config = PoolConfig(agent=f"{MATH / 'math_agent.py'}:math_agent", store_url=url, n=1)
                async with RunnerPool(pool_config, marker=marker) as runners:
                    await math_rollouts(store, llm, 1)
                    stuck = await a_stuck_calculator(llm, marker)
                    os.kill(runners.pids[0], signal.SIGKILL)
                    await until(lambda: not stuck.is_running())
        assert not find_by_marker(marker)

    run(scenario)


def test_a_store_that_does_not_answer_is_two_lines_and_status_2(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["runners", f"{AGENTS}:answer", "--store", "http://127.0.0.1:9"]) == 2
    error, hint = capfd.readouterr().err.strip().splitlines()
    assert error.startswith("error: no store answers at http://127.0.0.1:9") and hint.startswith("hint: start one: store")


def test_numbers_that_make_no_sense_are_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["runners", f"{AGENTS}:answer", "-n", "0"]) == 2
    assert "at least one runner" in capfd.readouterr().err
