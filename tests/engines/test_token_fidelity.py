"""The real vLLM: what is recorded is what it returned, and in exact mode every next prompt begins with what it read and sampled."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise

import httpx
import pytest

from leyden.audit import Continuity
from leyden.models.engine_config import EngineConfig
from leyden.models.engines import make_engine
from leyden.models.registry import Registry
from leyden.process import new_marker
from leyden.proxy import LLMProxy
from leyden.server.sqlstore import SQLStore
from leyden.types import NewRollout

pytestmark = pytest.mark.timeout(900)

FUNCTION = {
    "name": "calculate",
    "description": "Evaluates an expression.",
    "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
}
TOOLS = [{"type": "function", "function": FUNCTION}]
TURNS = 4


def worked(left: int, right: int, number: int) -> list[dict]:
    arguments = json.dumps({"expression": f"{left} + {right}"})
    call = {"id": f"call_{number}", "type": "function", "function": {"name": "calculate", "arguments": arguments}}
    return [
        {"role": "user", "content": f"What is {left} + {right}?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": str(left + right)},
        {"role": "assistant", "content": f"### {left + right}"},
    ]


async def talk(client: httpx.AsyncClient, url: str, key: str, stream: bool) -> None:
    """An agent that keeps its history: worked examples, then four turns. It asks for the ids and compares nothing itself."""
    messages = [*worked(12, 34, 1), *worked(51, 23, 2), {"role": "user", "content": "What is 33 + 44?"}]
    for turn in range(TURNS):
        body = {"model": "policy", "messages": messages, "max_tokens": 40, "tools": TOOLS, "stream": stream, "return_token_ids": True}
        response = await client.post(f"{url}/chat/completions", json=body, headers={"authorization": f"Bearer {key}"})
        assert response.status_code == 200, response.text
        message = from_stream(response.text) if stream else response.json()["choices"][0]["message"]
        calls = message.get("tool_calls") or []
        messages.append({"role": "assistant", "content": message.get("content"), **({"tool_calls": calls} if calls else {})})
        messages += [{"role": "tool", "tool_call_id": call["id"], "content": "77"} for call in calls]
        if not calls:
            messages.append({"role": "user", "content": f"What is {20 + turn} + 15?"})


def from_stream(text: str) -> dict:
    content, calls = "", {}
    for part in text.split("\n\n"):
        data = part.removeprefix("data: ")
        if not data or data == "[DONE]":
            continue
        for choice in json.loads(data)["choices"]:
            content += choice["delta"].get("content") or ""
            for delta in choice["delta"].get("tool_calls") or ():
                new = {"id": delta.get("id"), "type": "function", "function": {"name": "", "arguments": ""}}
                call = calls.setdefault(delta["index"], new)
                for name in ("name", "arguments"):
                    call["function"][name] += (delta.get("function") or {}).get(name) or ""
    return {"content": content or None, **({"tool_calls": list(calls.values())} if calls else {})}


class Tapped:
    """Notes every answer that the engine gave, before the proxy makes anything of it."""

    def __init__(self, proxy: LLMProxy) -> None:
        self.prompts: list[list[int]] = []
        self.sampled: list[list[int]] = []
        passthrough = proxy._calls._passthrough  # type: ignore[union-attr]
        self._complete, self._stream = passthrough.complete, passthrough.stream
        passthrough.complete, passthrough.stream = self.complete, self.stream  # type: ignore[method-assign]

    async def complete(self, deployment, body, *path):
        answer = await self._complete(deployment, body, *path)
        if "choices" in answer and "generate_response" not in body:
            self.prompts.append(answer.get("prompt_token_ids") or body["token_ids"])
            self.sampled.append(answer["choices"][0]["token_ids"])
        return answer

    async def stream(self, deployment, body, *path):
        prompt, sampled = body.get("token_ids"), []
        async for chunk in self._stream(deployment, body, *path):
            prompt = chunk.get("prompt_token_ids") or prompt
            sampled += [token for choice in chunk.get("choices") or () for token in choice.get("token_ids") or ()]
            yield chunk
        self.prompts.append(prompt)
        self.sampled.append(sampled)


def test_ids_are_what_vllm_returned_and_exact_prompts_go_on_with_them(model_dir, vllm_python, tmp_path):
    version = Registry(tmp_path / "models").import_version(model_dir)
    config = EngineConfig(kind="vllm", python=vllm_python, exact=True)

    async def scenario():
        engine = make_engine(config, version, version, log_path=tmp_path / "engine.log", marker=new_marker())
        await engine.start()
        try:
            async with await SQLStore.open() as store, httpx.AsyncClient(timeout=600, trust_env=False) as client:
                for exact in (False, True):
                    proxy = LLMProxy(store)
                    params = {"model": f"hosted_vllm/{engine.model_name}", "api_base": engine.base_url}
                    info = {"id": f"exact-{exact}".lower(), "exact": exact}
                    proxy.update_model_list([{"model_name": "policy", "litellm_params": params, "model_info": info}])
                    await proxy.start()
                    try:
                        for stream in (False, True):
                            await one(store, client, proxy, exact, stream)
                    finally:
                        await proxy.stop()
                counts = await store.count_audits()
                assert (counts.calls, counts.flagged, counts.vocabulary_unknown) == (4 * TURNS, 0, 0)
        finally:
            await engine.stop()

    async def one(store, client, proxy, exact, stream):
        resources = await store.add_resources({"llm": proxy.as_resource("policy")})
        await store.enqueue([NewRollout(input="sums", resources_id=resources.id)])
        (lease,) = await store.claim("agent", 1, lease_seconds=900)
        tap = Tapped(proxy)
        await talk(client, proxy.base_url, lease.key, stream)
        rows = await store.list_generations([lease.ref.rollout_id], lease.ref.attempt)
        assert [row.prompt_token_ids for row in rows] == tap.prompts and [row.response_token_ids for row in rows] == tap.sampled
        assert rows[0].audit.continuity is Continuity.NEW
        if exact:
            assert {row.audit.continuity for row in rows[1:]} == {Continuity.CLEAN} and all(row.audit.exact for row in rows[1:])
            for before, after in pairwise(rows):
                said = [*before.prompt_token_ids, *before.response_token_ids]
                assert after.prompt_token_ids[: len(said)] == said

    asyncio.run(scenario())
