"""Where tests kill a process at a moment that is too short to hit from outside."""

from __future__ import annotations

import os
import signal
from collections import Counter

VARIABLE = "LEYDEN_FAILPOINT"

_passed: Counter[str] = Counter()


def failpoint(moment: str) -> None:
    """SIGKILL this process if the environment names this moment, or ``MOMENT#3`` and it is the third time.

    The driver passes ``<iteration>/<step>:started``, ``:done`` (what the step does is done, its manifest is not written) and ``:written``;
    the store ``<module>.<operation>:before-commit`` and ``:after-commit`` (its answer has not gone out).
    """
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        return
    name, _, time = wanted.partition("#")
    if name == moment:
        _passed[moment] += 1
        if _passed[moment] == int(time or 1):
            os.kill(os.getpid(), signal.SIGKILL)
