"""Runs attempts in this process: claims them in batches, keeps their leases, ends them in batches."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from leyden.environments.attempt import AttemptResult
from leyden.errors import LeydenError
from leyden.server.interface import MAX_CLAIM, MAX_WAIT, AttemptEnd, LocalStore
from leyden.types import Lease

LEASE = 60.0  # seconds
MAX_AHEAD = 256  # attempts claimed before there is a slot for them
MAX_END = 512  # attempts in one commit


@dataclass(frozen=True)
class Ended:
    lease: Lease
    result: AttemptResult
    end: AttemptEnd
    committed: asyncio.Event = field(default_factory=asyncio.Event)


class Worker:
    """``attempt`` runs what was claimed. ``on_committed`` hears of those that are final, once they are in the store.

    So many are claimed ahead as have ended in the last second: an instant agent does not wait for commits, and a slow one holds no more
    than it runs. What has no score keeps its slot until it is committed: whoever hears of it then may stop the others in time.
    """

    def __init__(
        self,
        store: LocalStore,
        attempt: Callable[[Lease], Awaitable[Ended]],
        on_committed: Callable[[Sequence[Ended]], Awaitable[None]],
        concurrency: int,
    ) -> None:
        self._store = store
        self._attempt = attempt
        self._on_committed = on_committed
        self._concurrency = concurrency
        self._id = f"eval-{secrets.token_hex(6)}"
        self._ready: asyncio.Queue[Lease] = asyncio.Queue()
        self._held: dict[str, Lease] = {}  # by rollout, whether it runs or waits for a slot
        self._running: set[str] = set()
        self._dropped: set[str] = set()
        self._ended: deque[Ended] = deque()
        self._some_ended = asyncio.Event()
        self._wanted = asyncio.Event()
        self._closing = False
        self._ends: deque[float] = deque(maxlen=MAX_AHEAD)  # when the last ones ended

    async def run(self, done: asyncio.Event) -> None:
        """Work until ``done``. Cancelled, it stops what runs and hands it back; what has ended is committed before this returns."""
        await self._store.register_worker(self._id, "eval", self._concurrency, os.getpid())
        working = [asyncio.create_task(self._claim()), *(asyncio.create_task(self._work()) for _ in range(self._concurrency))]
        ending, beating = asyncio.create_task(self._end()), asyncio.create_task(self._beat())
        waiting = asyncio.create_task(done.wait())
        ours: list[asyncio.Task[Any]] = [waiting, beating, *working]
        try:
            await asyncio.wait([ending, *ours], return_when=asyncio.FIRST_COMPLETED)
            for task in ours:
                if task.done():
                    task.result()
        finally:
            for task in ours:
                task.cancel()
            await asyncio.wait(ours)
            self._closing = True
            self._some_ended.set()
            await ending
            await self._store.stop_worker(self._id)

    def drop(self, rollout_ids: Collection[str]) -> set[str]:
        """Let those be that do not run yet. Returns them: they can be cancelled."""
        dropped = set(rollout_ids) - self._running
        self._dropped |= dropped
        return dropped

    async def _claim(self) -> None:
        while True:
            ahead, waiting = self._ahead(), self._ready.qsize()
            room = self._concurrency - len(self._running) + ahead - waiting
            if room <= 0 or waiting > ahead // 2:
                self._wanted.clear()
                await self._wanted.wait()
                continue
            for lease in await self._store.claim(self._id, min(room, MAX_CLAIM), MAX_WAIT, LEASE):
                self._held[lease.rollout.id] = lease
                self._ready.put_nowait(lease)

    def _ahead(self) -> int:
        since = time.monotonic() - 1.0
        while self._ends and self._ends[0] < since:
            self._ends.popleft()
        return len(self._ends)

    async def _work(self) -> None:
        while True:
            self._wanted.set()
            lease = await self._ready.get()
            name = lease.rollout.id
            if name in self._dropped:
                self._held.pop(name, None)
                continue
            self._running.add(name)
            try:
                ended = await self._attempt(lease)
                self._ended.append(ended)
            finally:
                self._running.discard(name)
                self._held.pop(name, None)
            self._ends.append(time.monotonic())
            self._some_ended.set()
            if ended.result.score is None:
                await ended.committed.wait()

    async def _end(self) -> None:
        """Commit what has ended, as much at once as has gathered during the last commit."""
        while not self._closing or self._ended:
            await self._some_ended.wait()
            self._some_ended.clear()
            while self._ended:
                batch = [self._ended.popleft() for _ in range(min(len(self._ended), MAX_END))]
                became = await self._store.end_many([ended.end for ended in batch])
                final = [ended for ended, state in zip(batch, became, strict=True) if state is not None and state.final]
                await self._on_committed(final)
                for ended in batch:
                    ended.committed.set()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(LEASE / 4)
            with suppress(LeydenError):  # the store is in this process: what it cannot do now, the commits will report
                await self._store.heartbeat(self._id, [lease.ref for lease in self._held.values()], LEASE)
