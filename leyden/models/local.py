"""A model on this machine for as long as a block lasts: what a script or a notebook needs of an engine."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from leyden.models.engine_config import EngineConfig
from leyden.models.engines import make_engine
from leyden.models.importer import import_in_child, model_directory, names_a_path
from leyden.models.registry import check_model_dir
from leyden.models.version import Manifest, Version
from leyden.process import new_marker
from leyden.types import LLM


@contextmanager
def serve_model(
    source: str = "smollm2",
    sampling_parameters: Mapping[str, Any] | None = None,
    engine: EngineConfig = EngineConfig(),
    models: Path = Path("models"),
) -> Iterator[LLM]:
    """Serve a model directory, or a source that ``leyden models import`` knows (imported once, into ``models``), while the block lasts.

    Raises ``UsageError`` for a model or an engine that cannot do, ``Unavailable`` where it does not start.
    """
    serving = aserve_model(source, sampling_parameters, engine, models)
    with asyncio.Runner() as loop:
        llm = loop.run(serving.__aenter__())
        try:
            yield llm
        finally:
            loop.run(serving.__aexit__(None, None, None))


@asynccontextmanager
async def aserve_model(
    source: str = "smollm2",
    sampling_parameters: Mapping[str, Any] | None = None,
    engine: EngineConfig = EngineConfig(),
    models: Path = Path("models"),
) -> AsyncIterator[LLM]:
    """``serve_model`` for a program that has an event loop already."""
    directory, marker = model_directory(source, models), new_marker()
    with tempfile.TemporaryDirectory(prefix="leyden-serve-") as logs:
        if not directory.exists() and not names_a_path(source, models):
            print(f"importing {source} into {directory}", file=sys.stderr, flush=True)
            await import_in_child(source, directory, marker=marker, log_path=Path(logs, "import.log"))
        check_model_dir(directory)
        version = Version(directory, Manifest(version=directory.resolve().name, files={}, created_at=0))
        served = make_engine(engine, version, version, log_path=Path(logs, "engine.log"), marker=marker)
        try:
            await served.start()
            yield LLM(endpoint=served.base_url, model=served.model_name, sampling_parameters=dict(sampling_parameters or {}))
        finally:
            await served.stop()
