"""Runner processes of a store that asks for a token: they are given one, and the tools of their agents are not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from storekit import task

from leyden.algorithm.baseline import Baseline
from leyden.runners import PoolConfig
from leyden.runners.agent import Agent
from leyden.runners.loading import load_agent
from leyden.runners.pool import RunnerPool
from leyden.server.client import StoreClient
from leyden.server.interface import TOKEN
from leyden.server.serving import listening
from leyden.server.sqlstore import SQLStore
from leyden.server.tokens import NewToken, Scope, mint
from leyden.trainer import Trainer
from leyden.types import RolloutState

AGENT = """
import subprocess, sys
import leyden, psutil

@leyden.rollout
def agent(task):
    tool = subprocess.run([sys.executable, "-c", "import os; print('LEYDEN_TOKEN' in os.environ)"], capture_output=True, text=True)
    words = [word for process in (psutil.Process(), psutil.Process().parent()) for word in process.cmdline()]
    return 1.0 if tool.stdout.strip() == "False" and not any("sk-leyden-" in word for word in words) else 0.0
"""


def test_runners_show_their_token_and_their_agents_tools_have_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    new, text = mint("runners", (Scope.CLAIM, Scope.INGEST))
    monkeypatch.setenv(TOKEN, text)

    async def check() -> None:
        async with await SQLStore.open() as store, listening(store) as where:
            await store.add_token(new)
            (rollout,) = await store.enqueue([task()])
            config = PoolConfig(f"{tmp_path}/agent.py:agent", where.url, n=1, concurrency=1, log_dir=tmp_path)
            async with RunnerPool(config):
                (ended,) = await asyncio.wait_for(store.wait_rollouts([rollout.id]), 30)
            assert ended.state is RolloutState.SUCCEEDED, (tmp_path / "runner-1.log").read_text()
            assert [reward.value for reward in await store.list_rewards([rollout.id])] == [1.0]

    asyncio.run(check())


@contextmanager
def serving(new: NewToken) -> Iterator[str]:
    """A store that knows one token, in a loop of its own."""
    urls: list[str] = []
    ready, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async with await SQLStore.open() as store, listening(store) as where:
            await store.add_token(new)
            urls.append(where.url)
            ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(30)
        yield urls[0]
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("inside", [False, True])
def test_a_trainers_runners_show_the_token_of_the_client_it_was_handed(
    inside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``inside``: runners that are a thread of the trainer's process, for an agent that no other can find."""
    name = f"{tmp_path}/tokens_agent_{inside}.py:agent"  # a module's name: loaded once in this process
    Path(name.removesuffix(":agent")).write_text(AGENT)
    monkeypatch.delenv(TOKEN, raising=False)
    new, text = mint("trainer", (Scope.ENQUEUE, Scope.CLAIM, Scope.INGEST, Scope.READ, Scope.RESOURCES))
    with serving(new) as url:
        trainer = Trainer(algorithm=Baseline(), store=StoreClient(url, token=text), n_runners=1, runs=tmp_path / "runs")
        result = trainer.fit(Agent(load_agent(name).function) if inside else name, [{"n": 1}])
    assert result.mean_reward == 1.0
