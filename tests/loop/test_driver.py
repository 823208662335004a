import asyncio

import pytest

from leyden.algorithm.sft import driver as driver_module
from leyden.algorithm.sft.driver import Driver, driving, end_workers
from leyden.errors import Conflict, LeaseLost
from leyden.server.sqlstore import SQLStore
from leyden.types import LLM, AttemptState, NewRollout, RolloutState, RunState

MODEL = {"main_llm": LLM(endpoint="http://127.0.0.1:1/v1", model="m")}


def with_store(scenario):
    async def run():
        async with await SQLStore.open(None) as store:
            return await scenario(store)

    return asyncio.run(run())


def test_a_run_that_ends_well_is_succeeded_and_has_its_summary():
    async def scenario(store):
        async with driving(store, "run-1", {"a": 1}) as driver:
            resources_id = await driver.lend(MODEL)
            driver.summary = {"champion": "version_1"}
        return await store.get_run("run-1"), await store.get_resources(resources_id)

    run, resources = with_store(scenario)
    assert (run.state, run.summary) == (RunState.SUCCEEDED, {"champion": "version_1"})
    assert not resources.alive


def test_an_error_ends_the_run_as_failed_and_keeps_what_is_queued_for_the_driver_that_goes_on():
    async def scenario(store):
        await store.register_worker("w1", "w", 4)
        with pytest.raises(ZeroDivisionError):
            async with driving(store, "run-1", {}) as driver:
                new = NewRollout(input=1, run_id="run-1", idempotency_key="k", resources_id=await driver.lend(MODEL))
                (rollout,) = await store.enqueue([new])
                1 / 0  # noqa: B018
        failed, waiting = await store.get_run("run-1"), await store.get_rollout(rollout.id)
        in_between = await store.claim("w1")
        async with driving(store, "run-1", {}) as driver:
            await store.enqueue([new.model_copy(update={"resources_id": await driver.lend(MODEL)})])
            (lease,) = await store.claim("w1")
        return failed, waiting, in_between, lease.rollout.id == rollout.id

    failed, waiting, in_between, the_same = with_store(scenario)
    assert failed.state == RunState.FAILED
    assert waiting.state == RolloutState.QUEUED
    assert in_between == []
    assert the_same


def test_whoever_knows_that_the_former_driver_is_dead_takes_its_run_over_at_once():
    async def scenario(store):
        dead = await store.start_run("run-1", {})
        async with driving(store, "run-1", {}, take_over=True) as driver:
            with pytest.raises(LeaseLost):
                await Driver(store, "run-1", dead.epoch).check()
            await driver.check()
            return driver.epoch, dead.epoch

    new, old = with_store(scenario)
    assert new == old + 1


def test_rollouts_of_runners_that_died_with_their_driver_are_free_at_once_and_have_lost_no_attempt():
    async def scenario(store):
        await store.register_worker("w1", "w", 4)
        (rollout,) = await store.enqueue([NewRollout(input=1)])
        (held,) = await store.claim("w1", lease_seconds=3600)
        await end_workers(store)
        with pytest.raises(LeaseLost):
            await store.complete(held.ref)
        await store.register_worker("w2", "w", 4)
        (lease,) = await store.claim("w2")
        assert lease.rollout.id == rollout.id
        return await store.list_attempts(rollout.id)

    first, second = with_store(scenario)
    assert (first.state, second.state) == (AttemptState.RELEASED, AttemptState.RUNNING)


def test_cancellation_ends_the_run_as_cancelled():
    async def scenario(store):
        started = asyncio.Event()

        async def drive():
            async with driving(store, "run-1", {}):
                started.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(drive())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await store.get_run("run-1")

    assert with_store(scenario).state == RunState.CANCELLED


def test_a_second_driver_is_refused_while_the_first_one_beats():
    async def scenario(store):
        async with driving(store, "run-1", {}):
            with pytest.raises(Conflict):
                async with driving(store, "run-1", {}):
                    raise AssertionError("two drivers")
        return await store.get_run("run-1")

    assert with_store(scenario).state == RunState.SUCCEEDED


def test_a_driver_whose_run_was_taken_over_stops_in_the_middle_of_its_work(monkeypatch):
    monkeypatch.setattr(driver_module, "BEAT", 0.02)

    async def scenario(store):
        with pytest.raises(LeaseLost):
            async with driving(store, "run-1", {}):
                await store.start_run("run-1", {}, take_over=True)
                await asyncio.wait_for(asyncio.Event().wait(), 20)  # the loop would be waiting for rollouts here
        return await store.get_run("run-1")

    assert with_store(scenario).state == RunState.RUNNING  # the other driver's, untouched
