"""What tests of real processes share."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable


def eventually(condition: Callable[[], bool], timeout: float = 30.0) -> None:
    """For what no event announces: processes of other parents."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(code)]


def start_parent(marker: str, code: str) -> subprocess.Popen[bytes]:
    """A parent process of its own, which spawns and then says so on stdout."""
    return subprocess.Popen(python(code), env=os.environ | {"TEST_MARKER": marker}, stdout=subprocess.PIPE)


async def logged(child: object, line: str) -> bool:
    return line in child.tail().splitlines()  # type: ignore[attr-defined]
