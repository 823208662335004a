"""The runners of a run: processes where another process can find the agent, else a thread of this one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from leyden.algorithm.sft.report import Board
from leyden.errors import Unavailable
from leyden.runners import PoolConfig, RunnerPool
from leyden.runners.agent import Agent
from leyden.runners.hooks import Hook, Observers
from leyden.runners.loading import load_agent
from leyden.runners.runner import Ending, Runner, RunnerConfig
from leyden.runners.tracer import Tracer
from leyden.server.client import StoreClient
from leyden.trainer.naming import name_of


@dataclass(frozen=True)
class Crew:
    """What the runners of a run are to be."""

    agent: str | Agent
    n: int
    concurrency: int
    hooks: Sequence[str | type[Hook] | Hook] = ()
    tracer: str | Tracer | None = None
    max_rollouts: int | None = None  # of each runner

    @property
    def names(self) -> tuple[str, list[str], str | None] | None:
        """Agent, hooks and tracer as another process finds them; None if it cannot find them all."""
        agent, tracer = name_of(self.agent), name_of(self.tracer) if self.tracer else None
        hooks = [name for name in map(name_of, self.hooks) if name]
        if agent is None or len(hooks) < len(self.hooks) or (self.tracer and tracer is None):
            return None
        return agent, hooks, tracer

    def __str__(self) -> str:
        name = self.agent if isinstance(self.agent, str) else self.agent.name
        where = f"{self.n} processes of" if self.names else f"{self.n} in a thread of this process, of"
        return f"{where} {name}, {self.concurrency} rollouts each"


def start_runners(crew: Crew, store: StoreClient, marker: str, board: Board, pool: dict[str, Any]) -> StartedRunners:
    """Runners while the block lasts; ``wait()`` of what it gives raises when they cannot go on. ``pool``: more of ``PoolConfig``."""
    if (names := crew.names) is None:
        board.say("the agent, a hook or the tracer can be found by this process only: the runners are a thread of it")
        return running_inside(crew, store)
    agent, hooks, tracer = names
    asked = {"hooks": tuple(hooks), "tracer": tracer, "max_rollouts": crew.max_rollouts}
    more = pool | {name: value for name, value in asked.items() if value}
    return RunnerPool(PoolConfig(agent, store.url, crew.n, crew.concurrency, token=store.token, **more), marker)


class RunnersInside:
    """``n`` runners on an event loop of their own, so that an agent that blocks does not stop the algorithm."""

    def __init__(self, crew: Crew, store: StoreClient) -> None:
        self._crew = crew
        self._url, self._token = store.url, store.token
        self._loop: asyncio.AbstractEventLoop | None = None
        self._runners: list[Runner] = []
        self._main = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._main.create_future()
        self._thread = threading.Thread(target=self._work, name="runners", daemon=True)

    async def wait(self) -> None:
        """Returns when all have ended; raises ``Unavailable`` for an agent that cannot be stopped, and whatever else ended them."""
        await asyncio.shield(self._ended)

    def start(self) -> None:
        self._thread.start()

    async def stop(self, grace: float) -> None:
        """Hand back what is held. An agent that does not end within ``grace`` seconds more is left to die with this process."""
        if self._loop is not None and not self._ended.done():
            for runner in self._runners:
                self._loop.call_soon_threadsafe(runner.release)
            await asyncio.wait({self._ended}, timeout=grace)
        if self._ended.done() and not self._ended.cancelled():
            self._ended.exception()  # whoever waited has had it

    def _work(self) -> None:
        error: BaseException | None = None
        try:
            asyncio.run(self._run())
        except BaseException as raised:  # carried over to the loop that waits
            error = raised
        self._main.call_soon_threadsafe(self._settle, error)

    def _settle(self, error: BaseException | None) -> None:
        if error is not None:
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)

    async def _run(self) -> None:
        crew = self._crew
        agent = load_agent(crew.agent) if isinstance(crew.agent, str) else crew.agent
        for number in range(1, crew.n + 1):
            config = RunnerConfig(name=f"runner-{number}", concurrency=crew.concurrency, max_rollouts=crew.max_rollouts)
            observers = Observers([_hook(hook) for hook in crew.hooks], _tracer(crew.tracer))
            self._runners.append(Runner(agent, lambda: StoreClient(self._url, 2.0, self._token), config, observers=observers))
        self._loop = asyncio.get_running_loop()
        endings = await asyncio.gather(*(runner.run() for runner in self._runners))
        if Ending.STUCK in endings:
            raise Unavailable("an agent could not be stopped, and its thread goes on until this process ends", "name the agent by its file")


StartedRunners = AbstractAsyncContextManager[RunnerPool | RunnersInside]


@asynccontextmanager
async def running_inside(crew: Crew, store: StoreClient) -> AsyncIterator[RunnersInside]:
    inside = RunnersInside(crew, store)
    inside.start()
    try:
        yield inside
    finally:
        await inside.stop(grace=10.0)


def _hook(hook: str | type[Hook] | Hook) -> Hook:
    from leyden.runners.loading import load_object

    found = load_object(hook) if isinstance(hook, str) else hook
    return found() if isinstance(found, type) else found


def _tracer(tracer: str | Tracer | None) -> Tracer | None:
    from leyden.runners.loading import load_object

    found = load_object(tracer) if isinstance(tracer, str) else tracer
    return found() if isinstance(found, type) else found
