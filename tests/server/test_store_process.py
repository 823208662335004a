"""The store as a process of its own: killed under load, stopped in good order, refused twice on one file."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from leyden.errors import LeydenError
from leyden.server.client import StoreClient
from leyden.server.sqlstore import SQLStore
from leyden.types import NewRollout, Reward, RolloutConfig, RolloutState

KILLS = 5
ACKS_BEFORE_A_KILL = 40


async def start_store(directory: Path, port: int = 0, database: str = "store.db") -> tuple[asyncio.subprocess.Process, dict[str, Any]]:
    ready = directory / "ready.json"
    ready.unlink(missing_ok=True)
    code = f"from leyden.cli.store import run; run(port={port}, database={str(directory / database)!r}, ready_file={str(ready)!r})"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    line = (await asyncio.wait_for(process.stderr.readline(), 60)).decode()
    assert line.startswith("store: http://127.0.0.1:"), line
    return process, json.loads(ready.read_text())


class Load:
    """Clients that queue, claim and complete through every kill, and write down what was acknowledged."""

    def __init__(self, url: str) -> None:
        self.store = StoreClient(url, deadline=60)
        self.queued: set[str] = set()
        self.completed: dict[str, float] = {}
        self.stopping = False

    @property
    def acks(self) -> int:
        return len(self.queued) + len(self.completed)

    async def produce(self) -> None:
        while not self.stopping:
            made = await self.store.enqueue([NewRollout(input=len(self.queued), run_id="run", config=RolloutConfig(max_attempts=50))])
            self.queued.update(rollout.id for rollout in made)

    async def consume(self, worker: str) -> None:
        while not self.stopping:
            for lease in await self.store.claim(worker, 2, wait=0.5):
                value = float(len(self.completed))
                with suppress(LeydenError):  # a lease lost over a restart is another's now
                    await self.store.complete(lease.ref, [Reward(value=value)])
                    assert lease.rollout.id not in self.completed, "completed twice"
                    self.completed[lease.rollout.id] = value

    async def until_acks(self, n: int) -> None:
        while self.acks < n:
            await asyncio.sleep(0.005)


def test_nothing_acknowledged_is_lost_when_the_store_is_killed(tmp_path: Path) -> None:
    async def check() -> None:
        process, where = await start_store(tmp_path)
        load = Load(where["url"])
        tasks = [asyncio.create_task(load.produce()) for _ in range(2)] + [asyncio.create_task(load.consume(f"w{i}")) for i in range(3)]
        for _ in range(KILLS):
            await load.until_acks(load.acks + ACKS_BEFORE_A_KILL)
            process.kill()
            assert await process.wait() == -signal.SIGKILL
            process, _ = await start_store(tmp_path, where["port"])
        await load.until_acks(load.acks + ACKS_BEFORE_A_KILL)
        load.stopping = True
        await asyncio.gather(*tasks)
        await load.store.close()
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 143

        async with await SQLStore.open(tmp_path / "store.db") as store:
            rollouts = {rollout.id: rollout for rollout in await store.list_rollouts(limit=10_000)}
            assert load.queued == set(rollouts), "every acknowledged one is there, and a repeated request made no second one"
            for rollout_id, value in load.completed.items():
                assert rollouts[rollout_id].state is RolloutState.SUCCEEDED
                assert [reward.value for reward in await store.list_rewards([rollout_id])] == [value]
            counts = await store.count("run")
            assert counts.total == len(rollouts)
            assert counts.succeeded == sum(rollout.state is RolloutState.SUCCEEDED for rollout in rollouts.values())

    asyncio.run(asyncio.wait_for(check(), 200))


def test_a_stop_answers_long_polls_and_ends_the_process(tmp_path: Path) -> None:
    async def check() -> None:
        process, where = await start_store(tmp_path)
        assert where["pid"] == process.pid and where["database"].endswith("store.db")
        async with StoreClient(where["url"]) as store:
            await store.register_worker("w", "runner", 1)
            waiting = asyncio.create_task(store.claim("w", wait=20))
            await store.list_workers()  # on another connection, after the claim was sent
            process.send_signal(signal.SIGINT)
            assert await waiting == []
        assert await process.wait() == 130
        assert process.stderr is not None and await process.stderr.read() == b""

    asyncio.run(asyncio.wait_for(check(), 100))


def test_a_second_process_on_the_same_file_is_refused(tmp_path: Path) -> None:
    async def check() -> None:
        process, where = await start_store(tmp_path)
        code = (
            "from leyden.cli.store import run; from leyden.errors import UsageError\n"
            f"try: run(port=0, database={where['database']!r})\n"
            "except UsageError as error: print(error.message)"
        )
        second = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, env=dict(os.environ))
        said, _ = await second.communicate()
        assert f"store.db is already open in process {process.pid}" in said.decode()
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 143

    asyncio.run(asyncio.wait_for(check(), 100))
