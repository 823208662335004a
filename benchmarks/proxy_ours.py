"""Our proxy, recording in a durable store on disk: ``python proxy_ours.py UPSTREAM DIR ATTEMPTS STORE``.

``STORE``: ``apart``, a ``leyden store`` of its own, as a ``Trainer`` has it; or ``inside``, in the proxy's process, as under
``leyden eval``.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvloop
from store_process import StoreProcess

from leyden.proxy import LLMProxy
from leyden.server.client import StoreClient
from leyden.server.interface import Store
from leyden.server.sqlstore import SQLStore
from leyden.types import NewRollout

CLAIM = 256


async def main(upstream: str, directory: Path, attempts: int, where: str) -> None:
    async with store_apart(directory) if where == "apart" else await SQLStore.open(directory / "store.db") as store:
        proxy = LLMProxy(store)
        params = {"model": "hosted_vllm/policy", "api_base": f"http://127.0.0.1:{upstream}/v1"}
        proxy.update_model_list([{"model_name": "policy", "litellm_params": params, "model_info": {"checkpoint": "version_0"}}])
        await proxy.start()
        resources = await store.add_resources({"llm": proxy.as_resource()})
        await store.enqueue([NewRollout(input="task", resources_id=resources.id) for _ in range(attempts)])
        keys: list[str] = []
        while len(keys) < attempts:
            keys += [lease.key for lease in await store.claim("worker", CLAIM, lease_seconds=3600.0)]
        port = int(proxy.base_url.rpartition(":")[2].partition("/")[0])
        print("@" + json.dumps({"port": port, "doors": [("/v1/chat/completions", key) for key in keys]}), flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # until the benchmark closes it
        recorded = proxy.counters
        await proxy.stop()
        print("@" + json.dumps({"counters": dict(recorded)}), flush=True)


@asynccontextmanager
async def store_apart(directory: Path) -> AsyncIterator[Store]:
    process = StoreProcess(directory)
    try:
        process.start()
        async with StoreClient(process.url) as store:
            yield store
    finally:
        process.kill()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
