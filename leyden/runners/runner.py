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
from typing import Any, TypeVar

from leyden.errors import Busy, LeaseLost, LeydenError, Unavailable
from leyden.runners.agent import Agent
from leyden.runners.failures import classify, describe
from leyden.runners.heart import Heart, Report
from leyden.runners.rewards import add_answer, collecting
from leyden.server.interface import MAX_CLAIM, MAX_WAIT, Store
from leyden.types import LLM, FailureKind, Lease, LeaseRef, Resource, Reward, Verdict

T = TypeVar("T")


@dataclass(frozen=True)
class RunnerConfig:
    name: str = "runner"
    concurrency: int = 16  # rollouts at once
    lease_seconds: float = 60.0  # a lost runner's rollouts are claimed again after this; beats go out four times as often
    stop_grace: float = 5.0  # seconds a cancelled agent has to end


class Stop(StrEnum):
    """Why an attempt is stopped before its agent has answered."""

    LOST = "lost"
    CANCEL = "cancel"
    TIMEOUT = "timeout"
    RELEASE = "release"


class Ending(StrEnum):
    STOPPED = "stopped"  # asked to; nothing is held any more
    STUCK = "stuck"  # an agent that cannot be stopped still runs: only the end of this process ends it


class _Held:
    """A lease this runner has, and what may end it early."""

    def __init__(self, lease: Lease, lease_seconds: float) -> None:
        self.lease = lease
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


@dataclass(frozen=True)
class _Outcome:
    rewards: tuple[Reward, ...] = ()
    failure: FailureKind | None = None
    error: str | None = None


class Runner:
    """``connect`` makes a client of the store; it is called once here and once in the heart's thread.

    ``on_blocked`` is called in the heart's thread when an attempt has to stop, but an agent keeps the event loop to itself: nothing
    can be stopped or handed back any more, only this process ended.
    """

    def __init__(
        self,
        agent: Agent,
        connect: Callable[[], Store],
        config: RunnerConfig = RunnerConfig(),
        on_blocked: Callable[[], None] = lambda: None,
    ) -> None:
        self.agent = agent
        self.config = config
        self.worker_id = f"{config.name}-{secrets.token_hex(6)}"  # new at each start: a name used again is no fence
        self._connect = connect
        self._held: dict[LeaseRef, _Held] = {}
        self._stopping = asyncio.Event()
        self._freed = asyncio.Event()
        self._claims_over = asyncio.Event()
        self._on_blocked = on_blocked
        self._untaken_since: float | None = None  # since when a beat's report waits for the event loop
        self._stuck = False
        self._store_away = False

    @property
    def running(self) -> int:
        """How many rollouts it holds."""
        return len(self._held)

    async def run(self) -> Ending:
        """Claim and run until ``drain`` or ``release`` is called, or an agent cannot be stopped."""
        self._store = self._connect()
        self._heart = Heart(self._connect, self.worker_id, self.config.lease_seconds, self._reporter())
        try:
            await self._persist(self._register, self._stopping.is_set)
            self._heart.start()
            while not self._stopping.is_set():
                await self._fill()
            self._claims_over.set()
            while self._held:
                await asyncio.wait([held.task for held in self._held.values() if held.task])
            with suppress(LeydenError):  # a courtesy: the store sees anyway that nobody beats
                await self._store.stop_worker(self.worker_id)
        finally:
            self._heart.stop()
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
        room = min(self.config.concurrency - len(self._held), MAX_CLAIM)
        if room == 0:
            await _first(self._freed.wait(), self._stopping.wait())
            return
        leases = await self._claim(room)
        if not leases:
            await asyncio.sleep(random.uniform(0.05, 0.2))  # a store that is stopping answers long polls at once
        for lease in leases:
            held = _Held(lease, self.config.lease_seconds)
            self._held[lease.ref] = held
            self._heart.hold(lease.ref)
            held.task = asyncio.create_task(self._hold(held), name=f"rollout-{lease.ref.rollout_id}")

    async def _claim(self, room: int) -> list[Lease]:
        """What a long poll brings. Asked to stop meanwhile: nothing, and what the store gave us by then is handed back."""
        request_id = secrets.token_hex(16)  # the same for every retry, so that an answer that got lost leaks no lease

        async def claim(wait: float) -> list[Lease]:
            return await self._store.claim(self.worker_id, room, wait, self.config.lease_seconds, request_id)

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
            await self._report(held, outcome)
        finally:
            held.end()
            self._heart.drop(ref)
            del self._held[ref]
            self._freed.set()

    async def _attempt(self, held: _Held) -> _Outcome | Stop:
        """Run the agent until it answers, or until it is stopped. An agent that was asked to stop has no answer, whatever it returns."""
        work = asyncio.create_task(_run_agent(self.agent, held.lease))
        waits: list[asyncio.Future[Any]] = [work, held.stop]
        await asyncio.wait(waits, timeout=held.lease.timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
        if work.done() and not held.stop.done():
            return _Outcome(failure=FailureKind.AGENT, error="the agent cancelled itself") if work.cancelled() else work.result()
        held.ask_to_stop(Stop.TIMEOUT)  # unless there is another reason already
        work.cancel()
        await asyncio.wait([work], timeout=self.config.stop_grace)
        if not work.done():
            self._give_up(held)
        return held.stop.result()

    def _give_up(self, held: _Held) -> None:
        """An agent goes on although it was stopped. It shares this process with the others: hand them back and end."""
        if not self._stuck:
            self._say(f"the agent of rollout {held.lease.rollout.id} cannot be stopped; handing back the rest and ending this process")
        self._stuck = True
        self.release()

    async def _report(self, held: _Held, outcome: _Outcome | Stop) -> None:
        """Tell the store how it ended, for as long as the lease may still be ours."""
        ref, timeout = held.lease.ref, held.lease.timeout_seconds

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
                case _Outcome(failure=None, rewards=rewards):
                    await self._store.complete(ref, rewards)
                case _Outcome(failure=FailureKind() as failure, error=error):
                    await self._store.fail(ref, failure, error)

        try:
            await self._persist(report, lambda: held.lost)
        except LeaseLost:
            pass  # cancelled, or given to another: what this attempt did does not count
        except LeydenError as error:
            self._say(f"rollout {ref.rollout_id}, attempt {ref.attempt}: the store refused its end: {error.message}")

    def _reporter(self) -> Report:
        """Carries the heart's reports over into this event loop."""
        loop = asyncio.get_running_loop()

        def report(refs: list[LeaseRef], verdicts: list[Verdict], sent: float) -> None:
            since = self._untaken_since
            if since is None:
                self._untaken_since = time.monotonic()  # before the loop can take this report, and clear it
            elif time.monotonic() - since > self.config.stop_grace and self._must_stop(refs, verdicts) and since == self._untaken_since:
                self._say("an agent blocks the event loop and cannot be stopped; ending this process")
                self._on_blocked()
            with suppress(RuntimeError):  # the loop has ended, and with it all leases
                loop.call_soon_threadsafe(self._take_beats, refs, verdicts, sent)

        return report

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


async def _run_agent(agent: Agent, lease: Lease) -> _Outcome:
    """One call of the agent, in a context of its own. Nothing but cancellation is raised."""
    with collecting() as rewards:
        try:
            add_answer(rewards, await agent.run(lease.rollout, _resources(lease)))
        except (SystemExit, KeyboardInterrupt) as error:  # in a task of its own asyncio would let these end the runner
            return _Outcome(failure=FailureKind.AGENT, error=f"the agent raised {describe(error)}")
        except Exception as error:
            return _Outcome(failure=classify(error), error=describe(error))
        return _Outcome(tuple(rewards.values()))


def _resources(lease: Lease) -> dict[str, Resource]:
    """The pinned resources; a proxied LLM gets the attempt's own key, which binds its calls to this attempt."""
    named = dict(lease.resources.resources) if lease.resources else {}
    return {
        name: resource.model_copy(update={"api_key": lease.key}) if isinstance(resource, LLM) and resource.proxied else resource
        for name, resource in named.items()
    }


async def _first(*awaitables: Awaitable[Any]) -> None:
    """Wait for the first; the coroutines among the others are cancelled, tasks go on."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task, awaitable in zip(tasks, awaitables, strict=True):
        if task is not awaitable:
            task.cancel()
