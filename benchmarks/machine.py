"""What a benchmark ran on."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from typing import Any

FLUSHES = 100


def examine() -> dict[str, Any]:
    return {"cores": os.cpu_count(), "load": os.getloadavg(), "python": sys.version.split()[0], "flush_ms": flush_ms()}


def flush_ms() -> float:
    """Median milliseconds to write 8 KB into a file of the temporary directory and have them on its disk: what one commit takes at least.
    ``TMPDIR`` chooses another one."""
    took = []
    with tempfile.NamedTemporaryFile(prefix="leyden-bench-") as file:
        file.truncate(1 << 20)
        for number in range(FLUSHES):
            began = time.perf_counter()
            os.pwrite(file.fileno(), bytes(8192), 8192 * (number % 128))
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - began)
    return 1e3 * statistics.median(took)


def told(found: dict[str, Any]) -> str:
    machine = f"{found['cores']} cores, load {found['load'][0]:.1f}, Python {found['python']}"
    return f"{machine}; a flush to the disk takes {found['flush_ms']:.2f} ms"
