"""A proxy killed in the middle of calls: no half record, and what its agents ask again is recorded once."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import httpx
from test_endpoint_gone import HERE, Killable, _ending, engine

from leyden.server.serving import listening
from leyden.server.sqlstore import SQLStore
from leyden.types import LLM, Lease, NewRollout

ROUNDS = 4
AGENTS = 8
ANSWER = [7, 8, 9]


async def ask(client: httpx.AsyncClient, llm: LLM, lease: Lease, number: int, tries: int) -> bool:
    """Whether the agent had its whole answer. As an SDK does, it says which try it is."""
    body: dict[str, Any] = {"model": "policy", "messages": [{"role": "user", "content": f"question {number}"}], "stream": number % 2 == 0}
    headers = {"authorization": f"Bearer {lease.key}", "x-stainless-retry-count": str(tries)}
    try:
        reply = await client.post(f"{llm.endpoint}/chat/completions", json=body, headers=headers)
    except httpx.TransportError:
        return False
    assert reply.status_code == 200, reply.text
    return not body["stream"] or reply.text.rstrip().endswith("[DONE]")


async def one_round(store: SQLStore, url: str, engine_url: str, after: float) -> int:
    """Agents ask; ``after`` so many seconds their proxy is killed; they ask another one again. Returns how many had to."""
    args = (str(HERE / "small_proxy.py"), url, engine_url)
    with _ending(await asyncio.to_thread(Killable, *args)) as first:
        llm = LLM.model_validate_json(first.said)
        resources = await store.add_resources({"llm": llm})
        await store.enqueue([NewRollout(input="t", resources_id=resources.id) for _ in range(AGENTS)])
        leases = await store.claim("worker", AGENTS, lease_seconds=300.0)
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            asking = [asyncio.create_task(ask(client, llm, lease, number, 0)) for number, lease in enumerate(leases)]
            await asyncio.sleep(after)
            first.kill()
            answered = await asyncio.gather(*asking)
    recorded = {lease.rollout.id: await store.list_generations([lease.rollout.id]) for lease in leases}
    for lease, had in zip(leases, answered, strict=True):
        rows = recorded[lease.rollout.id]
        assert len(rows) <= 1 and (rows or not had), "an answer without a record, or two records of one call"
        for row in rows:
            assert row.status == "ok" and row.response_token_ids == ANSWER and row.finish_reason == "stop", row
            assert len(await store.list_spans(row.rollout_id)) == 1
    with _ending(await asyncio.to_thread(Killable, *args)) as second:
        llm = LLM.model_validate_json(second.said)
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            again = [(number, lease) for number, lease in enumerate(leases) if not answered[number]]
            assert all(await asyncio.gather(*(ask(client, llm, lease, number, 1) for number, lease in again)))
    for number, lease in again:
        rows = await store.list_generations([lease.rollout.id])
        new = [row for row in rows if row.id not in {before.id for before in recorded[lease.rollout.id]}]
        assert [row.response_token_ids for row in new] == [ANSWER], f"question {number}: what was asked again is recorded once"
    return len(again)


def test_no_half_record_is_left_and_what_is_asked_again_is_recorded_once(tmp_path: Path) -> None:
    async def main() -> None:
        moments = random.Random(7)
        async with await SQLStore.open(tmp_path / "leyden.db") as store, listening(store) as where:
            with engine() as running:
                cut = [
                    await one_round(store, where.url, running.said, (0.02 + 0.5 * n / ROUNDS) * moments.uniform(0.8, 1.2))
                    for n in range(ROUNDS)
                ]
                assert any(cut), "no call was cut off"

    asyncio.run(asyncio.wait_for(main(), 110))
