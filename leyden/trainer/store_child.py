"""The store that a run brings for itself: a child process on a database in the run directory."""

from __future__ import annotations

import json
import sys

from leyden.algorithm.sft.report import Board
from leyden.algorithm.sft.rundir import RunDir
from leyden.errors import Unavailable
from leyden.process import Child, spawn, wait_ready

MAX_RESTARTS = 3
START_TIMEOUT = 120.0  # seconds; a machine that is busy takes its time


class StoreChild:
    """Started again on the same port and database when it dies, so that clients, which try for 30 s, hardly notice."""

    def __init__(self, run: RunDir, board: Board, marker: str, port: int = 0) -> None:
        self.url = ""
        self._database, self._ready_file, self._log = run.path / "store.db", run.path / "store.json", run.log("store")
        self._board = board
        self._marker = marker
        self._port = port
        self._child: Child | None = None

    async def start(self) -> None:
        """Raises ``Unavailable`` with the end of its log when it does not come up."""
        self._ready_file.unlink(missing_ok=True)  # an earlier one's says nothing about this one
        command = [sys.executable, "-m", "leyden", "store", "--port", str(self._port), "--database", str(self._database)]
        child = await spawn([*command, "--ready-file", str(self._ready_file)], marker=self._marker, log_path=self._log)
        self._child = child
        await wait_ready(child, self._is_ready, START_TIMEOUT, "the store")
        where = json.loads(self._ready_file.read_text())
        self.url, self._port = where["url"], where["port"]

    async def supervise(self) -> None:
        """Start it again whenever it dies, at most ``MAX_RESTARTS`` times. Never returns; raises ``Unavailable`` after the last death."""
        for _ in range(MAX_RESTARTS):
            how = await self._death()
            self._board.say(f"the store died ({how}): starting it again on port {self._port} with the same database")
            await self.stop()
            try:
                await self.start()
            except Unavailable:  # one death more, and of one that came up too late too
                await self.stop()
        how = await self._death()
        assert self._child is not None
        last_lines = f"last lines of {self._log}:\n{self._child.tail()}"
        raise Unavailable(f"the store died {MAX_RESTARTS + 1} times, at last with {how}", last_lines)

    async def _death(self) -> str:
        assert self._child is not None
        code = await self._child.wait()
        return f"exit status {code}" if code >= 0 else f"signal {-code}"

    async def stop(self) -> None:
        if self._child is not None:
            await self._child.stop()

    async def _is_ready(self) -> bool:
        return self._ready_file.exists()
