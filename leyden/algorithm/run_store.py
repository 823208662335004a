"""Where what a run collected is to be read: in its directory, or in a store elsewhere."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from leyden.algorithm.sft.rundir import RunDir
from leyden.errors import NotFound, UsageError
from leyden.server.client import StoreClient
from leyden.server.interface import Store
from leyden.server.sqlstore import SQLStore


@asynccontextmanager
async def store_of_run(run: RunDir, url: str | None = None) -> AsyncIterator[Store]:
    """The store that holds a run's rollouts: the one at ``url``, else its own, else the one elsewhere that it ran with.

    Raises ``NotFound`` where none is known.
    """
    if url := url or run.config.get("store"):
        async with StoreClient(url) as client:
            yield client
    elif (run.path / "store.db").is_file():
        async with store_in(run.path) as store:
            yield store
    else:
        hint = "name the store that holds its rollouts: --store URL"
        raise NotFound(f"run {run.id} has no store any more: {run.path / 'store.db'} is gone", hint)


@asynccontextmanager
async def store_in(directory: Path) -> AsyncIterator[Store]:
    """The store in the directory of a run or an eval: its file (no lease runs out while it is read), or, while the run goes on, the process
    that has it open."""
    try:
        opened = await SQLStore.open(directory / "store.db", sweep_every=None)
    except UsageError:
        if not (ready := directory / "store.json").is_file():
            raise
        async with StoreClient(json.loads(ready.read_text())["url"]) as client:
            yield client
        return
    async with opened:
        yield opened
