"""A store's program on a machine whose wall clock somebody sets while it runs."""

from __future__ import annotations

import mmap
import struct
import time
from pathlib import Path


class WallClock:
    """What a shifted store's wall clock is ahead of ours, in a file that both have open."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(struct.pack("q", 0))
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), 8)

    def set_ahead(self, seconds: float) -> None:
        self._shared[:] = struct.pack("q", round(seconds * 1e9))

    def ahead_ns(self) -> int:
        return int(struct.unpack("q", self._shared[:])[0])


def run(port: int, database: str, ready_file: str, clock: str) -> None:
    """``leyden store``, with every reading of the wall clock moved by what the file ``clock`` says at that moment."""
    from leyden.cli.store import run as run_store

    wall, real = WallClock(Path(clock)), time.time_ns
    time.time_ns = lambda: real() + wall.ahead_ns()
    time.time = lambda: time.time_ns() / 1e9
    run_store(port=port, database=database, ready_file=ready_file)
