"""The store itself, on a database in this process."""

from __future__ import annotations

import asyncio
import logging
import random
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack, cast

from leyden.errors import InvalidRequest, LeaseLost, LeydenError
from leyden.server.capture import Capture
from leyden.server.checks import MAX_LEASE, check_id, check_range, checked_lease
from leyden.server.clock import MonotoneClock, microseconds
from leyden.server.database import Database
from leyden.server.databases import open_database
from leyden.server.executor import Executor
from leyden.server.intake import Intake
from leyden.server.interface import MAX_CLAIM, MAX_WAIT, new_key, with_keys
from leyden.server.operating import Operating
from leyden.server.operations import attempts as attempt_ops
from leyden.server.operations import claims as claim_ops
from leyden.server.operations import counters as counter_ops
from leyden.server.operations import leases as lease_ops
from leyden.server.operations import listing as listing_ops
from leyden.server.operations import prune as prune_ops
from leyden.server.operations import queues as queue_ops
from leyden.server.operations import resources as resource_ops
from leyden.server.operations import rollouts as rollout_ops
from leyden.server.operations import runs as run_ops
from leyden.server.operations import workers as worker_ops
from leyden.server.operations.claims import ClaimRequest
from leyden.server.operations.leases import DEFAULT_LEASE
from leyden.server.operations.transitions import CHUNK, rollouts_by_id
from leyden.server.queries import Prune, Pruned, RolloutFilters, RolloutQuery, asked
from leyden.server.tokenstore import TokenStore
from leyden.server.transaction import Changes, Transaction
from leyden.server.waiting import ClaimDesk, FinalWatch
from leyden.types import (
    DEFAULT_QUEUE,
    Attempt,
    AttemptBinding,
    Counts,
    FailureKind,
    Lease,
    LeaseRef,
    Mode,
    NewRollout,
    Queue,
    Resource,
    Resources,
    Reward,
    Rollout,
    Run,
    RunState,
    Unset,
    Verdict,
    Worker,
)

if TYPE_CHECKING:
    from leyden.server.replicas import Replicas

SWEEP_INTERVAL = 1.0  # seconds
SLOWEST_SWEEP = 5.0  # seconds between two sweeps that still pass for a busy store
SLOW = 5  # so many long pauses one after the other are a slow store, fewer are stalls
MAX_ENQUEUE = 10_000  # rollouts in one call
MAX_BEAT = 10_000  # leases in one beat
MAX_QUEUES = 64  # in one claim

log = logging.getLogger(__name__)


class SQLStore(Capture, Operating, TokenStore):
    """``Store`` on a database. ``async with await SQLStore.open("leyden.db") as store``; use it in the event loop that opened it.

    ``open(None)`` is an ephemeral store: a temporary file that goes with it.
    """

    def __init__(
        self,
        database: Database,
        clock: MonotoneClock | None,
        jitter: Callable[[], float],
        temporary: tempfile.TemporaryDirectory[str] | None,
    ) -> None:
        self.label = database.label  # which database, for people
        self.busy_until = 0.0  # a caller in this process is told at once
        self._database = database
        self._temporary = temporary
        self.intake = Intake()
        self._executor = Executor(database, clock, jitter, self._wake)
        self._desk = ClaimDesk(lambda requests: self._executor.write(claim_ops.claim, requests), self.hand_back, not database.shared)
        self._watch = FinalWatch()
        self._replicas = self._meet_replicas()
        self._looking: asyncio.Task[None] | None = None
        self._unseen = False
        self._last_sweep = 0
        self._between_sweeps: deque[float] = deque(maxlen=SLOW)  # the latest ones, in seconds
        self._sweeper: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        database: str | Path | None = None,
        *,
        clock: Callable[[], int] | None = None,
        jitter: Callable[[], float] = random.random,
        sweep_every: float | None = SWEEP_INTERVAL,
    ) -> Self:
        """Open or create a SQLite file, which then belongs to this process alone, or a ``postgresql://`` database, which any number of
        stores share. ``clock`` (microseconds) replaces the database's time; ``sweep_every`` None: only ``sweep()`` sweeps.

        Raises ``UsageError`` for a database that is open elsewhere, of a newer version, or not a store; ``Unavailable`` for one that
        cannot be reached.
        """
        temporary = None
        if database is None:
            temporary = tempfile.TemporaryDirectory(prefix="leyden-")
            database = Path(temporary.name, "leyden.db")
        opened = await asyncio.to_thread(open_database, database)
        store = cls(opened, None if clock is None else MonotoneClock(clock), jitter, temporary)
        try:
            store._last_sweep = await store._executor.write(store._wake_up)
        except BaseException:
            await store.close()
            raise
        if sweep_every is not None:
            store._sweeper = asyncio.create_task(store._sweep_forever(sweep_every))
        return store

    def _wake_up(self, tx: Transaction) -> int:
        """Where no store has been awake, its absence counts for nobody. Returns the time."""
        if self._database.shared:
            last = lease_ops.exchange_swept_at(tx)
            if last is None or tx.now - last > microseconds(2 * SWEEP_INTERVAL):
                lease_ops.forgive(tx, tx.now - (last or tx.now))
        else:
            last = lease_ops.last_sign_of_life(tx)
            lease_ops.forgive(tx, 0 if last is None else max(0, tx.now - last))
        return tx.now

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def stop_waiting(self) -> None:
        """Answer every long poll now, and from now on at once: the first step of a clean stop."""
        self._watch.close()
        await self._desk.close()

    async def close(self) -> None:
        """Finish the writes that wait, and let go of the database."""
        await self.stop_waiting()
        if self._replicas is not None:
            await self._replicas.close()
        for task in (self._sweeper, self._looking):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})
        await self._executor.close()
        self.intake.close()
        if self._temporary is not None:
            self._temporary.cleanup()

    def _wake(self, changes: Changes) -> None:
        if changes.work or changes.queues:
            self._desk.wake(None if changes.work else changes.queues)
        self._watch.announce(changes.finished)
        if self._replicas is not None and (changes.work or changes.queues or changes.finished):
            self._replicas.announce()

    def _meet_replicas(self) -> Replicas | None:
        if not self._database.shared:
            return None
        from leyden.server.postgres import PostgresDatabase  # both need psycopg
        from leyden.server.replicas import Replicas

        return Replicas(cast(PostgresDatabase, self._database), self._executor.write, self._look_again)

    def _look_again(self) -> None:
        """Another store may have changed what somebody here waits for."""
        self._desk.wake()
        self._unseen = True
        if self._watch.ids and self._looking is None:
            self._looking = asyncio.create_task(self._look_for_final())

    async def _look_for_final(self) -> None:
        try:
            while self._unseen:  # news may come during a look, about what that look has passed
                self._unseen = False
                self._watch.announce(await self._executor.read(rollout_ops.final_among, tuple(self._watch.ids)))
        except LeydenError as error:  # the next look is soon
            log.warning("could not look for what other stores have finished: %s", error)
        finally:
            self._looking = None

    async def hand_back(self, given: Sequence[Lease]) -> None:
        """What whoever claimed it will never hear of."""
        for lease in given:
            try:
                await self.release(lease.ref)
            except LeaseLost:
                pass  # ended meanwhile: nothing to hand back
            except LeydenError as error:
                log.warning("rollout %s could not be handed back, and waits for its lease to end: %s", lease.ref.rollout_id, error)

    # -- sweep ---------------------------------------------------------------------------------------------------------

    async def sweep(self, interval: float = SWEEP_INTERVAL) -> None:
        """Expire leases and deadlines, queue what is due. Time that no store lived through (this loop was stalled, the machine asleep, the
        server away: twice as long as is usual between two sweeps) counts for no lease and no attempt: nobody could hear their beats."""
        usual = interval
        if len(self._between_sweeps) == SLOW:  # a store that is only slow does not stop the time
            usual = max(interval, min(*self._between_sweeps, SLOWEST_SWEEP))
        before, now, more = self._last_sweep, self._last_sweep, True
        while more:
            now, more = await self._executor.write(self._sweep_once, self._last_sweep, microseconds(2 * usual))
            self._last_sweep = now
        self._between_sweeps.append((now - before) / 1e6)

    def _sweep_once(self, tx: Transaction, last: int | None, stall: int) -> tuple[int, bool]:
        if self._database.shared:
            last = lease_ops.exchange_swept_at(tx)
        return tx.now, lease_ops.sweep(tx, last, stall)

    async def _sweep_forever(self, interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            try:
                await self.sweep(interval)
            except Exception:  # e.g. the disk is full. A sweeper that ended here would leave every lost lease lost for ever.
                log.exception("a sweep failed; the next one is in %g s", interval)

    # -- queue ---------------------------------------------------------------------------------------------------------

    async def enqueue(self, rollouts: Sequence[NewRollout]) -> list[Rollout]:
        if len(rollouts) > MAX_ENQUEUE:
            raise InvalidRequest(f"rollouts: at most {MAX_ENQUEUE} in one call", "queue them in several calls")
        self._executor.check_growth()
        new = with_keys(rollouts)
        return await self._desk.feed({rollout.queue for rollout in new}, lambda those: self._executor.write(claim_ops.enqueue, new, those))

    async def claim(
        self,
        worker_id: str,
        limit: int = 1,
        wait: float = 0.0,
        lease_seconds: float | None = None,
        request_id: str | None = None,
        queues: Sequence[str] = (DEFAULT_QUEUE,),
    ) -> list[Lease]:
        check_id("worker_id", worker_id)
        check_range("limit", limit, 1, MAX_CLAIM)
        check_range("wait", wait, 0, MAX_WAIT)
        check_range("queues", len(queues), 1, MAX_QUEUES)
        lease = checked_lease(lease_seconds) or DEFAULT_LEASE
        self._executor.check_room()
        return await self._desk.claim(ClaimRequest(worker_id, limit, lease, request_id or new_key(), tuple(dict.fromkeys(queues))), wait)

    async def heartbeat(self, worker_id: str, leases: Sequence[LeaseRef], lease_seconds: float | None = None) -> list[Verdict]:
        check_range("leases", len(leases), 0, MAX_BEAT)
        return await self._executor.write(lease_ops.heartbeat, worker_id, tuple(leases), checked_lease(lease_seconds))

    async def complete(self, ref: LeaseRef, rewards: Sequence[Reward] = ()) -> Rollout:
        return await self._executor.write(attempt_ops.complete, ref, tuple(rewards))

    async def fail(self, ref: LeaseRef, failure: FailureKind, error: str | None = None) -> Rollout:
        return await self._executor.write(attempt_ops.fail, ref, failure, error)

    async def release(self, ref: LeaseRef, delay: float = 0.0) -> Rollout:
        check_range("delay", delay, 0, attempt_ops.MAX_RETRY_DELAY)
        return await self._executor.write(attempt_ops.release, ref, delay)

    async def cancel(self, rollout_ids: Sequence[str] = (), run_id: str | None = None, group: str | None = None) -> int:
        ids = tuple(dict.fromkeys(rollout_ids))
        await self._executor.read(rollout_ops.final_ids, ids)  # all of them exist, or none is cancelled
        cancelled = 0
        for start in range(0, len(ids), CHUNK):
            cancelled += await self._executor.write(attempt_ops.cancel, ids[start : start + CHUNK])
        after: int | None = 0 if run_id is not None or group is not None else None
        while after is not None:
            more, after = await self._executor.write(attempt_ops.cancel_matching, run_id, group, after)
            cancelled += more
        return cancelled

    async def requeue(self, rollout_ids: Sequence[str], request_id: str | None = None) -> list[Rollout]:
        check_range("rollout_ids", len(rollout_ids), 0, MAX_ENQUEUE)
        return await self._executor.write(rollout_ops.requeue, tuple(rollout_ids), request_id or new_key())

    async def get_rollout(self, rollout_id: str) -> Rollout:
        return await self._executor.read(rollout_ops.get, rollout_id)

    async def list_rollouts(self, **filters: Unpack[RolloutFilters]) -> list[Rollout]:
        return await self._executor.read(listing_ops.list_rollouts, asked(RolloutQuery, filters))

    async def list_attempts(self, rollout_id: str) -> list[Attempt]:
        return await self._executor.read(rollout_ops.list_attempts, rollout_id)

    async def wait_rollouts(self, ids: Sequence[str], wait: float = MAX_WAIT, done: int | None = None) -> list[Rollout]:
        check_range("wait", wait, 0, MAX_WAIT)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        unique = tuple(dict.fromkeys(ids))
        watcher = self._watch.watch(unique)
        try:
            while True:
                watcher.final |= await self._executor.read(rollout_ops.final_ids, unique)
                await watcher.until(len(unique) if done is None else min(done, len(unique)), deadline - loop.time())
                rollouts = await self._executor.read(rollouts_by_id, [rollout_id for rollout_id in unique if rollout_id in watcher.final])
                again = {rollout.id for rollout in rollouts if not rollout.state.final}
                if not again:
                    return rollouts
                watcher.final -= again  # queued again meanwhile
        finally:
            self._watch.leave(watcher)

    async def count(
        self, run_id: str | None = None, iteration: int | None = None, mode: Mode | None = None, queue: str | None = None
    ) -> Counts:
        return await self._executor.read(counter_ops.count, run_id, iteration, mode, queue)

    async def set_queue(self, name: str, paused: bool | None = None, max_running: int | Unset | None = Unset.UNSET) -> Queue:
        check_id("name", name)
        if isinstance(max_running, int):
            check_range("max_running", max_running, 1, 1_000_000)
        return await self._executor.write(queue_ops.change, name, paused, max_running)

    async def list_queues(self) -> list[Queue]:
        return await self._executor.read(queue_ops.listing)

    # -- resources -----------------------------------------------------------------------------------------------------

    async def add_resources(
        self, resources: dict[str, Resource], lease_seconds: float | None = None, idempotency_key: str | None = None
    ) -> Resources:
        return await self._executor.write(resource_ops.add, resources, checked_lease(lease_seconds), idempotency_key or new_key())

    async def keep_resources(self, resources_id: str, lease_seconds: float) -> Resources:
        check_range("lease_seconds", lease_seconds, 0.001, MAX_LEASE)
        return await self._executor.write(resource_ops.keep, resources_id, lease_seconds)

    async def retire_resources(self, resources_id: str) -> Resources:
        return await self._executor.write(resource_ops.retire, resources_id)

    async def get_resources(self, resources_id: str | None = None) -> Resources:
        return await self._executor.read(resource_ops.get, resources_id)

    async def resolve_key(self, key: str) -> AttemptBinding:
        return await self._executor.read(lease_ops.resolve_key, key)

    async def resolve_attempt(self, rollout_id: str, attempt: int) -> AttemptBinding:
        return await self._executor.read(lease_ops.resolve_attempt, rollout_id, attempt)

    # -- workers and runs ----------------------------------------------------------------------------------------------

    async def register_worker(self, worker_id: str, name: str, capacity: int, pid: int | None = None, host: str | None = None) -> Worker:
        check_id("worker_id", worker_id)
        return await self._executor.write(worker_ops.register, worker_id, name, capacity, pid, host)

    async def stop_worker(self, worker_id: str) -> Worker:
        return await self._executor.write(worker_ops.stop, worker_id)

    async def list_workers(self, alive_within: float | None = None) -> list[Worker]:
        if alive_within is not None:
            check_range("alive_within", alive_within, 0, 10 * 365 * 86_400)
        return await self._executor.read(worker_ops.listing, alive_within)

    async def start_run(
        self, run_id: str, config: dict[str, Any], lease_seconds: float = 60.0, take_over: bool = False, request_id: str | None = None
    ) -> Run:
        """``request_id`` makes a repeated start return the same epoch."""
        check_id("run_id", run_id)
        check_range("lease_seconds", lease_seconds, 0.001, MAX_LEASE)
        return await self._executor.write(run_ops.start, run_id, config, lease_seconds, take_over, request_id or new_key())

    async def keep_run(self, run_id: str, epoch: int, lease_seconds: float = 60.0) -> Run:
        check_range("lease_seconds", lease_seconds, 0.001, MAX_LEASE)
        return await self._executor.write(run_ops.keep, run_id, epoch, lease_seconds)

    async def finish_run(self, run_id: str, epoch: int, state: RunState, summary: dict[str, Any] | None = None) -> Run:
        return await self._executor.write(run_ops.finish, run_id, epoch, state, summary)

    async def get_run(self, run_id: str) -> Run:
        return await self._executor.read(run_ops.get, run_id)

    async def list_runs(self, limit: int = 100) -> list[Run]:
        check_range("limit", limit, 1, 10_000)
        return await self._executor.read(run_ops.listing, limit)

    # -- retention -----------------------------------------------------------------------------------------------------

    async def prune(self, query: Prune) -> Pruned:
        return await (self._executor.read if query.dry_run else self._executor.write)(prune_ops.prune, query)
