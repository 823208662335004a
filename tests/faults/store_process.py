"""A store as a process of its own: killed, stopped, started again on the same port and database."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from store_nursery import Fork, Nursery

from leyden.failpoint import VARIABLE

PATIENCE = 60.0  # seconds: bounds a hang, and measures nothing


class StoreProcess:
    """``leyden store --port … --database …``, forked where a nursery is given, else the command itself. Use it as a context.

    ``database``: a path or a URL. ``program``: another function that serves a store, with the same arguments.
    """

    def __init__(self, directory: Path, database: str, nursery: Nursery | None = None, name: str = "store", program: str = "") -> None:
        self.database = database
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = directory / f"{name}.log"
        self._ready = directory / f"{name}-ready.json"
        self._nursery = nursery
        self._program = program or "leyden.cli.store:run"
        self._process: Fork | subprocess.Popen[bytes] | None = None

    async def __aenter__(self) -> StoreProcess:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        process = self._process
        return process is not None and (process.alive if isinstance(process, Fork) else process.poll() is None)

    @property
    def listens(self) -> bool:
        """Since its last start."""
        return self._ready.exists()

    async def start(self, failpoint: str = "", **more: Any) -> None:
        """Returns once it listens."""
        self.launch(failpoint, **more)
        await self.listening()

    def launch(self, failpoint: str = "", **more: Any) -> None:
        assert not self.alive
        self._ready.unlink(missing_ok=True)
        env = {VARIABLE: failpoint}
        if self._nursery is not None:
            options = {"port": self.port, "database": self.database, "ready_file": str(self._ready), **more}
            self._process = self._nursery.start(self._program, log=self.log, env=env, **options)
            return
        command = [sys.executable, "-m", "leyden", "store", "--port", str(self.port), "--database", self.database]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen([*command, "--ready-file", str(self._ready)], env=os.environ | env, stdout=log, stderr=log)

    async def listening(self) -> None:
        await until(lambda: self.listens or not self.alive, "it listens", self.said)
        assert self.listens, f"it ended before it listened: {self.said()}"
        assert json.loads(self._ready.read_text())["pid"] == self.pid

    def kill(self) -> None:
        """SIGKILL; returns once it is gone."""
        self.send_signal(signal.SIGKILL)
        self.wait()

    def freeze(self) -> None:
        self.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """SIGTERM; returns once it is gone."""
        self.send_signal(signal.SIGTERM)
        self.wait()

    def send_signal(self, signum: int) -> None:
        if self._process is not None:
            self._process.send_signal(signum)

    def wait(self) -> None:
        if self._process is not None:
            self._process.wait(PATIENCE)

    async def restart(self, failpoint: str = "") -> None:
        self.kill()
        await self.start(failpoint)

    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


async def until(condition: Callable[[], Any], what: str, said: Callable[[], str] = lambda: "", patience: float = PATIENCE) -> None:
    """Wait for a condition on what can be seen from outside; fails where it never comes true."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}\n{said()}"
        await asyncio.sleep(0.005)
