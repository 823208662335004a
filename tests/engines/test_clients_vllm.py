"""Every client and framework against the real vLLM: the ids recorded are the ids it returned, streamed and not, with tools and without."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from clients import CASES, run
from desk import VLLM_STOPS

from leyden.models.engine_config import EngineConfig
from leyden.models.engines import make_engine
from leyden.models.version import Manifest, Version
from leyden.process import new_marker

pytestmark = pytest.mark.timeout(1200)

# Between two parts of its JSON a model may write white space for as long as it likes, and small ones do, up to their limit.
COMPACT = ("--structured-outputs-config", '{"backend": "xgrammar", "disable_any_whitespace": true}')


@pytest.fixture(scope="module")
def engine(vllm_python: str, model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    version = Version(model_dir, Manifest(version="smollm2", files={}, created_at=0))
    logs = tmp_path_factory.mktemp("clients")
    config = EngineConfig(kind="vllm", python=vllm_python, extra_args=COMPACT)
    served = make_engine(config, version, version, log_path=logs / "vllm.log", marker=new_marker())
    with asyncio.Runner() as loop:
        loop.run(served.start())
        yield served.base_url, served.model_name
        loop.run(served.stop())


@pytest.mark.parametrize("name", CASES)
def test_the_ids_recorded_are_those_that_vllm_returned(engine: tuple[str, str], name: str) -> None:
    run(*engine, name, VLLM_STOPS)
