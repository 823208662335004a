"""The lock of a run's driver: a file that one process holds, and that the kernel lets go when the process ends, SIGKILL included."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from leyden.errors import UsageError

LOOKS, LOOK = 10, 0.02  # whoever asks who holds it takes it for a moment: times to try, and seconds in between


class DriverLock:
    """flock(2) on a file that names its holder: its pid, and the marker of its children. Those do not inherit the lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    def acquire(self, what: str, marker: str) -> str | None:
        """Take it, and return the marker of whoever held it before. Raises ``UsageError``, "``what`` by process N", while another does."""
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        for _ in range(LOOKS):
            if _try(fd, fcntl.LOCK_EX):
                break
            time.sleep(LOOK)
        else:
            os.close(fd)
            raise UsageError(f"{what} by process {self._named}", "wait for it, stop it, or start a run of your own with --new")
        _, _, former = self.path.read_text().partition(" ")
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()} {marker}".encode(), 0)
        self._fd = fd
        return former or None

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    @property
    def holder(self) -> int | None:
        """The pid of the process that holds it; None where it is free."""
        if self._fd is not None:
            return os.getpid()
        try:
            fd = os.open(self.path, os.O_RDWR)
        except FileNotFoundError:
            return None
        try:
            return None if _try(fd, fcntl.LOCK_SH) else self._named
        finally:
            os.close(fd)

    @property
    def _named(self) -> int:
        return int(self.path.read_text().partition(" ")[0] or 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


def _try(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
