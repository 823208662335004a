"""A proxy that is stopped and started, again and again, in one loop or in others, leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import warnings
from pathlib import Path

from proxy_room import entry, running_engine

from leyden.proxy import LLMProxy
from leyden.server.sqlstore import SQLStore
from leyden.types import NewRollout


async def one_call(proxy: LLMProxy, store: SQLStore, stream: bool = False) -> None:
    import httpx

    resources = await store.add_resources({"llm": proxy.as_resource()})
    await store.enqueue([NewRollout(input="task", resources_id=resources.id)])
    [lease] = await store.claim("worker", 1)
    body = {"model": "policy", "messages": [{"role": "user", "content": "6 * 7?"}], "stream": stream}
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        reply = await client.post(f"{proxy.base_url}/chat/completions", json=body, headers={"authorization": f"Bearer {lease.key}"})
    assert reply.status_code == 200, reply.text
    [row] = await store.list_generations([lease.rollout.id])
    assert row.response_token_ids == [40, 20, 99]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_many_restarts_leave_no_open_file_and_no_unclosed_session() -> None:
    async def main() -> None:
        async with await SQLStore.open() as store, running_engine() as engine:
            proxy = LLMProxy(store)
            proxy.update_model_list([entry(engine)])
            counts = []
            for _ in range(12):
                await proxy.start()
                for stream in (False, True):
                    await one_call(proxy, store, stream)
                await proxy.stop()
                counts.append(open_files())
            assert counts[-1] <= counts[2], counts

    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        asyncio.run(main())


def test_a_proxy_that_was_stopped_starts_in_another_event_loop() -> None:
    proxy = LLMProxy()

    async def main(path: Path) -> None:
        async with await SQLStore.open(path) as store, running_engine() as engine:
            proxy.store = store
            proxy.update_model_list([entry(engine, id="dep-a")])
            await proxy.start()
            await one_call(proxy, store)
            await one_call(proxy, store, stream=True)
            await proxy.stop()

    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        for _ in range(3):
            asyncio.run(main(Path(directory, "leyden.db")))
    assert proxy.counters["calls"] == 6


def test_two_proxies_in_one_process_do_not_know_of_each_other() -> None:
    async def main() -> None:
        async with await SQLStore.open() as store, running_engine() as engine:
            one, other = LLMProxy(store), LLMProxy(store)
            for proxy in (one, other):
                proxy.update_model_list([entry(engine)])
                await proxy.start()
            await one_call(one, store)
            await one.stop()
            await one_call(other, store)
            await other.stop()
            assert one.counters["calls"] == other.counters["calls"] == 1

    asyncio.run(main())
