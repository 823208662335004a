"""More calls than an engine takes at once: they wait in turn, a bounded number of them, and leave the queue when their agents do."""

from __future__ import annotations

import asyncio

import pytest
from proxy_room import Room, entry, in_room

from leyden.proxy import replicas
from leyden.proxy.deployments import Deployment
from leyden.proxy.replicas import ReplicaSet


def limit(this: Room, calls: int) -> None:
    this.proxy.update_model_list([entry(this.engine, params={"max_parallel_requests": calls})])


async def until(condition: object) -> None:
    while not condition():  # type: ignore[operator]
        await asyncio.sleep(0.005)


def test_no_more_calls_reach_an_engine_at_once_than_it_takes_and_all_are_answered() -> None:
    async def test(this: Room) -> None:
        limit(this, 3)
        this.engine.fault = "hang"
        asking = [asyncio.create_task(this.ask()) for _ in range(20)]
        await until(lambda: len(this.engine.bodies) == 3)
        for _ in range(20):
            await asyncio.sleep(0.002)
            assert len(this.engine.bodies) == 3
        this.engine.resume.set()
        assert {reply.status_code for reply in await asyncio.gather(*asking)} == {200}
        assert len(await this.rows()) == len(this.engine.bodies) == 20

    in_room(test)


@pytest.mark.parametrize("stream", [False, True])
def test_a_full_queue_is_a_429_with_a_pause_and_a_record(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "MAX_WAITING", 2)

    async def test(this: Room) -> None:
        limit(this, 1)
        this.engine.fault = "hang"
        first = asyncio.create_task(this.ask(stream=stream))
        await this.engine.entered.wait()
        asking = [asyncio.create_task(this.ask(stream=stream)) for _ in range(5)]
        done, waiting = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        while len(done) < 3:
            more, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            done |= more
        for task in done:
            reply = task.result()
            assert (reply.status_code, reply.json()["error"]["code"]) == (429, "too_many_calls") and reply.headers["retry-after"] == "1"
            assert reply.json()["error"]["type"] == "rate_limit_error"
        this.engine.resume.set()
        assert {reply.status_code for reply in await asyncio.gather(first, *waiting)} == {200}
        rows = await this.rows()
        assert sorted(row.status for row in rows) == ["error"] * 3 + ["ok"] * 3
        assert this.proxy.counters["too_many_calls"] == 3

    in_room(test)


def test_an_agent_that_leaves_the_queue_is_never_sent_to_the_engine() -> None:
    async def test(this: Room) -> None:
        limit(this, 1)
        this.engine.fault = "hang"
        first = asyncio.create_task(this.ask())
        await this.engine.entered.wait()
        second, third = (asyncio.create_task(this.ask(seed=seed)) for seed in (2, 3))
        await until(lambda: len(this.proxy._table.current[0]._waiting) == 2)
        second.cancel()
        await this.store.written.wait()
        [row] = await this.rows()
        assert row.status == "disconnected"
        this.engine.resume.set()
        assert (await first).status_code == (await third).status_code == 200
        assert [body.get("seed") for body in this.engine.bodies] == [None, 3]

    in_room(test)


def test_a_place_is_never_lost_whoever_leaves_while_it_is_handed_on() -> None:
    async def test() -> None:
        params = {"model": "hosted_vllm/x", "api_base": "http://127.0.0.1:1/v1", "max_parallel_requests": 2}
        group = ReplicaSet([Deployment.from_entry({"model_name": "policy", "litellm_params": params})])
        running = [await group.enter(("r", n, b"")) for n in range(2)]
        waiting = [asyncio.create_task(group.enter(("r", n, b""))) for n in range(6)]
        await until(lambda: len(group._waiting) == 6)
        group.leave(running[0])  # the first of those that wait has its turn,
        waiting[0].cancel()  # and goes before it takes it
        waiting[3].cancel()
        await asyncio.wait({waiting[1]})
        group.leave(running[1])
        await asyncio.wait({waiting[2]})
        for task, following in ((waiting[1], waiting[4]), (waiting[2], waiting[5])):
            group.leave(task.result())
            await asyncio.wait({following})
        for task in waiting[4:]:
            group.leave(task.result())
        assert not group.busy and waiting[0].cancelled() and waiting[3].cancelled()

    asyncio.run(asyncio.wait_for(test(), 30))


def test_who_waits_too_long_for_a_place_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "WAIT", 0.05)

    async def test(this: Room) -> None:
        limit(this, 1)
        this.engine.fault = "hang"
        first = asyncio.create_task(this.ask())
        await this.engine.entered.wait()
        assert (await this.ask()).json()["error"]["code"] == "too_many_calls"
        this.engine.resume.set()
        assert (await first).status_code == 200

    in_room(test)


def test_a_limit_that_is_no_number_is_refused() -> None:
    async def test(this: Room) -> None:
        from leyden.errors import UsageError

        for params in ({"max_parallel_requests": 0}, {"timeout": "soon"}, {"timeout": True}):
            with pytest.raises(UsageError, match=next(iter(params))):
                this.proxy.update_model_list([entry(this.engine, params=params)])

    in_room(test)
