"""Agent-lightning 0.3.0, in an environment of its own, made at the first run and kept."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

# OpenTelemetry: with a newer one its tracer loses every span, in silence. litellm: the one it was released with.
THEIRS = ["agentlightning==0.3.0", "opentelemetry-sdk==1.39.1", "litellm[proxy]==1.80.10"]
DIRECTORY = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "leyden", "agentlightning-0.3.0")


def their_environment(directory: Path = DIRECTORY) -> Path | None:
    """Its interpreter. None, having said why, where it cannot be installed."""
    python = directory / "bin" / "python"
    if not python.exists():
        print(f"making an environment for agentlightning in {directory}", file=sys.stderr)
        venv.create(directory, with_pip=True)
    check = [str(python), "-c", "import agentlightning.llm_proxy"]
    if subprocess.run(check, capture_output=True, check=False).returncode == 0:
        return python
    made = subprocess.run([str(python), "-m", "pip", "install", "-q", *THEIRS], capture_output=True, text=True, check=False)
    if made.returncode == 0 and subprocess.run(check, capture_output=True, check=False).returncode == 0:
        return python
    print(f"agentlightning is not measured: it could not be installed: {made.stderr.strip()[-300:]}", file=sys.stderr)
    return None
