"""Several engines behind one name: who answers, who takes over, and what an attempt stays pinned to."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from proxy_room import Engine, Room, Sample, entry, in_room, running_engine

from leyden.errors import UsageError
from leyden.ports import reserve_port
from leyden.proxy import LLMProxy, replicas
from leyden.proxy.deployments import Deployment
from leyden.proxy.replicas import ReplicaSet, leading


def with_engines(number: int, test: Callable[..., Awaitable[None]]) -> None:
    """``test(room, *engines)``: so many engines, the room's own among them, all serving ``version_0`` as ``policy``."""

    async def main(this: Room) -> None:
        async with AsyncExitStack() as stack:
            engines = [this.engine, *[await stack.enter_async_context(running_engine()) for _ in range(number - 1)]]
            this.proxy.update_model_list([entry(engine, id=f"engine-{n}") for n, engine in enumerate(engines)])
            await test(this, *engines)

    in_room(main)


def asked(*engines: Engine) -> list[int]:
    return [len(engine.bodies) for engine in engines]


async def converse(this: Room, text: str, lease: Any = None, **body: Any) -> Any:
    messages = [{"role": "system", "content": text}, {"role": "user", "content": "6 * 7?"}, *body.pop("more", ())]
    return await this.ask(lease, messages=messages, **body)


def test_a_set_shares_what_attempts_are_pinned_to_and_each_generation_names_its_replica() -> None:
    async def test(this: Room, *engines: Engine) -> None:
        llm = this.proxy.as_resource()
        assert llm.checkpoint == "version_0" and llm.deployment not in ("engine-0", "engine-1") and this.proxy.models == ["policy"]
        lease = await this.claim(llm=llm)
        for n in range(12):
            assert (await converse(this, f"conversation {n}", lease)).status_code == 200
        assert min(asked(*engines)) > 0 and sum(asked(*engines)) == 12
        rows = await this.rows(lease)
        assert Counter(row.deployment for row in rows) == {f"engine-{n}": count for n, count in enumerate(asked(*engines))}
        assert {row.checkpoint for row in rows} == {"version_0"}

    with_engines(2, test)


def test_a_conversation_goes_where_its_prefix_lies_in_the_cache() -> None:
    async def test(this: Room, *engines: Engine) -> None:
        more: list[dict[str, str]] = []
        for turn in range(5):
            await converse(this, "one conversation", more=more)
            more = [*more, {"role": "assistant", "content": "42"}, {"role": "user", "content": f"again {turn}"}]
        assert sorted(asked(*engines)) == [0, 0, 5]
        others = [await this.claim(llm=this.proxy.as_resource()) for _ in range(2)]
        await asyncio.gather(*(converse(this, "one conversation", lease) for lease in others))
        assert sorted(asked(*engines)) == [0, 0, 7], "samples of one task share their prefill while there is room"

    with_engines(3, test)


def test_a_replica_with_more_than_its_share_is_passed_over() -> None:
    async def test(this: Room, *engines: Engine) -> None:
        for engine in engines:
            engine.fault = "hang"
        asking = [asyncio.create_task(converse(this, "the same for all")) for _ in range(16)]
        while sum(asked(*engines)) < 16:
            await asyncio.sleep(0.005)
        assert max(asked(*engines)) <= 11, "more than 1.25 times the mean"
        for engine in engines:
            engine.resume.set()
        assert {reply.status_code for reply in await asyncio.gather(*asking)} == {200}

    with_engines(2, test)


def dead_entry(id: str) -> dict[str, Any]:
    with contextlib.closing(reserve_port("127.0.0.1", 0)) as socket:
        base = f"http://127.0.0.1:{socket.getsockname()[1]}/v1"
    params = {"model": "hosted_vllm/models/version_0", "api_base": base}
    return {"model_name": "policy", "litellm_params": params, "model_info": {"checkpoint": "version_0", "id": id}}


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_had_not_begun_goes_to_another_replica(stream: bool) -> None:
    async def test(this: Room) -> None:
        this.proxy.update_model_list([entry(this.engine, id="alive"), dead_entry("dead"), dead_entry("dead-2")])
        for n in range(8):
            assert (await converse(this, f"conversation {n}", stream=stream)).status_code == 200
        rows = await this.rows()
        assert [(row.status, row.deployment) for row in rows] == [("ok", "alive")] * 8, "one record a call, of who answered"
        assert 1 <= this.proxy.counters["moved_to_another_replica"] <= 2, "each is asked once, then it is out"

    in_room(test)


def test_a_call_that_had_begun_is_not_sampled_twice() -> None:
    async def test(this: Room, *engines: Engine) -> None:
        for engine in engines:
            engine.fault = "dies"
        reply = await converse(this, "text")
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_gone")
        assert sum(asked(*engines)) == 1 and len(await this.rows()) == 1

    with_engines(2, test)


def test_when_no_replica_is_there_the_engine_is_gone() -> None:
    async def test(this: Room) -> None:
        this.proxy.update_model_list([dead_entry("a"), dead_entry("b")])
        for _ in range(2):
            assert (await this.ask()).json()["error"]["code"] == "engine_gone"
        assert [row.status for row in await this.rows()] == ["error"] * 2

    in_room(test)


def test_a_replica_that_was_out_is_looked_at_before_it_gets_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "PROBE_EVERY", 0.01)

    async def test() -> None:
        here, there = (deployment(f"engine-{n}") for n in range(2))
        group = ReplicaSet([here, there])
        answers = {"engine-0": False, "engine-1": True}
        looked: list[str] = []

        async def probe(of: Deployment) -> bool:
            looked.append(of.id)
            return answers[of.id]

        lost = group.replicas[0]
        group.lost(lost, probe)
        while len(looked) < 3:
            await asyncio.sleep(0.005)
        assert {(await group.enter(("r", 1, bytes([n])))).deployment.id for n in range(16)} == {"engine-1"}
        answers["engine-0"] = True
        while lost.probing is not None:
            await asyncio.sleep(0.005)
        assert {(await group.enter(("r", 2, bytes([n])))).deployment.id for n in range(16)} >= {"engine-0"}
        assert set(looked) == {"engine-0"}

    asyncio.run(asyncio.wait_for(test(), 30))


def deployment(id: str, **params: Any) -> Deployment:
    params = {"model": "hosted_vllm/x", "api_base": f"http://127.0.0.1:1/{id}"} | params
    return Deployment.from_entry({"model_name": "policy", "litellm_params": params, "model_info": {"checkpoint": "v", "id": id}})


def test_a_replica_that_comes_or_goes_moves_no_other_conversation() -> None:
    async def home(group: ReplicaSet) -> list[str]:
        found = []
        for n in range(60):
            replica = await group.enter(("r", n, leading({"messages": [{"role": "system", "content": str(n)}]})))
            found.append(replica.deployment.id)
            group.leave(replica)
        return found

    async def test() -> None:
        three = await home(ReplicaSet([deployment("a"), deployment("b"), deployment("c")]))
        two = await home(ReplicaSet([deployment("a"), deployment("c")]))
        assert all(now == before for before, now in zip(three, two, strict=True) if before != "b")
        assert min(Counter(three).values()) > 8

    asyncio.run(test())


def test_an_attempt_stays_on_its_checkpoint_while_its_replicas_change() -> None:
    async def test(this: Room, first: Engine, second: Engine) -> None:
        lease = await this.claim(llm=this.proxy.as_resource())
        alone = this.lease  # pinned while the first engine was the only one
        second.samples = [Sample(pieces=["two", "", ""])]
        this.proxy.update_model_list([entry(second, id="engine-1")])
        for held in (lease, alone):
            assert "two" in (await this.ask(held)).text, "its engine left, another serves the same checkpoint"
        async with running_engine() as newer:
            this.proxy.update_model_list([entry(newer, "version_1", id="newer")])
            for held in (lease, alone):
                assert "two" in (await this.ask(held)).text
            assert not newer.bodies
            assert {row.checkpoint for held in (lease, alone) for row in await this.rows(held)} == {"version_0"}

    with_engines(2, test)


def test_a_replica_that_leaves_the_list_finishes_its_calls_and_takes_no_new_one() -> None:
    async def test(this: Room, first: Engine, second: Engine) -> None:
        first.fault = second.fault = "hang"
        lease = await this.claim(llm=this.proxy.as_resource())
        asking = asyncio.create_task(this.ask(lease))
        while not sum(asked(first, second)):
            await asyncio.sleep(0.005)
        left, stays = (first, second) if first.bodies else (second, first)
        gone = "engine-0" if left is first else "engine-1"
        this.proxy.update_model_list([entry(stays, id="engine-1" if left is first else "engine-0")])
        assert not await this.proxy.drain(gone, timeout=0.01)
        draining = asyncio.create_task(this.proxy.drain(gone, timeout=30))
        stays.fault = None
        assert (await this.ask(lease)).status_code == 200 and asked(left, stays) == [1, 1]
        assert not draining.done()
        left.resume.set()
        assert await draining and (await asking).status_code == 200

    with_engines(2, test)


def test_draining_a_set_waits_for_all_of_it_and_ends_it() -> None:
    async def test(this: Room, first: Engine, second: Engine) -> None:
        group = this.proxy.as_resource().deployment
        assert group is not None
        lease = await this.claim(llm=this.proxy.as_resource())
        first.fault = second.fault = "hang"
        asking = [asyncio.create_task(converse(this, f"conversation {n}", lease)) for n in range(4)]
        while sum(asked(first, second)) < 4:
            await asyncio.sleep(0.005)
        this.proxy.update_model_list([])
        draining = asyncio.create_task(this.proxy.drain(group, timeout=30))
        await asyncio.sleep(0)
        assert (await this.ask(lease)).json()["error"]["code"] == "checkpoint_gone" and not draining.done()
        first.resume.set()
        second.resume.set()
        assert await draining and {reply.status_code for reply in await asyncio.gather(*asking)} == {200}

    with_engines(2, test)


@pytest.mark.parametrize(
    ("second", "word"),
    [
        ({"model_info": {"checkpoint": "version_1"}}, "twice"),
        ({"model_info": {}}, "twice"),
        ({"litellm_params": {"model": "openai/gpt-x"}, "model_info": {"checkpoint": "version_0"}}, "do not speak the same API"),
    ],
)
def test_entries_of_one_name_that_are_no_replicas_are_refused(second: dict[str, Any], word: str) -> None:
    params = {"model": "hosted_vllm/x", "api_base": "http://h:1/v1"}
    first = {"model_name": "policy", "litellm_params": params, "model_info": {"checkpoint": "version_0"}}
    other = {"model_name": "policy", "litellm_params": params | {"api_base": "http://h:2/v1"}} | second
    proxy = LLMProxy()
    with pytest.raises(UsageError, match=word) as caught:
        proxy.update_model_list([first, other])
    assert caught.value.hint and not proxy.models
