"""Processes of Leyden that start in some 30 ms: forks of one that has imported everything already (the imports take a second).

A fork runs the very functions that the command would, has no other threads, and is killed and stopped like any process.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

PRELOADED = (
    "leyden.cli.store",
    "leyden.runners.process",
    "leyden.server.client",
    "leyden.server.serving",
    "leyden.server.sqlstore",
    "psycopg",
    "sqlalchemy.dialects.postgresql.psycopg",
    "uvicorn.protocols.http.auto",
    "uvloop",
)

PR_SET_PDEATHSIG = 1
_PRCTL = ctypes.CDLL(None).prctl


class Fork:
    """A process that may be signalled as long as it lives: its number is held by a descriptor and cannot become another's."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd = os.pidfd_open(pid)

    @property
    def alive(self) -> bool:
        return not select.select([self._fd], [], [], 0)[0]

    def send_signal(self, signum: int) -> None:
        if self.alive:
            signal.pidfd_send_signal(self._fd, signum)

    def wait(self, seconds: float = 60.0) -> None:
        assert select.select([self._fd], [], [], seconds)[0], f"process {self.pid} does not end"

    def close(self) -> None:
        os.close(self._fd)


class Nursery:
    """``with Nursery() as nursery``: at its end, however it comes, all that were started end as well."""

    def __enter__(self) -> Nursery:
        self._process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None and self._process.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def start(self, function: str, *args: Any, log: Path, env: dict[str, str] | None = None, **kwargs: Any) -> Fork:
        """Call ``module:function`` in a new process, with what JSON can carry. Its output is appended to ``log``."""
        order = {"function": function, "args": args, "kwargs": kwargs, "log": str(log), "env": env or {}}
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return Fork(int(self._process.stdout.readline()))


def main() -> None:
    for name in PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the dead leave at once
    print("ready", flush=True)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _become(json.loads(line))
        print(pid, flush=True)


def _become(order: dict[str, Any]) -> None:
    _PRCTL(PR_SET_PDEATHSIG, signal.SIGKILL)  # the nursery has one thread, so this is its end and nothing else
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for fd, place in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(fd, place)
    os.closerange(3, 1024)
    os.environ.update(order["env"])
    module, _, name = order["function"].partition(":")
    code = 1
    try:
        code = getattr(importlib.import_module(module), name)(*order["args"], **order["kwargs"]) or 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    finally:
        sys.stderr.flush()
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
