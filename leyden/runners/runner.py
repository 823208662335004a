"""One runner: claims rollouts, runs the agent on several at once, and reports each exactly once or hands it back."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from leyden.errors import Busy, LeaseLost, LeydenError, Unavailable
from leyden.runners import endpoints
from leyden.runners.agent import Agent
from leyden.runners.attempt import Outcome, run_attempt
from leyden.runners.failures import describe
from leyden.runners.heart import Heart, Report
from leyden.runners.hooks import Observers
from leyden.runners.outbox import Outbox
from leyden.runners.tracer import Recorder
from leyden.runners.watcher import News, Watcher
from leyden.server.interface import MAX_CLAIM, MAX_ENDS, MAX_WAIT, AttemptEnd, Store
from leyden.together import Together
from leyden.types import DEFAULT_QUEUE, FailureKind, Lease, LeaseRef, Verdict

T = TypeVar("T")

ENDS_BYTES = 1 << 20  # of spans in one request that ends attempts
LAST_SPANS = 5.0  # seconds that a runner which ends has for spans that no attempt waits for


@dataclass(frozen=True)
class RunnerConfig:
    name: str = "runner"
    concurrency: int = 16  # rollouts at once
    lease_seconds: float = 60.0  # a lost runner's rollouts are claimed again after this; beats go out four times as often
    stop_grace: float = 5.0  # seconds a cancelled agent has to end
    max_rollouts: int | None = None  # it ends when so many are over; what it handed back because no LLM answers does not count
    queues: tuple[str, ...] = (DEFAULT_QUEUE,)  # claimed from
    alone_first: int = 0  # so many rollouts are run one at a time, before the first that has company
    spool: Path | None = None  # directory for spans while the store is away; None: they wait in memory alone


class Stop(StrEnum):
    """Why an attempt is stopped before its agent has answered."""

    LOST = "lost"
    CANCEL = "cancel"
    TIMEOUT = "timeout"
    RELEASE = "release"


class Ending(StrEnum):
    STOPPED = "stopped"  # asked to; nothing is held any more
    STUCK = "stuck"  # an agent that cannot be stopped still runs, or has broken this process: only the process's end ends it


class _Held:
    """A lease this runner has, and what may end it early."""

    def __init__(self, lease: Lease, lease_seconds: float, recorder: Recorder) -> None:
        self.lease = lease
        self.recorder = recorder
        self.stop: asyncio.Future[Stop] = asyncio.get_running_loop().create_future()
        self.lost = False  # nobody takes a report for it any more
        self.task: asyncio.Task[None] | None = None
        self._safe_seconds = lease_seconds - min(lease_seconds / 8, 5.0)
        self._expiry: asyncio.TimerHandle | None = None
        self.confirm(time.monotonic())

    def ask_to_stop(self, reason: Stop) -> None:
        self.lost = self.lost or reason is Stop.LOST
        if not self.stop.done():
            self.stop.set_result(reason)

    def confirm(self, sent: float) -> None:
        """The store confirmed a beat that left at ``sent``. Without another in time, the lease counts as lost, by our own clock."""
        self.end()
        self._expiry = asyncio.get_running_loop().call_at(sent + self._safe_seconds, self.ask_to_stop, Stop.LOST)

    def end(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()


class Runner:
    """``connect`` makes a client of the store; it is called once here and once in the heart's thread."""

    def __init__(
        self,
        agent: Agent,
        connect: Callable[[], Store],
        config: RunnerConfig = RunnerConfig(),
        watcher: Watcher = Watcher(),
        observers: Observers | None = None,
    ) -> None:
        self.agent = agent
        self.config = config
        self.worker_id = f"{config.name}-{secrets.token_hex(6)}"  # new at each start: a name used again is no fence
        self._connect = connect
        self._held: dict[LeaseRef, _Held] = {}
        self._stopping = asyncio.Event()
        self._freed = asyncio.Event()
        self._claims_over = asyncio.Event()
        self._watcher = watcher
        self._observers = observers or Observers()
        self._left = config.max_rollouts  # to be claimed yet
        self._alone = config.alone_first
        self._untaken_since: float | None = None  # since when a beat's report waits for the event loop
        self._stuck = False
        self._store_away = False
        self._endpoint_away = False

    @property
    def running(self) -> int:
        """How many rollouts it holds."""
        return len(self._held)

    async def run(self) -> Ending:
        """Claim and run until ``drain`` or ``release`` is called, or an agent cannot be stopped."""
        self._store = self._connect()
        self._endings = Together(self._store.end_attempts, MAX_ENDS, ENDS_BYTES, lambda end: end.encoded_bytes)
        self._outbox = Outbox(self._connect, self.config.name, self.config.spool)
        self._heart = Heart(self._connect, self.worker_id, self.config.lease_seconds, self._reporter(), self._beat)
        try:
            self._outbox.start()
            self._heart.start()  # first: whoever watches over this process hears it beat although the store may be away
            await self._persist(self._register, self._stopping.is_set)
            while not self._stopping.is_set():
                await self._fill()
            self._claims_over.set()
            while self._held:
                await asyncio.wait([held.task for held in self._held.values() if held.task])
            with suppress(LeydenError):  # a courtesy: the store sees anyway that nobody beats
                await self._store.stop_worker(self.worker_id)
        finally:
            self._heart.stop()
            await self._outbox.stop(LAST_SPANS)
            await self._store.close()
        return Ending.STUCK if self._stuck else Ending.STOPPED

    def drain(self) -> None:
        """Claim nothing more; ``run`` returns when what is held has ended."""
        self._stopping.set()

    def release(self) -> None:
        """Claim nothing more, stop what is held and hand it back; it is queued again at once and has lost no attempt."""
        self._stopping.set()
        for held in self._held.values():
            held.ask_to_stop(Stop.RELEASE)

    # -- claiming --------------------------------------------------------------------------------------------------

    async def _register(self) -> None:
        await self._store.register_worker(self.worker_id, self.config.name, self.config.concurrency, os.getpid(), socket.gethostname())

    async def _fill(self) -> None:
        """Claim once, for as many as there is room, or wait until there is room."""
        self._freed.clear()
        room = min((1 if self._alone else self.config.concurrency) - len(self._held), MAX_CLAIM)
        if self._left is not None:
            room = min(room, self._left)
        if room <= 0:
            await _first(self._freed.wait(), self._stopping.wait())
            return
        if self._endpoint_away:
            room = 1
            await _first(self._stopping.wait(), asyncio.sleep(random.uniform(0.5, 1.5)))
        while not self._stopping.is_set() and (busy := max(self._store.busy_until, self._heart.busy_until) - time.monotonic()) > 0:
            await _first(self._stopping.wait(), asyncio.sleep(busy * random.uniform(1.0, 1.5)))  # no more work until it has caught up
        if self._stopping.is_set():
            return
        leases = await self._claim(room)
        if not leases:
            await asyncio.sleep(random.uniform(0.05, 0.2))  # a store that is stopping answers long polls at once
        if self._left is not None:
            self._left -= len(leases)
        for lease in leases:
            recorder = Recorder(partial(self._outbox.put, lease.ref), keep=bool(self._observers.hooks))
            held = _Held(lease, self.config.lease_seconds, recorder)
            self._held[lease.ref] = held
            self._watcher.tell(News.HELD, lease.ref)
            self._heart.hold(lease.ref)
            held.task = asyncio.create_task(self._hold(held), name=f"rollout-{lease.ref.rollout_id}")

    async def _claim(self, room: int) -> list[Lease]:
        """What a long poll brings. Asked to stop meanwhile: nothing, and what the store gave us by then is handed back."""
        request_id = secrets.token_hex(16)  # the same for every retry, so that an answer that got lost leaks no lease

        async def claim(wait: float) -> list[Lease]:
            return await self._store.claim(self.worker_id, room, wait, self.config.lease_seconds, request_id, self.config.queues)

        claiming = asyncio.create_task(self._persist(lambda: claim(MAX_WAIT), self._stopping.is_set))
        await _first(claiming, self._stopping.wait())
        if not self._stopping.is_set():
            return claiming.result() or []
        claiming.cancel()
        await asyncio.wait([claiming])
        with suppress(LeydenError):  # the store is away: these leases run out by themselves
            for lease in await claim(0.0):
                await self._store.release(lease.ref)
        return []

    async def _persist(self, operation: Callable[[], Awaitable[T]], give_up: Callable[[], bool]) -> T | None:
        """Repeat while the store is away or behind, with jitter, saying so once; None when ``give_up`` says so."""
        pause = 0.25
        while not give_up():
            try:
                result = await operation()
            except Busy as busy:
                await asyncio.sleep(busy.retry_after * random.uniform(1.0, 1.5))
            except Unavailable as error:
                if not self._store_away:
                    self._say(f"the store is away ({error.message}); still trying")
                self._store_away = True
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(pause * 2, 5.0)
            else:
                if self._store_away:
                    self._say("the store is back")
                self._store_away = False
                return result
        return None

    # -- one rollout -----------------------------------------------------------------------------------------------

    async def _hold(self, held: _Held) -> None:
        """From the claim to the end of the lease."""
        ref = held.lease.ref
        try:
            outcome = await self._attempt(held)
            if not self._watcher.is_sound():
                self._give_up("has closed what is not its own")
            await self._report(held, outcome)
        finally:
            held.end()
            self._heart.drop(ref)
            del self._held[ref]
            self._watcher.tell(News.ENDED, ref)
            self._alone = max(self._alone - 1, 0)
            self._freed.set()
            if self._left == 0 and not self._held:
                self.drain()

    async def _attempt(self, held: _Held) -> Outcome | Stop:
        """Run the agent until it answers, or until it is stopped. An agent that was asked to stop has no answer, whatever it returns."""
        work = asyncio.create_task(self._observed(held))
        waits: list[asyncio.Future[Any]] = [work, held.stop]
        await asyncio.wait(waits, timeout=held.lease.timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
        if work.done() and not held.stop.done():
            return _outcome(work)
        held.ask_to_stop(Stop.TIMEOUT)  # unless there is another reason already
        work.cancel()
        await asyncio.wait([work], timeout=self.config.stop_grace)
        if not work.done():
            self._give_up(f"of rollout {held.lease.rollout.id} cannot be stopped")
        return held.stop.result()

    async def _observed(self, held: _Held) -> Outcome:
        async with self._observers.watch(self.agent, self, held.lease.rollout, held.recorder):
            return await run_attempt(self.agent, held.lease)

    def _give_up(self, why: str) -> None:
        """This process is no place for others any more: hand back what they are doing, and end."""
        if not self._stuck:
            self._say(f"an agent {why}; handing back the rest and ending this process")
        self._stuck = True
        self.release()

    def _notice_endpoint(self, outcome: Outcome) -> None:
        """While nobody answers at an endpoint, rollouts are claimed one at a time, a second or so apart, to find out whether somebody does
        again."""
        if outcome.gone and not self._endpoint_away:
            self._say(f"nobody answers at the LLM's endpoint ({outcome.error}); handing rollouts back until somebody does")
        elif self._endpoint_away and not outcome.gone:
            self._say("the LLM's endpoint answers again")
        self._endpoint_away = outcome.gone

    async def _report(self, held: _Held, outcome: Outcome | Stop) -> None:
        """Tell the store how it ended, for as long as the lease may still be ours."""
        ref, timeout, released = held.lease.ref, held.lease.timeout_seconds, held.lease.rollout.released
        if isinstance(outcome, Outcome):
            self._notice_endpoint(outcome)
        handed_back = isinstance(outcome, Outcome) and outcome.gone and released < endpoints.PATIENCE
        if handed_back and self._left is not None:
            self._left += 1
        delay = endpoints.pause(released)

        async def report() -> None:
            match outcome:
                case Stop.LOST:
                    pass
                case Stop.RELEASE:
                    await self._claims_over.wait()  # or our own claim, still under way, would bring it right back
                    await self._store.release(ref)
                case Stop.CANCEL:
                    await self._store.fail(ref, FailureKind.CANCELLED, "cancelled")
                case Stop.TIMEOUT:
                    await self._store.fail(ref, FailureKind.TIMEOUT, f"no answer within {timeout:g} s")
                case Outcome(failure=None, rewards=rewards):
                    await self._store.complete(ref, rewards)
                case Outcome() if handed_back:
                    await self._store.release(ref, delay)
                case Outcome(failure=FailureKind() as failure, error=error):
                    await self._store.fail(ref, failure, error)

        try:
            if isinstance(outcome, Outcome) and not handed_back and await self._end_at_once(held, outcome):
                return
            await self._outbox.finish(ref, held.recorder, lambda: held.lost)
            await self._persist(report, lambda: held.lost)
        except LeaseLost:
            pass  # cancelled, or given to another: what this attempt did does not count
        except LeydenError as error:
            why = f"the store refused its end: {error.message}"
            self._say(f"rollout {ref.rollout_id}, attempt {ref.attempt}: {why}")
            if isinstance(outcome, Outcome) and outcome.failure is None:  # a reward that is another already: else it would be lost, later
                with suppress(LeydenError):
                    await self._persist(lambda: self._store.fail(ref, FailureKind.AGENT, why), lambda: held.lost)

    async def _end_at_once(self, held: _Held, outcome: Outcome) -> bool:
        """With what is left of its spans, in one request, which others that end just now share. False: there is more to it than that."""
        ref = held.lease.ref
        spans = self._outbox.take_rest(ref, held.recorder)
        if spans is None:
            return False
        try:
            await self._endings.add(AttemptEnd(ref, outcome.rewards, spans, outcome.failure, outcome.error))
        except LeydenError:  # the store is away, behind, or refuses something: step by step it says what, and the rest is kept
            self._outbox.put_back(ref, spans)
            return False
        except asyncio.CancelledError:
            self._outbox.put_back(ref, spans)
            raise
        self._outbox.settle(ref, spans)
        return True

    def _reporter(self) -> Report:
        """Carries the heart's reports over into this event loop."""
        loop = asyncio.get_running_loop()

        def report(refs: list[LeaseRef], verdicts: list[Verdict], sent: float) -> None:
            since = self._untaken_since
            if since is None:
                self._untaken_since = time.monotonic()  # before the loop can take this report, and clear it
            elif time.monotonic() - since > self.config.stop_grace and self._must_stop(refs, verdicts) and since == self._untaken_since:
                self._say("an agent blocks the event loop and cannot be stopped; ending this process")
                self._watcher.on_blocked()
            with suppress(RuntimeError):  # the loop has ended, and with it all leases
                loop.call_soon_threadsafe(self._take_beats, refs, verdicts, sent)

        return report

    def _beat(self) -> None:
        self._watcher.tell(News.BEAT)

    def _must_stop(self, refs: list[LeaseRef], verdicts: list[Verdict]) -> bool:
        """An attempt that ended while the beat was under way is lost too, and needs no stop."""
        return any(verdict is not Verdict.HELD and ref in self._held for ref, verdict in zip(refs, verdicts, strict=True))

    def _take_beats(self, refs: list[LeaseRef], verdicts: list[Verdict], sent: float) -> None:
        self._untaken_since = None
        for ref, verdict in zip(refs, verdicts, strict=True):
            held = self._held.get(ref)
            if held is None:
                continue
            if verdict is Verdict.HELD:
                held.confirm(sent)
            else:
                held.ask_to_stop(Stop(verdict.value))

    def _say(self, text: str) -> None:
        print(f"{self.config.name}: {text}", file=sys.stderr, flush=True)


def _outcome(work: asyncio.Task[Outcome]) -> Outcome:
    """Of one that has ended by itself."""
    if work.cancelled():
        return Outcome(failure=FailureKind.AGENT, error="the agent cancelled itself")
    if (error := work.exception()) is not None:  # agents' and hooks' are caught where they are called
        return Outcome(failure=FailureKind.INFRASTRUCTURE, error=f"the tracer failed: {describe(error)}")
    return work.result()


async def _first(*awaitables: Awaitable[Any]) -> None:
    """Wait for the first; the coroutines among the others are cancelled, tasks go on."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task, awaitable in zip(tasks, awaitables, strict=True):
        if task is not awaitable:
            task.cancel()
