"""Stores that this process holds: one on a temporary file, and its service on a port."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from leyden.agentlightning.store import LightningStore
from leyden.errors import UsageError
from leyden.server.serving import listening
from leyden.server.sqlstore import SQLStore

T = TypeVar("T")


class InMemoryLightningStore(LightningStore):
    """A store for this process's lifetime: SQLite on a temporary file, in a thread of its own, at a ``url`` of this machine.

    Unlike a store in memory it can be handed to other processes, and what it acknowledged is on disk.
    """

    def __init__(self) -> None:
        self._host = _Host()
        super().__init__(self._host.call(self._host.open()))

    async def close(self) -> None:
        """End the store; what it held is gone. Without this call it lives as long as the process."""
        await super().close()
        await asyncio.to_thread(self._host.close)


class LightningStoreServer(LightningStore):
    """An ``InMemoryLightningStore`` at a port of your choice. ``await start()``; ``endpoint`` is its URL.

    For a store that outlives this process: ``leyden store --port 4747 --database FILE``.
    """

    def __init__(self, store: InMemoryLightningStore, host: str = "127.0.0.1", port: int = 4747) -> None:
        if not isinstance(store, InMemoryLightningStore):
            raise UsageError("this store is served already", f"use it where it is: {store.url}")
        super().__init__(store.url)
        self.store = store
        self._host_name, self._port = host, port

    @property
    def endpoint(self) -> str:
        return self.url

    async def start(self) -> None:
        """Raises ``UsageError`` for a port that is taken."""
        host = self.store._host
        self.url = await asyncio.to_thread(host.call, host.listen(self._host_name, self._port))

    async def stop(self) -> None:
        """Close our own connections. The port is served as long as the store lives: closing one door would end the others' waiting."""
        await self.close()
        self.url = self.store.url


class _Host:
    """A daemon thread with an event loop, the store in it, and what it listens on."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._store: SQLStore | None = None
        self._doors = AsyncExitStack()
        self._thread = threading.Thread(target=self._loop.run_forever, name="store", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def open(self) -> str:
        self._store = await SQLStore.open()
        return await self.listen("127.0.0.1", 0)

    async def listen(self, host: str, port: int) -> str:
        assert self._store is not None
        return (await self._doors.enter_async_context(listening(self._store, host, port))).url

    def close(self) -> None:
        self.call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        await self._doors.aclose()
        if self._store is not None:
            await self._store.close()
