"""Inference engines: child processes that serve one version over an OpenAI-compatible API. ``engines.py`` chooses one."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import secrets
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import httpx

from leyden.errors import EXTRAS, MissingExtra, Unavailable
from leyden.models.importer import check_checkpoint
from leyden.ports import check_port_free
from leyden.process import Child, died, spawn, wait_ready

if TYPE_CHECKING:
    from leyden.models.version import Version


READY = "ready.json"


class Engine(Protocol):
    """What the loop needs of an engine. ``start`` returns once this very child answers for this very model."""

    model_name: str  # what requests must name; another one after a switch
    base_url: str  # ends in /v1; empty until started
    can_switch: bool  # whether another version of the same base can be served without a restart
    exact: bool  # whether the proxy is to go on with the very ids that were sampled

    async def start(self) -> None:
        """Raises ``UsageError`` for a broken checkpoint or a missing extra, ``Unavailable`` with the end of its log when the child dies
        or is too slow."""
        ...

    async def stop(self) -> None:
        """End the child and all it started; returns once the accelerator's memory is free. Safe to call twice, or without a start.

        Raises ``Unavailable`` naming the holder if memory stays taken."""
        ...

    async def wait_death(self) -> Unavailable:
        """Return, with the end of its log, once the started child has ended although nobody stopped it. Cancel it when you stop."""
        ...

    async def switch(self, version: Version) -> None:
        """Serve another version of the same base, under a new ``model_name``; only where ``can_switch``.

        All or nothing: raises ``Unavailable`` if it cannot, ``UsageError`` for a version that is no adapter on that base; the old one
        then still serves, under its old name."""
        ...


class EngineChild:
    """The child behind an engine, from its start to its end."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.process: Child | None = None

    async def stop(self) -> None:
        process, self.process = self.process, None  # first: who waits for its death must not take this for one
        if process is not None:
            await process.stop()

    async def wait_death(self) -> Unavailable:
        process = self.process
        if process is None:
            raise RuntimeError(f"{self.what} is not started")
        await process.wait()
        if self.process is not process:
            await asyncio.Future()  # it was stopped: there is nothing to report, ever
        return died(process, self.what)


class EmbeddedEngine:
    """The Transformers engine of ``leyden.models.embedded`` as a child process. Needs no accelerator."""

    can_switch = False

    def __init__(
        self,
        model_dir: Path,
        *,
        log_path: Path | None,
        marker: str,
        port: int = 0,
        model_name: str | None = None,
        device: str | None = None,
        max_model_len: int | None = None,
        start_timeout: float = 300.0,
        exact: bool = False,
    ) -> None:
        self.model_dir, self.exact = model_dir, exact
        self.model_name = model_name or model_dir.resolve().name
        self.base_url = ""
        self.log_path, self.marker = log_path, marker
        self.port, self.device, self.max_model_len, self.start_timeout = port, device, max_model_len, start_timeout
        self._child = EngineChild(f"the engine for {model_dir}")
        self._nonce = ""
        self._scratch: tempfile.TemporaryDirectory[str] | None = None  # while it starts

    async def prepare(self) -> None:
        """Start the child, which loads its libraries and then waits for ``start``: the model need not be there yet. Raises as ``start``."""
        for module in ("torch", "transformers"):
            if importlib.util.find_spec(module) is None:
                raise MissingExtra(module, EXTRAS[module])
        self._nonce = secrets.token_hex(16)
        self._scratch = tempfile.TemporaryDirectory(prefix="leyden-engine-")
        command = [sys.executable, "-m", "leyden.models.embedded.server", str(self.model_dir), "--port", str(self.port), "--hold"]
        command += ["--model-name", self.model_name, "--ready-file", str(Path(self._scratch.name, READY))]
        if self.device:
            command += ["--device", self.device]
        if self.max_model_len:
            command += ["--max-model-len", str(self.max_model_len)]
        offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "LEYDEN_NONCE": self._nonce}
        self._child.process = await spawn(command, marker=self.marker, log_path=self.log_path, env=offline)

    async def start(self) -> None:
        try:
            check_checkpoint(self.model_dir)
            if self.port:
                check_port_free("127.0.0.1", self.port)  # the child would say so too, but only in its log, and after torch
            if self._child.process is not None and self._child.process.returncode is not None:
                await self.stop()  # it died before there was anything to do
            if self._child.process is None:
                await self.prepare()
            assert self._child.process is not None
            self._child.process.release()
            await wait_ready(self._child.process, self._probe, self.start_timeout, self._child.what)
        except BaseException:
            await self.stop()
            raise
        self._clear_scratch()

    async def _probe(self) -> bool:
        """Ready means: this child, with this nonce, serving this model. A stranger's /health is not ours."""
        assert self._scratch is not None
        url = _url_in(Path(self._scratch.name, READY))
        if url is None:
            return False
        async with httpx.AsyncClient(timeout=5.0, trust_env=False) as client:
            try:
                health = (await client.get(url.removesuffix("/v1") + "/health")).json()
            except httpx.TransportError:
                return False
        if health.get("nonce") != self._nonce or health.get("model") != self.model_name:
            raise Unavailable(f"another server answers at {url}", "choose another engine port")
        self.base_url = url
        return True

    async def stop(self) -> None:
        self.base_url = ""
        try:
            await self._child.stop()
        finally:
            self._clear_scratch()

    def _clear_scratch(self) -> None:
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None

    async def wait_death(self) -> Unavailable:
        return await self._child.wait_death()

    async def switch(self, version: Version) -> None:
        raise RuntimeError("the embedded engine serves one version: start another")


def _url_in(ready_file: Path) -> str | None:
    return json.loads(ready_file.read_text())["url"] if ready_file.exists() else None
