"""An engine that is made ready before its version is the one that serves it, and ends if nobody comes for it."""

from __future__ import annotations

import asyncio

import pytest

from leyden.algorithm.sft.engines import Engines
from leyden.models.engine_config import EngineConfig
from leyden.models.registry import Registry
from leyden.process import find_by_marker, new_marker


@pytest.fixture
def engines(tiny_model, tmp_path):
    registry = Registry(tmp_path / "models")
    registry.import_version(tiny_model)
    marker = new_marker()
    yield Engines(EngineConfig(kind="embedded"), registry, lambda name: tmp_path / f"{name}.log", marker), registry, marker
    assert find_by_marker(marker) == []


def test_the_version_it_was_prepared_for_gets_it(engines):
    made, registry, marker = engines

    async def scenario():
        async with made:
            await made.prepare("version_0")
            [prepared] = find_by_marker(marker)
            engine = made(registry.get("version_0"))
            assert engine.model_dir == registry.get("version_0").path
            await engine.start()
            assert [process.pid for process in find_by_marker(marker)] == [prepared.pid]
            await engine.stop()
            assert made(registry.get("version_0")) is not engine

    asyncio.run(scenario())


def test_another_version_gets_another_one_and_what_nobody_came_for_ends(engines):
    made, registry, marker = engines

    async def scenario():
        async with made:
            await made.prepare("version_7")
            assert made(registry.get("version_0")).model_name == "version_0"
            [first] = find_by_marker(marker)
            await made.prepare("version_8")
            [second] = find_by_marker(marker)
            assert first.pid != second.pid
        assert find_by_marker(marker) == []

    asyncio.run(scenario())
