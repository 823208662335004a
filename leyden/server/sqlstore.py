"""The store itself, on a database in this process."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import re
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from leyden.errors import InvalidRequest, LeaseLost
from leyden.server.clock import MonotoneClock, microseconds
from leyden.server.database import Database
from leyden.server.databases import open_database
from leyden.server.executor import Executor
from leyden.server.interface import MAX_CLAIM, MAX_WAIT
from leyden.server.operations import attempts as attempt_ops
from leyden.server.operations import capture as capture_ops
from leyden.server.operations import counters as counter_ops
from leyden.server.operations import leases as lease_ops
from leyden.server.operations import resources as resource_ops
from leyden.server.operations import rollouts as rollout_ops
from leyden.server.operations import runs as run_ops
from leyden.server.operations import transitions
from leyden.server.operations import workers as worker_ops
from leyden.server.operations.leases import DEFAULT_LEASE, ClaimRequest
from leyden.server.transaction import Changes, Transaction
from leyden.server.waiting import ClaimDesk, FinalWatch
from leyden.types import (
    ID_PATTERN,
    Attempt,
    AttemptBinding,
    Counts,
    FailureKind,
    Generation,
    Lease,
    LeaseRef,
    Mode,
    NewRollout,
    Resource,
    Resources,
    Reward,
    Rollout,
    RolloutState,
    Run,
    RunState,
    Span,
    Verdict,
    Worker,
)

SWEEP_INTERVAL = 1.0  # seconds
MAX_LEASE = 86_400.0  # seconds
MAX_ENQUEUE = 10_000  # rollouts in one call

log = logging.getLogger(__name__)
_ID = re.compile(ID_PATTERN)


class SQLStore:
    """``Store`` on SQLite. ``async with await SQLStore.open("leyden.db") as store``; use it in the event loop that opened it.

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
        self._database = database
        self._temporary = temporary
        self._executor = Executor(database, clock, jitter, self._wake)
        self._desk = ClaimDesk(lambda requests: self._executor.write(lease_ops.claim, requests), self._hand_back)
        self._watch = FinalWatch()
        self._last_sweep: int | None = None
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
        temporary = tempfile.TemporaryDirectory(prefix="leyden-") if database is None else None
        opened = await asyncio.to_thread(open_database, Path(temporary.name, "leyden.db") if temporary else database)
        store = cls(opened, None if clock is None else MonotoneClock(clock), jitter, temporary)
        try:
            await store._executor.write(store._wake_up)
        except BaseException:
            await store.close()
            raise
        if sweep_every is not None:
            store._sweeper = asyncio.create_task(store._sweep_forever(sweep_every))
        return store

    def _wake_up(self, tx: Transaction) -> None:
        """Where no store has been awake, its absence counts for nobody."""
        self._last_sweep = tx.now
        last = lease_ops.exchange_swept_at(tx) if self._database.shared else lease_ops.last_sign_of_life(tx)
        if last is None or not self._database.shared or abs(tx.now - last) > microseconds(2 * SWEEP_INTERVAL):
            lease_ops.forgive(tx, tx.now - (last or tx.now))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def stop_waiting(self) -> None:
        """Answer every long poll now, and from now on at once: the first step of a clean stop."""
        self._watch.close()
        await self._desk.close()

    async def close(self) -> None:
        """Finish the writes that wait, and let go of the file."""
        await self.stop_waiting()
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.wait({self._sweeper})
        await self._executor.close()
        if self._temporary is not None:
            self._temporary.cleanup()

    def _wake(self, changes: Changes) -> None:
        if changes.work:
            self._desk.wake()
        self._watch.announce(changes.finished)

    async def _hand_back(self, given: Sequence[Lease]) -> None:
        for lease in given:
            with suppress(LeaseLost):  # ended meanwhile: nothing to hand back
                await self.release(lease.ref)

    # -- sweep ---------------------------------------------------------------------------------------------------------

    async def sweep(self, interval: float = SWEEP_INTERVAL) -> None:
        """Expire leases and deadlines, queue what is due. Time that no store lived through (this loop was stalled, the machine asleep, the
        server away: more than two ``interval`` since the last sweep) counts for no lease and no attempt: nobody could hear their beats."""
        stall = microseconds(2 * interval)
        while await self._executor.write(self._sweep_once, stall):
            pass

    def _sweep_once(self, tx: Transaction, stall: int) -> bool:
        last, self._last_sweep = self._last_sweep, tx.now
        if self._database.shared:
            last = lease_ops.exchange_swept_at(tx)
        return lease_ops.sweep(tx, last, stall)

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
        return await self._executor.write(rollout_ops.enqueue, tuple(rollouts))

    async def claim(
        self, worker_id: str, limit: int = 1, wait: float = 0.0, lease_seconds: float | None = None, request_id: str | None = None
    ) -> list[Lease]:
        _check_id("worker_id", worker_id)
        _check_range("limit", limit, 1, MAX_CLAIM)
        _check_range("wait", wait, 0, MAX_WAIT)
        return await self._desk.claim(ClaimRequest(worker_id, limit, _lease_seconds(lease_seconds) or DEFAULT_LEASE, request_id), wait)

    async def heartbeat(self, worker_id: str, leases: Sequence[LeaseRef], lease_seconds: float | None = None) -> list[Verdict]:
        return await self._executor.write(lease_ops.heartbeat, worker_id, tuple(leases), _lease_seconds(lease_seconds))

    async def complete(self, ref: LeaseRef, rewards: Sequence[Reward] = ()) -> Rollout:
        return await self._executor.write(attempt_ops.complete, ref, tuple(rewards))

    async def fail(self, ref: LeaseRef, failure: FailureKind, error: str | None = None) -> Rollout:
        return await self._executor.write(attempt_ops.fail, ref, failure, error)

    async def release(self, ref: LeaseRef, delay: float = 0.0) -> Rollout:
        _check_range("delay", delay, 0, attempt_ops.MAX_RETRY_DELAY)
        return await self._executor.write(attempt_ops.release, ref, delay)

    async def cancel(self, rollout_ids: Sequence[str] = (), run_id: str | None = None) -> int:
        return await self._executor.write(attempt_ops.cancel, tuple(rollout_ids), run_id)

    async def get_rollout(self, rollout_id: str) -> Rollout:
        return await self._executor.read(rollout_ops.get, rollout_id)

    async def list_rollouts(
        self,
        run_id: str | None = None,
        iteration: int | None = None,
        mode: Mode | None = None,
        state: RolloutState | None = None,
        ids: Sequence[str] | None = None,
        after: str | None = None,
        limit: int = 1000,
    ) -> list[Rollout]:
        return await self._executor.read(rollout_ops.listing, run_id, iteration, mode, state, ids, after, limit)

    async def list_attempts(self, rollout_id: str) -> list[Attempt]:
        return await self._executor.read(rollout_ops.list_attempts, rollout_id)

    async def wait_rollouts(self, ids: Sequence[str], wait: float = MAX_WAIT, done: int | None = None) -> list[Rollout]:
        _check_range("wait", wait, 0, MAX_WAIT)
        unique = tuple(dict.fromkeys(ids))
        watcher = self._watch.watch(unique)
        try:
            watcher.final |= await self._executor.read(rollout_ops.final_ids, unique)
            await watcher.until(len(unique) if done is None else min(done, len(unique)), wait)
        finally:
            self._watch.leave(watcher)
        return await self._executor.read(transitions.rollouts_by_id, [rollout_id for rollout_id in unique if rollout_id in watcher.final])

    async def count(self, run_id: str, iteration: int | None = None, mode: Mode | None = None) -> Counts:
        return await self._executor.read(counter_ops.count, run_id, iteration, mode)

    # -- capture -------------------------------------------------------------------------------------------------------

    async def add_spans(self, ref: LeaseRef, spans: Sequence[Span]) -> int:
        return await self._executor.write(capture_ops.add_spans, ref, tuple(spans))

    async def add_generations(self, ref: LeaseRef, generations: Sequence[Generation]) -> None:
        await self._executor.write(capture_ops.add_generations, ref, tuple(generations))

    async def add_rewards(self, ref: LeaseRef, rewards: Sequence[Reward]) -> None:
        await self._executor.write(capture_ops.add_rewards, ref, tuple(rewards))

    async def list_spans(self, rollout_id: str, attempt: int | None = None) -> list[Span]:
        return await self._executor.read(capture_ops.list_spans, rollout_id, attempt)

    async def list_generations(self, rollout_ids: Sequence[str], attempt: int | None = None) -> list[Generation]:
        return await self._executor.read(capture_ops.list_generations, rollout_ids, attempt)

    async def list_rewards(self, rollout_ids: Sequence[str], attempt: int | None = None) -> list[Reward]:
        return await self._executor.read(capture_ops.list_rewards, rollout_ids, attempt)

    # -- resources -----------------------------------------------------------------------------------------------------

    async def add_resources(
        self, resources: dict[str, Resource], lease_seconds: float | None = None, idempotency_key: str | None = None
    ) -> Resources:
        return await self._executor.write(resource_ops.add, resources, _lease_seconds(lease_seconds), idempotency_key)

    async def keep_resources(self, resources_id: str, lease_seconds: float) -> Resources:
        _check_range("lease_seconds", lease_seconds, 0.001, MAX_LEASE)
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
        _check_id("worker_id", worker_id)
        return await self._executor.write(worker_ops.register, worker_id, name, capacity, pid, host)

    async def stop_worker(self, worker_id: str) -> Worker:
        return await self._executor.write(worker_ops.stop, worker_id)

    async def list_workers(self, alive_within: float | None = None) -> list[Worker]:
        if alive_within is not None:
            _check_range("alive_within", alive_within, 0, 10 * 365 * 86_400)
        return await self._executor.read(worker_ops.listing, alive_within)

    async def start_run(
        self, run_id: str, config: dict[str, Any], lease_seconds: float = 60.0, take_over: bool = False, request_id: str | None = None
    ) -> Run:
        """``request_id`` makes a repeated start return the same epoch."""
        _check_id("run_id", run_id)
        _check_range("lease_seconds", lease_seconds, 0.001, MAX_LEASE)
        return await self._executor.write(run_ops.start, run_id, config, lease_seconds, take_over, request_id)

    async def keep_run(self, run_id: str, epoch: int, lease_seconds: float = 60.0) -> Run:
        _check_range("lease_seconds", lease_seconds, 0.001, MAX_LEASE)
        return await self._executor.write(run_ops.keep, run_id, epoch, lease_seconds)

    async def finish_run(self, run_id: str, epoch: int, state: RunState, summary: dict[str, Any] | None = None) -> Run:
        return await self._executor.write(run_ops.finish, run_id, epoch, state, summary)

    async def get_run(self, run_id: str) -> Run:
        return await self._executor.read(run_ops.get, run_id)

    async def list_runs(self, limit: int = 100) -> list[Run]:
        _check_range("limit", limit, 1, 10_000)
        return await self._executor.read(run_ops.listing, limit)


def _check_id(name: str, value: str) -> None:
    if not _ID.fullmatch(value):
        raise InvalidRequest(f"{name}: {value!r} is not an id: letters, digits, _ and -, at most 64")


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if math.isnan(value) or not low <= value <= high:
        raise InvalidRequest(f"{name}: must be between {low:g} and {high:g}, not {value:g}")


def _lease_seconds(value: float | None) -> float | None:
    if value is not None:
        _check_range("lease_seconds", value, 0.001, MAX_LEASE)
    return value
