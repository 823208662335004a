"""``python -m leyden.models.keeper COMMAND…``: runs a command that knows nothing of us so that it cannot outlive us.

A program of somebody else does not watch the death pipe of ``leyden.process``. This small parent does it in its place: SIGTERM is
passed on, and whatever the way out, all that the command has started ends with it. Exit status: the command's.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

from leyden.process import watch_parent


def kept(command: Sequence[str]) -> list[str]:
    """The command to spawn instead of ``command``."""
    return [sys.executable, "-m", "leyden.models.keeper", *command]


def main() -> None:
    watch_parent()
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)

    def pass_on(signum: int, frame: FrameType | None) -> None:
        child.send_signal(signum)

    signal.signal(signal.SIGTERM, pass_on)
    signal.signal(signal.SIGINT, pass_on)
    status = child.wait()
    sys.exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main()
