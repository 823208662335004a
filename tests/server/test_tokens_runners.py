"""Runner processes of a store that asks for a token: they are given one, and the tools of their agents are not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from storekit import task

from leyden.runners import PoolConfig
from leyden.runners.pool import RunnerPool
from leyden.server.interface import TOKEN
from leyden.server.serving import listening
from leyden.server.sqlstore import SQLStore
from leyden.server.tokens import Scope, mint
from leyden.types import RolloutState

AGENT = """
import subprocess, sys
import leyden

@leyden.rollout
def agent(task):
    tool = subprocess.run([sys.executable, "-c", "import os; print('LEYDEN_TOKEN' in os.environ)"], capture_output=True, text=True)
    return 1.0 if tool.stdout.strip() == "False" else 0.0
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
