"""Several runner processes for one agent: started, replaced when they die, stopped together."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from leyden.errors import LeydenError, Unavailable, UsageError
from leyden.process import Child, new_marker, spawn
from leyden.runners.process import EXIT_STUCK
from leyden.runners.watcher import News
from leyden.server.interface import TOKEN
from leyden.types import DEFAULT_QUEUE, ID_PATTERN, FailureKind, LeaseRef

MAX_DEATHS = 5  # in a row, each within LIVED seconds of its start, and none that ended the attempt of the one that did it
LIVED = 60.0
SILENCE = 5.0  # seconds without a beat, or 3/4 of the lease if that is more: then the process is frozen
DRAIN = 0.5  # seconds for the last lines of a runner that has died, and for the death of one that has closed its line to us
HAND_BACK = 10.0  # seconds a runner has to hand back what it holds, once there is no more time to finish it


@dataclass(frozen=True)
class PoolConfig:
    agent: str  # "module:agent" or "path/to/file.py:agent"
    store_url: str = "http://127.0.0.1:4747"
    n: int = 4
    concurrency: int = 16  # rollouts at once in each process
    lease_seconds: float = 60.0
    grace: float = 10.0  # seconds to finish what is held when stopped; the rest is handed back
    log_dir: Path | None = None  # a log for each runner; None: our stderr
    debug: bool = False
    hooks: tuple[str, ...] = ()  # of classes, named as agents are
    tracer: str | None = None  # a class
    max_rollouts: int | None = None  # of each runner, which then ends
    queues: tuple[str, ...] = (DEFAULT_QUEUE,)  # claimed from
    pass_env: tuple[str, ...] = ()  # variables agents need although they look like secrets, which runners are started without
    token: str | None = field(default=None, repr=False)  # for a store that asks for one; None: that of LEYDEN_TOKEN, if there is any

    def __post_init__(self) -> None:
        if self.n < 1 or self.concurrency < 1:
            raise UsageError("there must be at least one runner and one rollout at once", "for instance -n 4 --concurrency 16")
        if self.lease_seconds < 1:
            raise UsageError(f"a lease of {self.lease_seconds:g} s is too short to be kept", "give at least 1 s; 60 is the default")
        if bad := [queue for queue in self.queues if not re.fullmatch(ID_PATTERN, queue)]:
            raise UsageError(f"{bad[0]!r} is not the name of a queue", "letters, digits, _ and -, at most 64")
        if missing := [name for name in self.pass_env if name not in os.environ]:
            raise UsageError(f"the environment has no {missing[0]} to pass to the runners", f"export {missing[0]}=...")


class RunnerPool:
    """``async with RunnerPool(config):`` runs the agent while the block lasts. Or ``run()`` until it is asked to stop.

    Raises the ``UsageError`` of a runner whose agent cannot be loaded, and ``Unavailable`` when a runner keeps dying.
    """

    def __init__(self, config: PoolConfig, marker: str | None = None) -> None:
        self.config = config
        self._marker = marker or new_marker()
        self._children: dict[int, Child] = {}
        self._ready: set[int] = set()
        self._all_ready = asyncio.Event()
        self._stopping = asyncio.Event()
        self._signals: list[signal.Signals] = []
        self._running: asyncio.Task[None] | None = None

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self._children.values()]

    async def __aenter__(self) -> RunnerPool:
        self._running = asyncio.create_task(self.run())
        ready = asyncio.create_task(self._all_ready.wait())
        try:
            await asyncio.wait([self._running, ready], return_when=asyncio.FIRST_COMPLETED)
            if self._running.done():
                self._running.result()
        except asyncio.CancelledError:
            await self._cancel_run()
            raise
        finally:
            ready.cancel()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._running is not None
        self.signal(signal.SIGTERM)
        try:
            await self._running
        except LeydenError:
            if error is None:
                raise

    async def wait(self) -> None:
        """Returns when the pool has been stopped; raises as soon as a runner cannot be kept alive. Only inside the block."""
        assert self._running is not None
        await asyncio.shield(self._running)

    async def run(self) -> None:
        """Start the runners and keep them, until they have ended after ``signal``."""
        slots = [asyncio.create_task(self._keep(number)) for number in range(1, self.config.n + 1)]
        try:
            done, _ = await asyncio.wait(slots, return_when=asyncio.FIRST_EXCEPTION)
            for slot in done:
                slot.result()
        finally:
            self._stopping.set()
            for slot in slots:
                slot.cancel()
            await asyncio.gather(*slots, return_exceptions=True)  # several may fail alike: the first one is raised
            await asyncio.gather(*(child.stop(self.config.grace + 5.0) for child in self._children.values()))

    def signal(self, sig: signal.Signals) -> None:
        """Ask all runners to end. SIGINT: finish; SIGINT again: hand back now; SIGTERM: finish, hand back after the grace.

        A runner that still lives ``HAND_BACK`` seconds later (its agent blocks the event loop, or the store is away) is killed.
        """
        self._stopping.set()
        self._signals.append(sig)
        for child in self._children.values():
            child.send_signal(sig)
        if len(self._signals) > 1 or sig is signal.SIGTERM:
            finishing = 0.0 if len(self._signals) > 1 else self.config.grace
            asyncio.get_running_loop().call_later(finishing + HAND_BACK, self._kill)

    def _kill(self) -> None:
        for child in self._children.values():
            child.send_signal(signal.SIGKILL)

    async def _cancel_run(self) -> None:
        assert self._running is not None
        self._running.cancel()
        await asyncio.wait([self._running])

    async def _keep(self, number: int) -> None:
        """One runner, and the next one when it dies."""
        deaths = alone = 0
        while not self._stopping.is_set():
            started = time.monotonic()
            child = self._children[number] = await self._spawn(number, alone)
            for sig in self._signals:  # they came while it was being started
                child.send_signal(sig)
            diary = await self._listen(child, number)
            await _wait_for_end(child, DRAIN)
            status = await child.stop(0.0)  # ends what it left behind, and a runner whose agent has closed its line to us
            del self._children[number]
            culprit = await self._settle(diary, _describe(status), accuse=not self._stopping.is_set() and status != EXIT_STUCK)
            if self._stopping.is_set():
                return
            if diary.error is not None:
                raise diary.error
            if status == 0:
                return  # somebody has asked this one to end
            alone = max(alone - diary.ended, len(diary.held) if status != EXIT_STUCK else 0, 0)
            if culprit is not None or status == EXIT_STUCK:  # an attempt has ended with it: this does not go round for ever
                whose = f" with rollout {culprit.rollout_id}" if culprit else ""
                _say(f"runner-{number} ended ({_describe(status)}){whose}; starting another")
                continue
            deaths = deaths + 1 if time.monotonic() - started < LIVED else 1
            if deaths >= MAX_DEATHS:
                where = f"its last lines:\n{child.tail()}" if child.log_path else None
                raise Unavailable(f"runner-{number} died {deaths} times in a row ({_describe(status)})", where)
            pause = 0.5 * 2 ** (deaths - 1)
            _say(f"runner-{number} ended ({_describe(status)}); starting another in {pause:g} s")
            await _wait(self._stopping, pause)

    async def _spawn(self, number: int, alone: int) -> Child:
        config = self.config
        args = [sys.executable, "-m", "leyden.runners.process", config.agent, "--store", config.store_url, "--name", f"runner-{number}"]
        args += ["--concurrency", str(config.concurrency), "--lease", str(config.lease_seconds), "--grace", str(config.grace)]
        args += ["--alone-first", str(alone), *(part for queue in config.queues for part in ("--queue", queue))]
        args += [part for hook in config.hooks for part in ("--hook", hook)]
        args += ["--tracer", config.tracer] if config.tracer else []
        args += ["--max-rollouts", str(config.max_rollouts)] if config.max_rollouts else []
        log_path = config.log_dir / f"runner-{number}.log" if config.log_dir else None
        env = {name: os.environ[name] for name in (*config.pass_env, TOKEN) if name in os.environ}
        env |= {TOKEN: config.token} if config.token else {}  # never in args: whoever is on the machine reads those
        args += ["--debug"] if config.debug else []
        return await spawn(args, marker=self._marker, log_path=log_path, env=env, stdout_pipe=True)

    async def _listen(self, child: Child, number: int) -> Diary:
        """Read what the child tells until it ends, or kill it when it is frozen: an agent in C code that never lets go of the GIL."""
        diary = Diary()
        assert child.stdout is not None
        ended = asyncio.ensure_future(child.wait())
        try:
            while True:
                line = asyncio.ensure_future(child.stdout.readline())
                limit = max(SILENCE, self.config.lease_seconds * 0.75) if diary.ready else None
                await asyncio.wait({line, ended}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
                if not line.done() and not ended.done():
                    _say(f"runner-{number} is frozen; ending it")
                    child.send_signal(signal.SIGKILL)
                    await ended
                if not line.done():  # a fork of it may hold the pipe open: what is in it by now is all there is
                    await asyncio.wait({line}, timeout=DRAIN)
                if not line.done() or not line.result():
                    line.cancel()
                    return diary
                diary.note(json.loads(line.result()))
                if diary.ready and number not in self._ready:
                    self._ready.add(number)
                    if len(self._ready) == self.config.n:
                        self._all_ready.set()
        finally:
            ended.cancel()

    async def _settle(self, diary: Diary, how: str, accuse: bool) -> LeaseRef | None:
        """Hand back what a dead runner held; it would be lost with the lease, later. One that it held alone is what killed it: that
        attempt is lost, and counts. Returns it."""
        from leyden.server.client import StoreClient

        culprit = diary.held[0] if accuse and len(diary.held) == 1 else None
        if not diary.held:
            return None
        async with StoreClient(self.config.store_url, HAND_BACK, self.config.token) as store:

            async def hand_back(ref: LeaseRef) -> None:
                with suppress(LeydenError):  # it ended meanwhile; or the store is away, and the lease runs out by itself
                    if ref == culprit:
                        await store.fail(ref, FailureKind.LOST, f"its runner died: {how}")
                    else:
                        await store.release(ref)

            await asyncio.gather(*map(hand_back, diary.held))  # at once: a store that is away holds the next runner up only once
        return culprit


class Diary:
    """What a runner process has told."""

    def __init__(self) -> None:
        self.ready = False
        self.error: LeydenError | None = None  # why it could not start
        self.held: list[LeaseRef] = []
        self.ended = 0  # rollouts

    def note(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case News.READY:
                self.ready = True
            case "error":
                kind = UsageError if event["exit_code"] == UsageError.exit_code else Unavailable
                self.error = kind(event["message"], event["hint"])
            case News.HELD:
                self.held.append(LeaseRef(**event["ref"]))
            case News.ENDED:
                self.held.remove(LeaseRef(**event["ref"]))
                self.ended += 1


def spawn_runners(config: PoolConfig) -> int:
    """Run a pool until it is interrupted. Blocks; call it in the main thread. Returns the exit status: 130, 143, or 0.

    The first Ctrl+C finishes what is held, the second hands it back and ends. SIGTERM finishes for ``grace`` seconds.
    Raises ``Unavailable`` if there is no store, and what ``RunnerPool`` raises.
    """
    return asyncio.run(_spawn_runners(config))


async def _spawn_runners(config: PoolConfig) -> int:
    await _check_store(config)
    pool = RunnerPool(config)
    received: list[signal.Signals] = []

    def on_signal(sig: signal.Signals) -> None:
        received.append(sig)
        pool.signal(sig)
        if len(received) > 1:
            _say("handing back what is held, and ending")
        elif sig is signal.SIGINT:
            _say("finishing what is held; Ctrl+C again hands it back and ends now")
        else:
            _say(f"finishing what is held, for {config.grace:g} s")

    loop = asyncio.get_running_loop()
    for sig in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sig, on_signal, sig)
    _say(f"{config.n} runners of {config.agent}, {config.concurrency} rollouts each, store {config.store_url}")
    await pool.run()
    return 128 + received[0] if received else 0


async def _check_store(config: PoolConfig) -> None:
    from leyden.server.client import StoreClient

    store = StoreClient(config.store_url, 5.0, config.token)
    try:
        await store.list_workers()
    except Unavailable as error:
        raise UsageError(f"no store answers at {config.store_url}", "start one: store --port 4747") from error
    finally:
        await store.close()


async def _wait_for_end(child: Child, seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(child.wait(), seconds)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return


def _describe(status: int) -> str:
    if status == EXIT_STUCK:
        return "an agent could not be stopped"
    return f"exit status {status}" if status >= 0 else f"killed by {signal.Signals(-status).name}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
