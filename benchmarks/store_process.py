"""The store, as ``leyden store`` starts it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from leyden.ports import reserve_port


class StoreProcess:
    """``database``: None: a file in ``directory``."""

    def __init__(self, directory: Path, database: str | None = None) -> None:
        with reserve_port("127.0.0.1", 0) as reserved:
            port = reserved.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._ready = directory / "ready.json"
        database = database or str(directory / "store.db")
        self._command = [sys.executable, "-m", "leyden", "store", "--port", str(port), "--database", database]
        self._command += ["--ready-file", str(self._ready)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._ready.unlink(missing_ok=True)
        self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not self._ready.exists():
            if self._process.poll() is not None:
                raise SystemExit("the store did not start")
            time.sleep(0.02)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
