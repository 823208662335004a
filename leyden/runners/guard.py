"""What keeps an agent's mischief from the others in its process: closed outputs, forks that come back, tool servers without our marker."""

from __future__ import annotations

import asyncio
import io
import os
import selectors
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from leyden.process import MARKER

_STANDARD = (0, 1, 2)


class Stdio:
    """The standard descriptors, kept. What is printed goes to stderr over one of its own, so that an agent that closes stdout (the object,
    or descriptor 1) silences nobody else."""

    def __init__(self) -> None:
        os.dup2(2, 1)
        self._spare = {fd: os.dup(fd) for fd in _STANDARD}  # dup: not inherited by programs
        self._identity = {fd: identity(fd) for fd in _STANDARD}
        sys.stdout = sys.stderr = _Talk(os.dup(2))

    def restore(self) -> bool:
        """Open again what was closed. False if another file has taken the place: whatever program starts next would write into it."""
        for fd in _STANDARD:
            now = identity(fd)
            if now is None:
                os.dup2(self._spare[fd], fd)
            elif now != self._identity[fd]:
                return False
        return True


class _Talk(io.TextIOWrapper):
    """A stream that cannot be closed."""

    def __init__(self, fd: int) -> None:
        raw = io.BufferedWriter(io.FileIO(fd, "w"))
        super().__init__(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True, write_through=True)

    def close(self) -> None:
        self.flush()


def identity(fd: int) -> tuple[int, int, int] | None:
    """What is open there; None: nothing."""
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_rdev


class EventLoop(asyncio.SelectorEventLoop):
    """A loop that no agent's task can end, and that does not go on in a fork: two loops on the same connections would break both."""

    def __init__(self) -> None:
        super().__init__(_HomeSelector())

    def run_forever(self) -> None:
        while True:
            try:
                return super().run_forever()
            except (SystemExit, KeyboardInterrupt):  # asyncio lets these out of any task; whoever awaits that task gets them too
                continue


class _HomeSelector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self._home = os.getpid()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if os.getpid() != self._home:
            os._exit(0)
        return super().select(timeout)


@contextmanager
def fork_ends_here() -> Iterator[None]:
    """Around code that may fork: a fork that comes back, by a return or an exception, ends. Only its parent goes on."""
    home = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != home:
            os._exit(0)


def mark_tool_servers() -> None:
    """Let MCP servers carry our marker: their client starts them with a handful of variables, and a stuck one could not be found."""
    stdio = sys.modules.get("mcp.client.stdio")
    if stdio is not None and MARKER not in stdio.DEFAULT_INHERITED_ENV_VARS:
        stdio.DEFAULT_INHERITED_ENV_VARS.append(MARKER)
