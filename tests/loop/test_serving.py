"""What is served, and what is lent, while engines switch and die. The engine is a fake: its deaths must come when we say so."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from leyden.algorithm.sft.driver import driving
from leyden.algorithm.sft.serving import EngineDied, Serving, living
from leyden.errors import Unavailable
from leyden.models.version import Manifest, Version
from leyden.proxy import LLMProxy
from leyden.server.sqlstore import SQLStore


class FakeEngine:
    exact = False

    def __init__(self, version: Version, log: list[str], can_switch: bool) -> None:
        self.model_name, self.base_url, self.can_switch = version.name, "http://127.0.0.1:9/v1", can_switch
        self.death: asyncio.Future[Unavailable] = asyncio.get_running_loop().create_future()
        self.log = log

    async def start(self) -> None:
        self.log.append(f"start {self.model_name}")
        if self.model_name == "version_13":
            raise Unavailable("it died while starting", "last lines")

    async def stop(self) -> None:
        self.log.append(f"stop {self.model_name}")

    async def switch(self, version: Version) -> None:
        self.log.append(f"switch to {version.name}")
        self.model_name = f"{version.name}-again"

    async def wait_death(self) -> Unavailable:
        return await asyncio.shield(self.death)


def version(number: int) -> Version:
    return Version(Path(f"version_{number}"), Manifest(version=f"version_{number}", files={}, created_at=0))


def serve(scenario, can_switch=False):
    """``scenario(serving, store, engines)``; what it returned, and what was asked of engines."""
    log: list[str] = []
    engines: list[FakeEngine] = []

    def make(version):
        engines.append(FakeEngine(version, log, can_switch))
        return engines[-1]

    async def run():
        async with await SQLStore.open(None) as store, driving(store, "run-1", {}) as driver:
            proxy = LLMProxy(store)
            await proxy.start()
            try:
                return await scenario(Serving(proxy, driver, make, 16), store, engines)
            finally:
                await proxy.stop()

    return asyncio.run(run()), log


async def forever():
    await asyncio.Event().wait()


async def is_lent(store, resources_id):
    return (await store.get_resources(resources_id)).alive


def test_an_engine_that_dies_ends_the_work_and_lends_nothing_more():
    async def scenario(serving, store, engines):
        await serving.start(version(0))
        resources = await serving.resources(1.0)
        work = asyncio.create_task(serving.while_alive(forever()))
        await asyncio.sleep(0)
        alive = await is_lent(store, resources)
        engines[0].death.set_result(Unavailable("the engine died", "last lines"))
        with pytest.raises(EngineDied) as caught:
            await work
        gone = not await is_lent(store, resources)
        await serving.start(version(0))
        return alive, gone, await serving.resources(1.0) != resources, (caught.value.message, caught.value.hint)

    found, log = serve(scenario)
    assert found == (True, True, True, ("the engine died", "last lines"))
    assert log == ["start version_0", "stop version_0", "start version_0"]


def test_work_that_ended_before_the_engine_did_counts():
    async def scenario(serving, store, engines):
        await serving.start(version(0))

        async def work():
            engines[0].death.set_result(Unavailable("the engine died"))
            return 7

        return await serving.while_alive(work())

    assert serve(scenario)[0] == 7


def test_what_goes_wrong_with_the_work_is_not_taken_for_a_death():
    async def scenario(serving, store, engines):
        await serving.start(version(0))

        async def work():
            raise Unavailable("no runner was connected")

        with pytest.raises(Unavailable, match="no runner") as caught:
            await serving.while_alive(work())
        return type(caught.value)

    assert serve(scenario)[0] is Unavailable


def test_an_engine_that_does_not_come_up_is_a_death_and_another_can_be_started():
    async def scenario(serving, store, engines):
        with pytest.raises(EngineDied, match="it died while starting"):
            await serving.start(version(13))
        nothing = serving.version
        await serving.start(version(1))
        return nothing, serving.version

    found, log = serve(scenario)
    assert found == (None, "version_1")
    assert log == ["start version_13", "stop version_13", "start version_1"]


def test_a_block_that_lives_with_an_engine_ends_at_its_death_with_one_error():
    async def scenario(serving, store, engines):
        engine = FakeEngine(version(0), [], False)
        async with living(engine):
            pass  # what ends before does
        with pytest.raises(EngineDied, match="the engine died"):
            async with living(engine):
                engine.death.set_result(Unavailable("the engine died", "last lines"))
                await forever()

    serve(scenario)


def test_another_version_takes_the_engines_place():
    async def scenario(serving, store, engines):
        await serving.start(version(0))
        old = await serving.resources(1.0)
        await serving.start(version(1))
        new = (await store.get_resources(await serving.resources(1.0))).resources["main_llm"]
        return await is_lent(store, old), new.model, new.checkpoint

    found, log = serve(scenario)
    assert found == (False, "version_1", "version_1")
    assert log == ["start version_0", "stop version_0", "start version_1"]


def test_an_engine_that_can_switch_is_not_started_again():
    async def scenario(serving, store, engines):
        await serving.start(version(0))
        old = await serving.resources(1.0)
        await serving.start(version(1))
        new = (await store.get_resources(await serving.resources(1.0))).resources["main_llm"]
        return await is_lent(store, old), new.model, new.checkpoint, serving.version

    found, log = serve(scenario, can_switch=True)
    assert found == (False, "version_1-again", "version_1", "version_1")
    assert log == ["start version_0", "switch to version_1"]
