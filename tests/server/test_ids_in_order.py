"""Ids begin with the time they were made at, so that what is written together lies together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from storekit import task

from leyden.record import new_id
from leyden.server.sqlstore import SQLStore

PAGE_IN_LOG = 4096 + 24  # bytes


def test_an_id_made_a_millisecond_later_sorts_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for milliseconds in (0, 1, 255, 256, 1_796_000_000_000, 1_796_000_000_001, 2**48 - 1):
        monkeypatch.setattr(time, "time_ns", lambda ms=milliseconds: ms * 1_000_000 + 999_999)
        made.append(new_id())
    assert sorted(made) == made
    assert {len(one) for one in made} == {24} and len(new_id(32)) == 32


def test_of_a_hundred_thousand_of_one_moment_no_two_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    assert len({new_id() for _ in range(100_000)}) == 100_000


def test_a_commit_of_sixteen_touches_few_pages_of_a_large_table(tmp_path: Path) -> None:
    """With ids in no order it was 53 pages for what is queued, and 64 for what is claimed."""

    async def check() -> None:
        async with await SQLStore.open(tmp_path / "store.db", sweep_every=None) as store:
            await store.enqueue([task(n) for n in range(5000)])
            while await store.claim("w", 512):
                pass
        async with await SQLStore.open(tmp_path / "store.db", sweep_every=None) as store:  # the log is empty
            queued = await logged(store.enqueue([task(n) for n in range(16)]))
            claimed = await logged(store.claim("w", 16))
        assert 8 < queued < 32 and 8 < claimed < 32, (queued, claimed)

    async def logged(operation: Coroutine[Any, Any, Sequence[Any]]) -> float:
        log = tmp_path / "store.db-wal"
        before = log.stat().st_size
        assert len(await operation) == 16
        return (log.stat().st_size - before) / PAGE_IN_LOG

    asyncio.run(check())
