"""Verifying a version in a process of its own, which may load its libraries before there is a version."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from leyden.errors import Unavailable
from leyden.models.verifier import Report
from leyden.process import Child, spawn


class Verifier:
    """Of one version, once. Stop it, unless ``verify`` has returned or raised."""

    def __init__(
        self,
        version_dir: Path,
        base_dir: Path,
        adapter_dir: Path,
        *,
        parent_dir: Path,
        marker: str,
        python: str | None = None,
        log_path: Path | None = None,
    ) -> None:
        self._name, self._marker, self._log_path = version_dir.name, marker, log_path
        self._command = [python or sys.executable, "-m", "leyden.models.verifier", str(version_dir), "--hold"]
        self._command += ["--base", str(base_dir), "--adapter", str(adapter_dir), "--parent", str(parent_dir)]
        self._starting: asyncio.Task[Child] | None = None

    def prepare(self) -> None:
        """Start the process, which loads its libraries and waits for ``verify``. Call it in the event loop."""
        offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        start = spawn(self._command, marker=self._marker, log_path=self._log_path, env=offline, stdout_pipe=True)
        self._starting = asyncio.create_task(start)

    async def verify(self, timeout: float | None = 900.0) -> Report:
        """``verifier.verify``. Raises ``Unavailable`` when the process dies or takes longer than ``timeout`` seconds."""
        if self._starting is None:
            self.prepare()
        assert self._starting is not None
        child = await self._starting
        assert child.stdout is not None
        child.release()
        try:
            async with asyncio.timeout(timeout):
                answer = await child.stdout.read()
                code = await child.wait()
        except TimeoutError:
            raise Unavailable(f"verifying {self._name} took longer than {timeout:g} s", child.tail() or None) from None
        finally:
            await self.stop()
        if code not in (0, 1) or not answer:
            raise Unavailable(f"the verifier of {self._name} died (exit status {code})", child.tail() or None)
        return Report.model_validate_json(answer.splitlines()[-1])  # libraries may have printed before

    async def stop(self) -> None:
        """End the process. Safe to call twice, or without a start."""
        if self._starting is not None:
            [started] = await asyncio.gather(self._starting, return_exceptions=True)
            if isinstance(started, Child):
                await started.stop(grace=2.0)
