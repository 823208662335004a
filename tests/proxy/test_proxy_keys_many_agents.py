"""Two hundred agents at once, with one client or with one each: every call under its own rollout, none lost at the last byte."""

from __future__ import annotations

import asyncio

import httpx
import openai
import pytest
from proxy_room import Room, in_room

from leyden.types import Lease, NewRollout, RolloutState

AGENTS = 200


async def claim_all(this: Room) -> list[Lease]:
    resources = await this.store.add_resources({"llm": this.proxy.as_resource()})
    await this.store.enqueue([NewRollout(input=str(n), resources_id=resources.id) for n in range(AGENTS)])
    return list(await this.store.claim("worker", AGENTS, lease_seconds=300.0))


async def agent(this: Room, client: openai.AsyncOpenAI, lease: Lease) -> None:
    """Ends at the very last byte of its last answer, as an agent does that has nothing else to do."""
    messages = [{"role": "user", "content": f"I am {lease.rollout.id}"}]
    if int(lease.rollout.input) % 2:
        chunks = await client.chat.completions.create(model="policy", messages=messages, stream=True)  # type: ignore[call-overload]
        said = "".join([chunk.choices[0].delta.content or "" async for chunk in chunks if chunk.choices])
    else:
        answer = await client.chat.completions.create(model="policy", messages=messages)  # type: ignore[arg-type]
        said = answer.choices[0].message.content or ""
    await this.store.complete(lease.ref)
    assert said == "42"


@pytest.mark.parametrize("shared", [True, False])
def test_no_call_is_recorded_under_another_rollout_and_none_is_lost_when_its_agent_ends_at_once(shared: bool) -> None:
    async def test(this: Room) -> None:
        leases = await claim_all(this)
        one = openai.AsyncOpenAI(base_url=this.proxy.base_url, api_key="-", max_retries=0)
        if shared:
            clients = [one.with_options(api_key=lease.key) for lease in leases]
        else:
            clients = [
                openai.AsyncOpenAI(
                    base_url=this.proxy.base_url, api_key=lease.key, max_retries=0, http_client=httpx.AsyncClient(verify=False, timeout=100)
                )
                for lease in leases
            ]
        await asyncio.gather(*(agent(this, client, lease) for client, lease in zip(clients, leases, strict=True)))
        await asyncio.gather(*(client.close() for client in ([one] if shared else [one, *clients])))
        rows = await this.store.list_generations([lease.rollout.id for lease in leases])
        assert sorted(row.rollout_id for row in rows) == sorted(lease.rollout.id for lease in leases)
        for row in rows:
            assert row.request["messages"] == [{"role": "user", "content": f"I am {row.rollout_id}"}]
            assert row.status == "ok" and not row.late and row.response_token_ids == [40, 20, 99]
        assert {(await this.store.get_rollout(lease.rollout.id)).state for lease in leases} == {RolloutState.SUCCEEDED}

    in_room(test)
