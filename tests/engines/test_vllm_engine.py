"""A real vLLM child: start, adapters at run time, a killed core, and the end of all its processes."""

from __future__ import annotations

import asyncio

import psutil
import pytest
from asking import ask, differences

from leyden.errors import Unavailable
from leyden.models.engine_config import EngineConfig
from leyden.models.engines import make_engine
from leyden.models.registry import Registry
from leyden.process import find_by_marker, new_marker

pytestmark = pytest.mark.timeout(1200)

REQUEST = {"messages": [{"role": "user", "content": "What is 12 + 34?"}], "max_tokens": 8}


def running(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def test_adapters_are_switched_without_a_restart_and_a_killed_core_is_reported(two_iterations, vllm_python, tmp_path):
    registry = Registry(two_iterations.path / "models")
    base, first, second = (registry.get(f"version_{number}") for number in range(3))
    marker = new_marker()
    config = EngineConfig(kind="vllm", python=vllm_python, runtime_lora=True)
    engine = make_engine(config, first, base, log_path=tmp_path / "engine.log", marker=marker)

    async def scenario():
        await engine.start()
        try:
            names, said = [engine.model_name], [await ask(engine.base_url, engine.model_name, [REQUEST])]
            for version in (second, first, base):
                await engine.switch(version)
                names.append(engine.model_name)
                said.append(await ask(engine.base_url, engine.model_name, [REQUEST]))
            assert len(set(names)) == 4 and names[-1] == "version_0"
            assert differences(said[0], said[2]) == []  # the same adapter, loaded twice
            assert said[0][0].lead != said[1][0].lead != said[3][0].lead  # another one, and none

            started = find_by_marker(marker)
            (core,) = [process for process in started if process.name() == "VLLM::EngineCore"]
            death = asyncio.create_task(engine.wait_death())
            core.kill()
            error = await asyncio.wait_for(death, 120)
            assert isinstance(error, Unavailable) and "EngineDeadError" in error.hint
            return started
        finally:
            await engine.stop()

    started = asyncio.run(scenario())
    assert find_by_marker(marker) == [] and running(started) == []


def test_a_start_that_cannot_succeed_says_why_and_leaves_nothing(model_dir, vllm_python, tmp_path):
    marker = new_marker()
    registry = Registry(tmp_path / "models")
    version = registry.import_version(model_dir)
    config = EngineConfig(kind="vllm", python=vllm_python, kv_cache_gib=100_000)
    with pytest.raises(Unavailable, match="died while starting") as caught:
        asyncio.run(make_engine(config, version, version, log_path=tmp_path / "engine.log", marker=marker).start())
    assert "100000" in caught.value.hint and "leaked" not in caught.value.hint
    assert find_by_marker(marker) == []
