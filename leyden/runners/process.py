"""The program of one runner process: ``python -m leyden.runners.process module:agent --store URL``. ``RunnerPool`` starts it.

It tells its parent on stdout, one JSON object a line: ``{"event": "ready"}`` once the agent is loaded, or ``{"event": "error", …}``; then
``held`` and ``ended`` with the lease's ``ref``, so that the parent can hand back what a dead runner held, and ``beat``.
SIGINT: finish what is held; a second one: hand it back now. SIGTERM: finish, and hand back what is left after ``--grace`` seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import traceback
from contextlib import suppress
from typing import Any

from leyden.errors import LeydenError
from leyden.process import watch_parent
from leyden.runners import openai_agents
from leyden.runners.agent import Agent
from leyden.runners.guard import EventLoop, Stdio, identity, mark_tool_servers
from leyden.runners.hooks import Observers
from leyden.runners.loading import load_agent, make_object
from leyden.runners.runner import Ending, Runner, RunnerConfig
from leyden.runners.spool import spool_of
from leyden.runners.watcher import News, Watcher
from leyden.server.interface import TOKEN
from leyden.types import LeaseRef

EXIT_STUCK = 75  # EX_TEMPFAIL of sysexits.h: an agent could not be stopped, start me anew
STORE_DEADLINE = 2.0  # seconds a call tries by itself; beyond, the runner says that the store is away, and goes on trying
HARD_STOP_MARGIN = 10.0  # seconds beyond the grace before the death pipe's watcher ends us hard


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m leyden.runners.process")
    parser.add_argument("agent")
    parser.add_argument("--store", required=True)
    parser.add_argument("--name", default=RunnerConfig.name)
    parser.add_argument("--concurrency", type=int, default=RunnerConfig.concurrency)
    parser.add_argument("--lease", type=float, default=RunnerConfig.lease_seconds)
    parser.add_argument("--grace", type=float, default=10.0)
    parser.add_argument("--queue", action="append", default=[])
    parser.add_argument("--alone-first", type=int, default=0)
    parser.add_argument("--max-rollouts", type=int)
    parser.add_argument("--hook", action="append", default=[])
    parser.add_argument("--tracer")
    parser.add_argument("--debug", action="store_true")
    args = parser.parse_args(argv)
    token = os.environ.pop(TOKEN, None)  # the tools that an agent starts must not inherit it
    parent = os.dup(1)
    stdio = Stdio()  # what an agent prints is talk, and must not get into our lines
    watch_parent(args.grace + HARD_STOP_MARGIN)
    openai_agents.watch()  # before the agent can import its SDK
    try:
        agent = load_agent(args.agent)
        observers = Observers([make_object(hook) for hook in args.hook], make_object(args.tracer) if args.tracer else None)
        mark_tool_servers()
        early: list[int] = []
        for sig in (signal.SIGINT, signal.SIGTERM):  # what these raised inside the loop would end its main task, and not the loop
            signal.signal(sig, lambda signum, frame: early.append(signum))
        with asyncio.Runner(loop_factory=EventLoop) as loop:
            return loop.run(_run(agent, observers, args, token, ParentWatches(parent, stdio), early))
    except LeydenError as error:
        if args.debug:
            traceback.print_exc()
        _tell(parent, event="error", exit_code=error.exit_code, **error.as_dict()["error"])
        return error.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        for sig in (signal.SIGINT, signal.SIGTERM):  # we are leaving: being told so once more must not disturb what cleans up
            signal.signal(sig, signal.SIG_IGN)


class ParentWatches(Watcher):
    def __init__(self, parent: int, stdio: Stdio) -> None:
        self._parent = parent
        self._line = identity(parent)
        self._stdio = stdio

    def tell(self, news: News, ref: LeaseRef | None = None) -> None:
        if self._has_line():
            _tell(self._parent, event=news.value, **({"ref": ref.model_dump()} if ref else {}))

    def is_sound(self) -> bool:
        return self._stdio.restore() and self._has_line()

    def _has_line(self) -> bool:
        """False once an agent has closed it. Its number may be a connection's by now, and what we tell would get into that."""
        return identity(self._parent) == self._line

    def on_blocked(self) -> None:
        os._exit(EXIT_STUCK)


async def _run(
    agent: Agent, observers: Observers, args: argparse.Namespace, token: str | None, watcher: ParentWatches, early: list[int]
) -> int:
    from leyden.server.client import StoreClient

    config = RunnerConfig(
        name=args.name,
        concurrency=args.concurrency,
        lease_seconds=args.lease,
        max_rollouts=args.max_rollouts,
        queues=tuple(args.queue) or RunnerConfig.queues,
        alone_first=args.alone_first,
        spool=spool_of(args.store),
    )
    runner = Runner(agent, lambda: StoreClient(args.store, STORE_DEADLINE, token), config, watcher, observers)
    loop = asyncio.get_running_loop()
    asked = False

    def stop(grace: float | None) -> None:
        nonlocal asked
        if asked:
            runner.release()
            return
        asked = True
        runner.drain()
        if runner.running:
            print(f"{args.name}: finishing {runner.running} rollouts", file=sys.stderr, flush=True)
        if grace is not None:
            loop.call_later(grace, runner.release)

    loop.add_signal_handler(signal.SIGINT, stop, None)
    loop.add_signal_handler(signal.SIGTERM, stop, args.grace)
    for signum in early:
        stop(None if signum == signal.SIGINT else args.grace)
    watcher.tell(News.READY)
    if await runner.run() is Ending.STUCK:
        sys.stderr.flush()
        os._exit(EXIT_STUCK)  # an orderly exit would wait for the agent that does not end
    return 0


def _tell(parent: int, **event: Any) -> None:
    with suppress(BrokenPipeError):  # the parent has gone: its death pipe ends us
        os.write(parent, json.dumps(event).encode() + b"\n")  # one write a line: two threads tell


if __name__ == "__main__":
    sys.exit(main())
