"""Inference engines: child processes that serve one checkpoint over an OpenAI-compatible API."""

from __future__ import annotations

import importlib.util
import json
import secrets
import sys
import tempfile
from pathlib import Path
from typing import Protocol

import httpx

from leyden.errors import EXTRAS, MissingExtra, Unavailable
from leyden.models.importer import check_checkpoint
from leyden.process import Child, spawn, wait_ready


class Engine(Protocol):
    """What the loop needs of an engine. ``start`` returns once this very child answers for this very model."""

    model_name: str
    base_url: str  # ends in /v1; empty until started

    async def start(self) -> None:
        """Raises ``UsageError`` for a broken checkpoint or a missing extra, ``Unavailable`` with the end of its log when the child dies
        or is too slow."""
        ...

    async def stop(self) -> None:
        """End the child and all it started. Safe to call twice, or without a start."""
        ...


class EmbeddedEngine:
    """The Transformers engine of ``leyden.models.embedded`` as a child process. Needs no accelerator."""

    def __init__(
        self,
        model_dir: Path,
        *,
        log_path: Path,
        marker: str,
        port: int = 0,
        model_name: str | None = None,
        device: str | None = None,
        start_timeout: float = 300.0,
    ) -> None:
        self.model_dir = model_dir
        self.model_name = model_name or model_dir.resolve().name
        self.base_url = ""
        self.log_path, self.marker = log_path, marker
        self.port, self.device, self.start_timeout = port, device, start_timeout
        self._child: Child | None = None

    async def start(self) -> None:
        for module in ("torch", "transformers"):
            if importlib.util.find_spec(module) is None:
                raise MissingExtra(module, EXTRAS[module])
        check_checkpoint(self.model_dir)
        nonce = secrets.token_hex(16)
        with tempfile.TemporaryDirectory(prefix="leyden-engine-") as scratch:
            ready_file = Path(scratch) / "ready.json"
            command = [sys.executable, "-m", "leyden.models.embedded.server", str(self.model_dir), "--port", str(self.port)]
            command += ["--model-name", self.model_name, "--ready-file", str(ready_file)]
            if self.device:
                command += ["--device", self.device]
            offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "LEYDEN_NONCE": nonce}
            self._child = await spawn(command, marker=self.marker, log_path=self.log_path, env=offline)
            try:
                what = f"the engine for {self.model_dir}"
                await wait_ready(self._child, lambda: self._probe(_url_in(ready_file), nonce), self.start_timeout, what)
            except BaseException:
                await self.stop()
                raise

    async def _probe(self, url: str | None, nonce: str) -> bool:
        """Ready means: this child, with this nonce, serving this model. A stranger's /health is not ours."""
        if url is None:
            return False
        async with httpx.AsyncClient(timeout=5.0, trust_env=False) as client:
            try:
                health = (await client.get(url.removesuffix("/v1") + "/health")).json()
            except httpx.TransportError:
                return False
        if health.get("nonce") != nonce or health.get("model") != self.model_name:
            raise Unavailable(f"another server answers at {url}", "choose another engine port")
        self.base_url = url
        return True

    async def stop(self) -> None:
        if self._child is not None:
            await self._child.stop()
            self._child = None
        self.base_url = ""


def _url_in(ready_file: Path) -> str | None:
    return json.loads(ready_file.read_text())["url"] if ready_file.exists() else None
