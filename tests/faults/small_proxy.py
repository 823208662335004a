"""A proxy in a process of its own, to be killed: ``python small_proxy.py STORE ENGINE``. It tells its URL on stdout."""

from __future__ import annotations

import asyncio
import sys

from leyden.proxy import LLMProxy
from leyden.server.client import StoreClient


async def main(store_url: str, engine_url: str) -> None:
    proxy = LLMProxy(StoreClient(store_url))
    proxy.update_model_list([{"model_name": "policy", "litellm_params": {"model": "hosted_vllm/m", "api_base": engine_url}}])
    await proxy.start()
    print(proxy.as_resource().model_dump_json(), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
