"""The engines of one run: one for each version that is served, and one that is made ready before its version is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from leyden.models.engine import EmbeddedEngine, Engine
from leyden.models.engine_config import EngineConfig
from leyden.models.engines import choose, embedded_engine, make_engine
from leyden.models.registry import Registry
from leyden.models.version import Version


class Engines:
    """Makes engines that are not started yet: ``async with Engines(...) as engines``, for the one that nobody may come for.

    ``log``: a log's path by its name. ``marker``: of every child.
    """

    def __init__(self, config: EngineConfig, registry: Registry, log: Callable[[str], Path], marker: str) -> None:
        self._config, self._registry, self._log, self._marker = config, registry, log, marker
        self._ahead: EmbeddedEngine | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._end()

    def __call__(self, version: Version) -> Engine:
        if self._ahead is not None and self._ahead.model_name == version.name:
            engine, self._ahead = self._ahead, None
            return engine
        log_path, base = self._log(f"engine-{version.name}"), self._registry.base_of(version)
        return make_engine(self._config, version, base, log_path=log_path, marker=self._marker)

    async def prepare(self, name: str) -> None:
        """While version ``name`` is being made: let its engine's process load its libraries, which is most of an embedded engine's start.
        It holds no model yet. Any other engine starts when it is asked to."""
        await self._end()
        if choose(self._config).kind == "embedded":
            directory, log_path = self._registry.directory / name, self._log(f"engine-{name}")
            self._ahead = embedded_engine(self._config, name, directory, log_path=log_path, marker=self._marker)
            await self._ahead.prepare()

    async def _end(self) -> None:
        engine, self._ahead = self._ahead, None
        if engine is not None:
            await engine.stop()
