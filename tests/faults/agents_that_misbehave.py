"""Agents that do what agents should not, beside some that do no harm: the task says which. ``DIR/go`` lets the harmless ones end."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from leyden.runners import rollout


@rollout
async def in_the_loop(task: dict[str, Any]) -> float:
    place = Path(task["dir"])
    if task["do"] == "no harm":
        return await harmless(place)
    while not beside(place):  # not before somebody is beside it
        await asyncio.sleep(0.02)
    if task["do"] == "close every pipe":
        close_every_pipe()
    if task["do"] in ("wait", "close every pipe"):
        await asyncio.Event().wait()
    if task["do"] == "exit in a task":
        await asyncio.create_task(exit_soon())
    if task["do"] == "fork and wait in the fork" and not os.fork():
        await asyncio.Event().wait()
    return MISCHIEF[task["do"]](place) if task["do"] in MISCHIEF else 1.0


@rollout
def in_a_thread(task: dict[str, Any]) -> float:
    place = Path(task["dir"])
    if task["do"] == "no harm":
        return asyncio.run(harmless(place))
    while not beside(place):
        time.sleep(0.02)
    return MISCHIEF[task["do"]](place)


def beside(place: Path) -> list[Path]:
    return list(place.glob("beside-*"))


async def harmless(place: Path) -> float:
    (place / f"beside-{os.getpid()}-{id(asyncio.current_task())}").touch()
    while not (place / "go").exists():
        print("nothing wrong here")
        await asyncio.sleep(0.05)
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "print('a program of mine')")
    return float(await process.wait() == 0)


async def exit_soon() -> None:
    await asyncio.sleep(0.01)
    sys.exit("from a task of its own")


def spin(place: Path) -> float:
    while True:
        pass


def freeze(place: Path) -> float:
    """One operation in C that never lets another thread run."""
    return float(9**9**9)


def fork_and_leave_it(place: Path) -> float:
    """The child lives on, in a session of its own."""
    if os.fork():
        return 1.0
    os.setsid()
    (place / f"orphan-{os.getpid()}").touch()
    while True:
        time.sleep(60)


def fork_and_exit(place: Path) -> float:
    fork_and_leave_it(place)
    sys.exit("the parent")


def fork_and_come_back(place: Path) -> float:
    return float(bool(os.fork()))


def fork_and_exit_in_the_child(place: Path) -> float:
    if not os.fork():
        sys.exit("the child")
    return 1.0


def close_stdout(place: Path) -> float:
    sys.stdout.close()
    for fd in (0, 1, 2):
        os.close(fd)
    return 1.0


def close_stdout_and_open_a_file(place: Path) -> float:
    os.close(1)
    (place / "taken").open("w").close()
    global taken
    taken = (place / "taken").open("w")  # it has descriptor 1 now
    return 1.0


def raise_system_exit(place: Path) -> float:
    raise SystemExit(3)


def close_every_pipe() -> None:
    """The line to the runner's parent is one."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # the listing's own
            if fd > 2 and os.readlink(f"/proc/self/fd/{fd}").startswith("pipe:"):
                os.close(fd)


def end_the_process(place: Path) -> float:
    os._exit(3)


MISCHIEF: dict[str, Callable[[Path], float]] = {
    "spin": spin,
    "freeze": freeze,
    "fork and leave it": fork_and_leave_it,
    "fork and exit": fork_and_exit,
    "fork and come back": fork_and_come_back,
    "fork and exit in the child": fork_and_exit_in_the_child,
    "close stdout": close_stdout,
    "close stdout and open a file": close_stdout_and_open_a_file,
    "raise SystemExit": raise_system_exit,
    "end the process": end_the_process,
}
