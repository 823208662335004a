"""``Trainer``: brings the parts that nobody handed over, runs the algorithm, and ends every part again, however it went."""

from __future__ import annotations

import asyncio
import inspect
import shlex
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import uvloop

from leyden.algorithm.algorithm import Algorithm, Context, FastAlgorithm, as_list
from leyden.algorithm.baseline import Baseline
from leyden.algorithm.sft.algorithm import SFT
from leyden.algorithm.sft.driver import end_workers
from leyden.algorithm.sft.report import Board
from leyden.algorithm.sft.rundir import HOW, RunDir, new_run_id
from leyden.doctor.examination import check_before_run
from leyden.errors import LeydenError, Unavailable, UsageError
from leyden.ports import check_port_free
from leyden.process import end_leftovers, new_marker
from leyden.proxy import LLMProxy
from leyden.runners import PoolConfig, load_agent
from leyden.runners.agent import Agent
from leyden.runners.hooks import Hook
from leyden.runners.tracer import Tracer
from leyden.server.client import StoreClient
from leyden.trainer.interruption import interruptible, while_alive
from leyden.trainer.naming import in_runner_process
from leyden.trainer.runners import Crew, StartedRunners, start_runners
from leyden.trainer.store_child import START_TIMEOUT, StoreChild
from leyden.trainer.threads import in_thread
from leyden.types import Resource

LOOPBACK = "127.0.0.1"
RUNNER_GRACE = 3.0  # seconds the runners get to finish what they hold when a run ends


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """One run of an algorithm.

    What is not handed over is started, and what was started is ended: a store (``store``: the URL of one, or its client), an LLM proxy
    (one without a store gets the trainer's), ``n_runners`` runners with up to ``concurrency`` rollouts each. ``hooks`` (classes, or
    "module:Class") and ``tracer`` go to the runners. ``port``: the own store's; None: any free one. ``max_rollouts``: of each runner.

    A run of a resumable algorithm that has the same settings and did not end is gone on with, unless ``new``. ``resume``: the one of
    that id (a unique prefix, ``@latest``). ``fork``: a new run that begins with that run's champion. ``command``: the command line that
    a person would repeat, as the line that resumes shows it.
    """

    algorithm: Algorithm | None = field(default_factory=SFT)  # None: ``dev`` alone
    n_runners: int = 2
    concurrency: int = 16
    store: str | StoreClient | None = None
    llm_proxy: LLMProxy | None = None
    adapter: Any = None
    tracer: Tracer | str | None = None
    hooks: Sequence[Hook | type[Hook] | str] = ()
    port: int | None = None
    initial_resources: Mapping[str, Resource] | None = None
    max_rollouts: int | None = None
    runs: Path = Path("runs")
    resume: str | None = None
    fork: str | None = None
    new: bool = False
    command: Sequence[str] | None = None
    debug: bool = False

    def plan(
        self, agent: str | Agent | None, train_dataset: Any, val_dataset: Any = None, tasks_from: str = "the given tasks"
    ) -> dict[str, str]:
        """What ``fit`` would do, as heading → line. Starts nothing."""
        port = self.llm_proxy.port if self.llm_proxy else 0
        return self._algorithm.plan(as_list(train_dataset), as_list(val_dataset), tasks_from) | {
            "runners": str(self._crew(agent)) if agent else "yours, on the same store",
            "store": self._store_url or "a new one in the results' directory, on any free port",
            "proxy": f"port {port}" if port else "any free port",
            "results": f"a directory of its own in {self.runs}",
        }

    def fit(self, agent: str | Agent | None, train_dataset: Any = None, val_dataset: Any = None, board: Board | None = None) -> Any:
        """Run the algorithm with runners for the agent, and return its result. Blocks; call it in the main thread.

        ``agent``: "module:agent", "path/to/file.py:agent", an agent, or None where somebody else runs them. Ctrl+C ends everything: once
        in good order, twice at once. Everything is checked before anything is started. Raises ``UsageError`` for what is wrong then,
        ``Unavailable`` when a part fails later, ``Interrupted`` after Ctrl+C or SIGTERM. No process outlives the call.
        """
        if in_runner_process():
            raise UsageError("a runner's process imported the script that trains", 'put what starts under: if __name__ == "__main__":')
        board = board or Board()
        train, val = _again(train_dataset), _again(val_dataset)
        self.check(agent, train, val)
        marker = new_marker()
        try:
            return uvloop.run(interruptible(self._run(agent, train, val, board, marker), board, marker))
        finally:
            end_leftovers(marker)

    def dev(self, agent: str | Agent | None, train_dataset: Any = None, val_dataset: Any = None, board: Board | None = None) -> Any:
        """A quick run of a ``FastAlgorithm`` over a few tasks: what does the agent earn? Trains nothing, and starts afresh.

        An algorithm that is not fast is replaced by its ``fast`` form, or by ``Baseline``. Raises what ``fit`` raises.
        """
        fast = self.algorithm if isinstance(self.algorithm, FastAlgorithm) else None
        if fast is None:
            fast = self.algorithm.fast() if isinstance(self.algorithm, SFT) else Baseline()
        return replace(self, algorithm=fast, resume=None, new=True).fit(agent, train_dataset, val_dataset, board)

    def check(self, agent: str | Agent | None, train_dataset: Any = None, val_dataset: Any = None) -> None:
        """Raise ``UsageError`` for whatever would stop the run later. Starts nothing."""
        if self.resume is not None and (self.new or self.fork is not None):
            raise UsageError("--resume excludes --new and --fork", "one of them, or none: an unfinished run goes on by itself")
        if self.resume is not None and not self._algorithm.resumable:
            raise UsageError(f"a run of {type(self._algorithm).__name__} cannot go on", "leave --resume out, or make it resumable")
        self._settings(agent, train_dataset, val_dataset)  # a run to fork that does not exist is named now
        self._algorithm.check(train_dataset, val_dataset)
        if self.llm_proxy and not self.llm_proxy.base_url and self.llm_proxy.port:
            check_port_free(LOOPBACK, self.llm_proxy.port)
        if self.port and self.store is None:
            check_port_free(LOOPBACK, self.port)
        if agent is not None:
            if isinstance(agent, str):
                load_agent(agent)
            PoolConfig("", n=self.n_runners, concurrency=self.concurrency)
        if self._store_url:
            asyncio.run(_check_store(self._store_url, self._token))
        if isinstance(self.algorithm, SFT):
            model = self.algorithm.model_dir
            check_before_run(runs=self.runs, model=model if model.exists() else None)

    async def _run(self, agent: str | Agent | None, train: Any, val: Any, board: Board, marker: str) -> Any:
        run = self._open(agent, train, val, board)
        with run.lock(marker):
            try:
                result = await self._with_store(run, agent, train, val, board, marker)
            except (asyncio.CancelledError, Exception) as error:
                if not run.has_ended and self._algorithm.resumable:
                    board.say(f"resume: {self._resume_line(run)}")
                elif not run.has_ended:
                    run.end(*_how_it_failed(error))
                raise
            if not run.has_ended:
                run.end("finished", "its algorithm came to its end")
            return result

    def _open(self, agent: str | Agent | None, train: Any, val: Any, board: Board) -> RunDir:
        """The run directory: a new one, or that of the run that goes on."""
        settings = self._settings(agent, train, val)
        if self.resume is not None:
            run = RunDir.resume(self.runs, self.resume, settings)
        elif not self.new and self._algorithm.resumable and (unfinished := RunDir.find_unfinished(self.runs, settings)):
            run = unfinished
        else:
            if self._algorithm.resumable and not self.new and self.fork is None:
                self._name_unfinished(settings, board)
            run = RunDir.create(self.runs, new_run_id(), settings)
        what = "goes on (--new starts afresh)" if run.resumed else "begins"
        board.say(f"run {run.id} {what}: everything about it is in {run.path}")
        return run

    def _name_unfinished(self, settings: dict[str, Any], board: Board) -> None:
        """Whoever types the same command again and mistypes it should not wait for what is done already."""
        same = (run for run in RunDir.interrupted(self.runs) if run.config.get("algorithm") == settings.get("algorithm"))
        if (other := next(same, None)) is not None:
            differing = "; ".join(other.differences(settings, HOW))
            board.say(f"run {other.id} is unfinished, but was started with other settings ({differing}): this is a new one")

    async def _with_store(self, run: RunDir, agent: str | Agent | None, train: Any, val: Any, board: Board, marker: str) -> Any:
        if url := self._store_url:
            async with StoreClient(url, token=self._token) as store:
                return await self._with_parts(run, store, agent, train, val, board, marker)
        own = StoreChild(run, board, marker, self.port or 0)
        try:
            await own.start()
            async with StoreClient(own.url, START_TIMEOUT) as store:  # it comes back, or the run ends with its death
                if run.resumed:
                    await end_workers(store)
                return await while_alive(self._with_parts(run, store, agent, train, val, board, marker), _supervise(own, store))
        finally:
            await own.stop()

    async def _with_parts(
        self, run: RunDir, store: StoreClient, agent: str | Agent | None, train: Any, val: Any, board: Board, marker: str
    ) -> Any:
        algorithm = self._algorithm
        async with AsyncExitStack() as stack:
            proxy = await self._start_proxy(stack, store)
            initial = dict(self.initial_resources or {})
            if initial:
                await store.add_resources(initial)
            algorithm.attach(Context(run, board, store, store.url, proxy, marker, self.adapter, initial))
            stack.callback(algorithm.attach, None)
            if agent is None:
                return await _call(algorithm, train, val)
            pool: dict[str, Any] = {"grace": RUNNER_GRACE, "log_dir": run.logs, "debug": self.debug}
            crew = start_runners(self._crew(agent), store, marker, board, pool)
            return await while_alive(_call(algorithm, train, val), self._runners_last(crew, stack, board))

    async def _start_proxy(self, stack: AsyncExitStack, store: StoreClient) -> LLMProxy:
        """The proxy handed over, started if nobody has, or one of our own."""
        proxy = self.llm_proxy or LLMProxy()
        if proxy.store is None:
            proxy.store = store
            stack.callback(setattr, proxy, "store", None)
        if not proxy.base_url:
            await proxy.start()
            stack.push_async_callback(proxy.stop)
        return proxy

    async def _runners_last(self, crew: StartedRunners, stack: AsyncExitStack, board: Board) -> None:
        """Start them while the algorithm begins: what it has for them waits in the store."""
        with board.beside(f"start {self.n_runners} runners"):
            runners = await stack.enter_async_context(crew)
        await runners.wait()
        if self.max_rollouts is None:
            raise Unavailable("the runners have all ended", "look at their logs in the run directory")

    def _crew(self, agent: str | Agent) -> Crew:
        return Crew(agent, self.n_runners, self.concurrency, self.hooks, self.tracer, self.max_rollouts)

    @property
    def _algorithm(self) -> Algorithm:
        if self.algorithm is None:
            raise UsageError("the trainer has no algorithm", "Trainer(algorithm=SFT()).fit(...), or Trainer(...).dev(...)")
        return self.algorithm

    @property
    def _store_url(self) -> str | None:
        """Of the store handed over; one that the proxy brings counts too, for both must be the same."""
        store = self._given_store
        if store is None or isinstance(store, str):
            return store
        if not isinstance(store, StoreClient):
            raise UsageError(f"runners cannot reach a {type(store).__name__}", "serve it (leyden store --port 4747) and pass its URL")
        return store.url

    @property
    def _token(self) -> str | None:
        """What the store handed over is shown; None for its URL alone: that of ``LEYDEN_TOKEN``."""
        return self._given_store.token if isinstance(self._given_store, StoreClient) else None

    @property
    def _given_store(self) -> Any:
        return self.store or (self.llm_proxy.store if self.llm_proxy else None)

    def _settings(self, agent: str | Agent | None, train: Any, val: Any) -> dict[str, Any]:
        """What makes this run this run; ``RunDir`` knows which of it may change when it goes on."""
        return self._algorithm.settings(train, val) | {
            "agent": agent.name if isinstance(agent, Agent) else agent,
            "store": self._store_url,
            "runners": self.n_runners,
            "concurrency": self.concurrency,
            "forked_from": RunDir.find(self.runs, self.fork).id if self.fork else None,
        }

    def _resume_line(self, run: RunDir) -> str:
        if self.command is None:
            return f'Trainer(..., resume="{run.id}")'
        named = {"--resume", "--fork"}
        kept = [word for before, word in zip(["", *self.command], self.command, strict=False) if named.isdisjoint((before, word))]
        kept = [word for word in kept if word != "--new" and not word.startswith(("--resume=", "--fork="))]
        return f"{shlex.join(kept)} --resume {run.id}"


async def _supervise(own: StoreChild, store: StoreClient) -> None:
    try:
        await own.supervise()
    except Unavailable:
        store.deadline = 0.0  # it will not come back: what ends now must not wait for it
        raise


def _how_it_failed(error: BaseException) -> tuple[str, str]:
    """State and reason of a run that cannot go on."""
    if isinstance(error, asyncio.CancelledError):
        return "cancelled", "interrupted"
    return "failed", error.message if isinstance(error, LeydenError) else f"{type(error).__name__}: {error}"


async def _call(algorithm: Algorithm, train: Any, val: Any) -> Any:
    """``run``, whichever kind of function it is."""
    if inspect.iscoroutinefunction(algorithm.run):
        return await algorithm.run(train_dataset=train, val_dataset=val)
    return await in_thread(lambda: algorithm.run(train_dataset=train, val_dataset=val))


def _again(dataset: Any) -> Any:
    """The dataset, as something that can be gone over more than once."""
    return dataset if dataset is None or hasattr(dataset, "__len__") else list(dataset)


async def _check_store(url: str, token: str | None) -> None:
    async with StoreClient(url, token=token) as store:
        try:
            await store.list_runs(limit=1)
        except Unavailable as error:
            raise UsageError(f"no store answers at {url}", "start one: store --port 4747") from error
