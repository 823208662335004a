"""What ``soak.py`` runs and harms: the store, pools of runners, and a door between them that can be slammed."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import struct
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from leyden.process import Child, spawn, wait_ready

HERE = Path(__file__).parent
START_TIMEOUT = 60.0  # seconds
RESET = struct.pack("ii", 1, 0)  # SO_LINGER of no time: closing sends RST


class Store:
    """``leyden store`` on a SQLite file, as anybody starts it; again on the same port each time."""

    def __init__(self, directory: Path, marker: str) -> None:
        self.database = directory / "soak.db"
        self.log = directory / "store.log"
        self.url = ""
        self.port = 0
        self.starts = 0
        self.child: Child | None = None
        self._ready = directory / "store.json"
        self._marker = marker

    async def start(self) -> None:
        self._ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "leyden", "store", "--port", str(self.port), "--database", str(self.database)]
        child = await spawn([*command, "--ready-file", str(self._ready)], marker=self._marker, log_path=self.log)
        self.child = child

        async def is_ready() -> bool:
            return self._ready.exists()

        await wait_ready(child, is_ready, START_TIMEOUT, "the store")
        where = json.loads(self._ready.read_text())
        self.url, self.port = where["url"], where["port"]
        self.starts += 1

    async def restart(self, signum: signal.Signals) -> None:
        assert self.child is not None
        await self.child.stop(30.0, signum)
        await self.start()

    async def stop(self) -> int:
        assert self.child is not None
        return await self.child.stop(30.0)


class Pool:
    """``leyden runners`` with the agent of ``soak_agent.py``: a parent process and the runners that it keeps."""

    def __init__(self, name: str, directory: Path, marker: str, url: str, n: int, lease: float, env: Mapping[str, str]) -> None:
        self.name = name
        self._log = directory / f"{name}.log"
        self._marker = marker
        agent = f"{HERE / 'soak_agent.py'}:work"
        self._command = [sys.executable, "-m", "leyden", "runners", agent, "-n", str(n), "--store", url, "--lease", str(lease)]
        self._env = {**env, "LEYDEN_SPOOL": str(directory / f"{name}-spool")}
        self._child: Child | None = None

    async def start(self) -> None:
        self._child = await spawn(self._command, marker=self._marker, log_path=self._log, env=self._env)

    @property
    def parent(self) -> int:
        assert self._child is not None
        return self._child.pid

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.returncode is None

    def runners(self) -> list[int]:
        with suppress(psutil.NoSuchProcess):
            return [child.pid for child in psutil.Process(self.parent).children() if child.status() != psutil.STATUS_ZOMBIE]
        return []

    def kill_one(self, chance: random.Random) -> None:
        if runners := self.runners():
            with suppress(ProcessLookupError):
                os.kill(chance.choice(runners), signal.SIGKILL)

    async def stall(self, seconds: float) -> None:
        """As a machine that sleeps: parent and runners stand still, and go on as if nothing had happened."""
        pids = [self.parent, *self.runners()]
        try:
            for pid in pids:
                _send(pid, signal.SIGSTOP)
            await asyncio.sleep(seconds)
        finally:
            for pid in reversed(pids):
                _send(pid, signal.SIGCONT)

    async def stop(self) -> int:
        assert self._child is not None
        return await self._child.stop(40.0)


def _send(pid: int, signum: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signum)


class Door:
    """A port before a store's: whatever goes through it passes, until ``slam`` resets all connections on both sides."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self.url = ""

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def slam(self) -> int:
        """The number of connections that were reset."""
        slammed = list(self._open)
        for writer in slammed:
            if (sock := writer.get_extra_info("socket")) is not None:  # else it has just been closed
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.transport.abort()
        return len(slammed) // 2

    async def stop(self) -> None:
        self._server.close()
        self.slam()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:  # the store is away
            writer.close()
            return
        pair = {writer, up_writer}
        self._open |= pair
        pumps = [asyncio.create_task(_pump(reader, up_writer)), asyncio.create_task(_pump(up_reader, writer))]
        self._pumps.update(pumps)
        await asyncio.gather(*pumps)
        self._pumps.difference_update(pumps)
        self._open -= pair


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
