"""Agent-lightning 0.3.0's LLMProxy, with its store in memory, in one process: ``python proxy_theirs.py UPSTREAM DIR ATTEMPTS``.

Run it with an interpreter that has ``agentlightning``; ``proxy.py`` makes one.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # or its import goes to the network


async def main(upstream: str, attempts: int) -> None:
    from agentlightning.llm_proxy import LLMProxy
    from agentlightning.store.memory import InMemoryLightningStore

    store = InMemoryLightningStore(thread_safe=True)
    params = {"model": "hosted_vllm/policy", "api_base": f"http://127.0.0.1:{upstream}/v1", "api_key": "none"}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    proxy = LLMProxy(
        port=port, host="127.0.0.1", store=store, launch_mode="thread", model_list=[{"model_name": "policy", "litellm_params": params}]
    )
    await proxy.start()
    doors = []
    for _ in range(attempts):
        rollout = await store.start_rollout(input="task")
        path = f"/rollout/{rollout.rollout_id}/attempt/{rollout.attempt.attempt_id}/v1/chat/completions"
        doors.append((path, "none"))
    sys.__stdout__.write("\n@" + json.dumps({"port": port, "doors": doors}) + "\n")
    sys.__stdout__.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # until the benchmark closes it
    spans = sum([len(await store.query_spans(door[0].split("/")[2])) for door in doors[:64]])
    sys.__stdout__.write("\n@" + json.dumps({"counters": {"spans": spans}}) + "\n")
    sys.__stdout__.flush()
    os._exit(0)  # its threads do not all end by themselves


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[3])))
