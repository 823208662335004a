"""The store dies while agents trace, and its runner too: what was said is stored when they are back, each thing once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from store_process import StoreProcess, until

from leyden.runners import PoolConfig, RunnerPool
from leyden.runners.spool import DIRECTORY
from leyden.server.client import StoreClient
from leyden.types import NewRollout, Rollout, RolloutState, Span

AGENT = f"{Path(__file__).with_name('spans_agent.py')}:talk"
LIMIT = 120.0  # seconds until a test that hangs is told so
AGENTS = 4
N = 50  # things each says before, during and after


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(DIRECTORY, str(tmp_path / "spool"))
    return tmp_path / "spool"


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), LIMIT))


def segments(spool: Path) -> list[Path]:
    """Those in their places: a runner's directory gets its name when it is whole, and ``rglob`` stumbles over one that is just renamed."""
    found = [Path(place, name) for place, _, names in os.walk(spool) for name in names if name.endswith(".jsonl")]
    return [path for path in found if not path.parent.name.startswith("new-")]


def kept(spool: Path) -> list[bytes]:
    return [row for path in segments(spool) for row in path.read_bytes().splitlines()]


async def lose_the_store(store: StoreProcess, place: Path, spool: Path) -> list[Rollout]:
    """Rollouts whose agents have said two thirds, the second of them into a store that was killed; that is on the disk now."""
    async with StoreClient(store.url) as client:
        items = await client.enqueue([NewRollout(input={"dir": str(place), "value": i, "n": N}) for i in range(AGENTS)])
        await until(lambda: len(list(place.glob("before-*"))) == AGENTS, "all have begun")
        while sum([len(said(await client.list_spans(item.id, 1))) for item in items]) < AGENTS * N:
            await asyncio.sleep(0.02)  # sent while their attempts run
    store.kill()
    (place / "away").touch()
    await until(lambda: len(list(place.glob("during-*"))) == AGENTS, "all have said more")
    await until(lambda: len(kept(spool)) == AGENTS * N, f"the spool has {AGENTS * N}, not {len(kept(spool))}")
    assert b"sk-0123" not in b"".join(kept(spool))
    return items


def said(spans: list[Span]) -> list[tuple[int, str, int]]:
    about = [span.attributes for span in spans if span.name == "leyden.annotation"]
    return sorted((note["value"], note["when"], note["n"]) for note in about)


def all_of(value: int, *times: str) -> list[tuple[int, str, int]]:
    return sorted((value, when, n) for when in times for n in range(N))


def test_what_is_said_while_the_store_is_dead_is_stored_when_it_is_back_before_its_attempt_ends(tmp_path: Path, spool: Path) -> None:
    async def scenario() -> None:
        async with (
            StoreProcess(tmp_path, str(tmp_path / "store.db")) as store,
            RunnerPool(PoolConfig(AGENT, store.url, n=1, log_dir=tmp_path)),
        ):
            items = await lose_the_store(store, tmp_path, spool)
            (tmp_path / "go").touch()
            await store.start()
            async with StoreClient(store.url) as client:
                while len(await client.wait_rollouts([item.id for item in items])) < AGENTS:
                    pass
                for item in await client.list_rollouts(ids=[item.id for item in items]):
                    assert (item.state, item.attempt) == (RolloutState.SUCCEEDED, 1)
                    spans = await client.list_spans(item.id)
                    assert said(spans) == all_of(item.input["value"], "before", "away", "after")
                    assert not [span for span in spans if span.late]
            await until(lambda: not segments(spool), "the spool is empty")

    run(scenario)
    log = next(tmp_path.glob("runner-*.log")).read_text()
    assert "keeping them in" in log and "the store has the" in log


def test_what_a_runner_could_not_send_before_it_was_killed_is_sent_by_the_next_one(tmp_path: Path, spool: Path) -> None:
    async def scenario() -> None:
        async with (
            StoreProcess(tmp_path, str(tmp_path / "store.db")) as store,
            RunnerPool(PoolConfig(AGENT, store.url, n=1, log_dir=tmp_path)) as runners,
        ):
            items = await lose_the_store(store, tmp_path, spool)
            (victim,) = runners.pids
            os.kill(victim, signal.SIGKILL)
            await store.start()  # its pool hands back what it held, and starts another
            async with StoreClient(store.url) as client:
                for item in items:
                    while len(said(await client.list_spans(item.id, 1))) < 2 * N:
                        await asyncio.sleep(0.02)
                    assert said(await client.list_spans(item.id, 1)) == all_of(item.input["value"], "before", "away")
                await until(lambda: not segments(spool), "the spool is empty")
                await client.cancel([item.id for item in items])
            (tmp_path / "go").touch()

    run(scenario)
