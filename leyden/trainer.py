"""``Trainer``: brings the parts that nobody handed over, runs the loop, and ends every part again, however it went."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import sys
from collections.abc import Coroutine, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from leyden.algorithm.sft.loop import run_sft
from leyden.algorithm.sft.phases import Parts
from leyden.algorithm.sft.plan import describe_plan
from leyden.algorithm.sft.report import Board
from leyden.algorithm.sft.rundir import RunDir, new_run_id
from leyden.algorithm.sft.settings import SFTConfig
from leyden.algorithm.sft.summary import Summary
from leyden.algorithm.sft.tasks import LoopTask, check_disjoint, number_tasks
from leyden.errors import LeydenError, MissingExtra, Unavailable, UsageError
from leyden.models.engine import EmbeddedEngine, Engine
from leyden.models.importer import default_directory, import_in_child
from leyden.models.registry import Registry, check_model_dir
from leyden.process import check_port_free, end_leftovers, find_by_marker, new_marker, spawn, wait_ready
from leyden.proxy import LLMProxy
from leyden.runners import PoolConfig, RunnerPool, load_agent
from leyden.server.client import StoreClient
from leyden.server.interface import Store

T = TypeVar("T")

TRAIN_EXTRA = ("torch", "transformers", "trl", "peft", "datasets", "accelerate")


class Interrupted(LeydenError):
    """Ctrl+C or SIGTERM; everything that was started has been ended."""

    code = "interrupted"

    def __init__(self, sig: signal.Signals) -> None:
        super().__init__("interrupted" if sig == signal.SIGINT else "terminated")
        self.exit_code = 128 + sig


@dataclass(frozen=True)
class Trainer:
    """One run of the SFT loop.

    ``agent``: "module:agent" or "path/to/file.py:agent"; runner processes for it are started, unless it is None: then somebody else
    runs them. ``store``: URL of a store; None starts one in the run directory, for this run alone. ``model``: a model directory, a
    source that ``import_model`` knows (imported once into ``models``), or a hub name.
    """

    config: SFTConfig
    model: str = "smollm2"
    agent: str | None = None
    store: str | None = None
    runners: int = 2
    concurrency: int = 16  # rollouts at once in each runner process
    proxy_port: int = 0
    runs: Path = Path("runs")
    models: Path = Path("models")
    debug: bool = False

    def plan(self, train: Iterable[Any], heldout: Iterable[Any] = (), tasks_from: str = "the given tasks") -> dict[str, str]:
        """What ``fit`` would do, as heading → line. Starts nothing."""
        there = self._model_dir
        model = f"{there}" if there.exists() else f"{self.model}, to be imported into {there}"
        own = f"{self.runners} processes of {self.agent}, {self.concurrency} rollouts each"
        return describe_plan(
            self.config,
            model=model,
            train=len(list(train)),
            heldout=len(list(heldout)),
            tasks_from=tasks_from,
            store=self.store or "a new one in the results' directory, on any free port",
            runners=own if self.agent else "yours, on the same store",
            proxy=f"port {self.proxy_port}" if self.proxy_port else "any free port",
            results=self.runs,
        )

    def fit(self, train: Iterable[Any], heldout: Iterable[Any] = (), board: Board | None = None) -> Summary:
        """Run the loop on JSON tasks. Blocks; call it in the main thread, where Ctrl+C is handled: once in good order, twice at once.

        Everything is checked before anything is started. Raises ``UsageError`` for what is wrong then, ``Unavailable`` when a part
        fails later, ``Interrupted`` after Ctrl+C or SIGTERM. No process outlives the call.
        """
        board = board or Board()
        train_tasks, heldout_tasks = number_tasks(train), number_tasks(heldout)
        self.check(train_tasks, heldout_tasks)
        marker = new_marker()
        try:
            return asyncio.run(_interruptible(self._run(train_tasks, heldout_tasks, board, marker), board, marker))
        finally:
            end_leftovers(marker)

    def check(self, train: list[LoopTask], heldout: list[LoopTask]) -> None:
        """Raise ``UsageError`` for whatever would stop the run later. Starts nothing."""
        for module in TRAIN_EXTRA:
            if importlib.util.find_spec(module) is None:
                raise MissingExtra(module, "train")
        if not train:
            raise UsageError("there are no tasks to learn from", "give at least one")
        check_disjoint(train, heldout)
        if self._model_dir.exists() or self._names_a_path:
            check_model_dir(self._model_dir)
        if self.proxy_port:
            check_port_free("127.0.0.1", self.proxy_port)
        if self.agent:
            load_agent(self.agent)
            PoolConfig(self.agent, n=self.runners, concurrency=self.concurrency)
        if self.store:
            asyncio.run(_check_store(self.store))

    async def _run(self, train: list[LoopTask], heldout: list[LoopTask], board: Board, marker: str) -> Summary:
        run = RunDir.create(self.runs, new_run_id(), self._as_config(train, heldout))
        board.say(f"run {run.id}: everything about it is in {run.path}")
        registry = Registry(run.models)
        await self._import(registry, run, board, marker)
        async with AsyncExitStack() as stack:
            url = self.store or await self._start_store(stack, run, marker)
            store: Store = StoreClient(url)
            stack.push_async_callback(store.close)
            proxy = LLMProxy(store, port=self.proxy_port)
            await proxy.start()
            stack.push_async_callback(proxy.stop)

            def make_engine(model_dir: Path, version: str) -> Engine:
                return EmbeddedEngine(model_dir, log_path=run.log(f"engine-{version}"), marker=marker)

            parts = Parts(run, board, store, proxy, registry, make_engine, marker)
            if self.agent is None:
                return await run_sft(parts, self.config, train, heldout)
            pool = PoolConfig(self.agent, url, self.runners, self.concurrency, grace=3.0, log_dir=run.logs, debug=self.debug)
            with board.step(f"start {self.runners} runners"):
                running = await stack.enter_async_context(RunnerPool(pool, marker))
            return await _while_alive(run_sft(parts, self.config, train, heldout), running.wait())

    async def _import(self, registry: Registry, run: RunDir, board: Board, marker: str) -> None:
        """Make version_0 of this run."""
        if not self._model_dir.exists():
            with board.step(f"import {self.model} into {self._model_dir}"):
                await import_in_child(self.model, self._model_dir, marker=marker, log_path=run.log("import"))
        await asyncio.to_thread(registry.import_version, self._model_dir)

    async def _start_store(self, stack: AsyncExitStack, run: RunDir, marker: str) -> str:
        ready, database = run.path / "store.json", run.path / "store.db"
        command = [sys.executable, "-m", "leyden", "store", "--port", "0", "--database", str(database), "--ready-file", str(ready)]
        child = await spawn(command, marker=marker, log_path=run.log("store"))
        stack.push_async_callback(child.stop)

        async def probe() -> bool:
            return ready.exists()

        await wait_ready(child, probe, 30.0, "the store")
        return json.loads(ready.read_text())["url"]

    @property
    def _names_a_path(self) -> bool:
        """``models/x`` could also be a hub name: it is a path below our own ``models``, and where there is a directory ``models``."""
        path = Path(self.model)
        there = path.parent != Path(".") and path.parent.is_dir()
        return path.is_dir() or there or path.parent == self.models or self.model.startswith((".", "/", "~"))

    @property
    def _model_dir(self) -> Path:
        return Path(self.model).expanduser() if self._names_a_path else default_directory(self.model, self.models)

    def _as_config(self, train: list[LoopTask], heldout: list[LoopTask]) -> dict[str, Any]:
        return {
            "model": str(self._model_dir),
            "agent": self.agent,
            "store": self.store,
            "runners": self.runners,
            "concurrency": self.concurrency,
            "train_tasks": [task.id for task in train],
            "heldout_tasks": [task.id for task in heldout],
            "sft": self.config.model_dump(mode="json"),
        }


async def _check_store(url: str) -> None:
    store = StoreClient(url)
    try:
        await store.list_runs(limit=1)
    except Unavailable as error:
        raise UsageError(f"no store answers at {url}", "start one: store --port 4747") from error
    finally:
        await store.close()


async def _while_alive(work: Coroutine[Any, Any, T], needed: Coroutine[Any, Any, None]) -> T:
    """The work's result, unless what it needs ends or fails first: then that error."""
    working, watch = asyncio.create_task(work), asyncio.create_task(needed)
    try:
        await asyncio.wait({working, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            watch.result()
            raise Unavailable("the runners have all ended", "look at their logs in the run directory")
        return working.result()
    finally:
        watch.cancel()
        working.cancel()
        await asyncio.wait({working, watch})


async def _interruptible(work: Coroutine[Any, Any, T], board: Board, marker: str) -> T:
    """Run the work. The first SIGINT or SIGTERM cancels it, and it cleans up; a second one ends everything at once."""
    task = asyncio.ensure_future(work)
    received: list[signal.Signals] = []

    def on_signal(sig: signal.Signals) -> None:
        received.append(sig)
        if len(received) == 1:
            board.say("stopping: ending the engine, the runners and the store (Ctrl+C again: at once)")
            task.cancel()
        else:
            for process in find_by_marker(marker):
                process.kill()
            os._exit(128 + sig)

    loop = asyncio.get_running_loop()
    for sig in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sig, on_signal, sig)
    try:
        return await task
    except asyncio.CancelledError:
        if not received:
            raise
        raise Interrupted(received[0]) from None
    finally:
        for sig in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(sig)
