"""The driver's own lease: one process drives a run, and everything it lends out lives only while it does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from leyden.errors import LeaseLost, LeydenError
from leyden.server.interface import Store
from leyden.types import Resource, RunState

LEASE = 60.0  # seconds
BEAT = 15.0


class Driver:
    """Holds a run in the store. ``epoch`` fences it: after another driver took over, nothing of this one goes on."""

    def __init__(self, store: Store, run_id: str, epoch: int) -> None:
        self.run_id = run_id
        self.epoch = epoch
        self.summary: dict[str, Any] | None = None  # written to the run as it ends
        self._store = store
        self._lent: set[str] = set()

    async def check(self) -> None:
        """Call it right before what only one driver may do. Raises ``LeaseLost`` if another has taken the run over."""
        await self._store.keep_run(self.run_id, self.epoch, LEASE)

    async def lend(self, resources: Mapping[str, Resource]) -> str:
        """Publish resources that live as long as this driver beats; returns their id."""
        lent = await self._store.add_resources(dict(resources), lease_seconds=LEASE)
        self._lent.add(lent.id)
        return lent.id

    async def take_back(self, resources_id: str) -> None:
        """Nothing is claimed for them any more."""
        self._lent.discard(resources_id)
        await self._store.retire_resources(resources_id)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT)
            await self.check()
            for resources_id in list(self._lent):
                try:
                    await self._store.keep_resources(resources_id, LEASE)
                except LeaseLost:
                    if resources_id in self._lent:  # else it was taken back while we asked
                        raise


async def end_workers(store: Store) -> None:
    """Give back at once what the runners of a former driver held, instead of after their leases.

    Only for a store that nobody else uses: its runners have ended with their driver.
    """
    for worker in await store.list_workers():
        if worker.stopped_at is None:
            await store.stop_worker(worker.id)


@asynccontextmanager
async def driving(store: Store, run_id: str, config: dict[str, Any], take_over: bool = False) -> AsyncIterator[Driver]:
    """Start the run, or go on with it, and beat for it; at the end, say how it ended.

    What is still queued then stays queued, under resources that nobody claims for: the run can go on. ``take_over``: do not wait until
    the lease of a former driver has run out; for whoever knows that it is dead. Raises ``Conflict`` if another driver has the run,
    ``LeaseLost`` as soon as one takes it over.
    """
    run = await store.start_run(run_id, config, LEASE, take_over)
    driver = Driver(store, run_id, run.epoch)
    state = RunState.FAILED
    try:
        with one_error():
            async with asyncio.TaskGroup() as group:
                beat = group.create_task(driver._beat())
                yield driver
                beat.cancel()
        state = RunState.SUCCEEDED
    except asyncio.CancelledError:
        state = RunState.CANCELLED
        raise
    finally:
        await _end(store, driver, state)


async def _end(store: Store, driver: Driver, state: RunState) -> None:
    try:
        for resources_id in list(driver._lent):
            await driver.take_back(resources_id)
        await store.finish_run(driver.run_id, driver.epoch, state, driver.summary)
    except LeydenError:
        if state == RunState.SUCCEEDED:
            raise
        # The run already ends with an error, and this one is most likely its consequence: the store has gone.


@contextmanager
def one_error() -> Iterator[None]:
    """The first of the errors that a task group gathered, instead of the group."""
    try:
        yield
    except BaseExceptionGroup as several:
        error: BaseException = several
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None
