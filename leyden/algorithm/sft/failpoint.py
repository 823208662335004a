"""Where tests kill the driver at a moment that is too short to hit from outside."""

from __future__ import annotations

import os
import signal

VARIABLE = "LEYDEN_FAILPOINT"


def failpoint(moment: str) -> None:
    """SIGKILL this process if the environment names this moment: ``<iteration>/<step>:started``, ``:done`` (what the step does is done,
    its manifest is not written) or ``:written``."""
    if os.environ.get(VARIABLE) == moment:
        os.kill(os.getpid(), signal.SIGKILL)
