"""What every ``Store`` promises of resources, asked of each kind of it."""

from __future__ import annotations

import asyncio

import pytest
from storekit import Kit, run, task

from leyden.errors import InvalidRequest, LeaseLost, NotFound
from leyden.types import (
    LLM,
    JSONResource,
    PromptTemplate,
)


def test_a_claim_that_waits_gets_what_moved_to_live_resources(kind: str) -> None:
    async def check(kit: Kit) -> None:
        old = await kit.store.add_resources({"x": JSONResource(value=1)})
        await kit.store.enqueue([task(idempotency_key="k", resources_id=old.id)])
        await kit.store.retire_resources(old.id)
        new = await kit.store.add_resources({"x": JSONResource(value=2)})
        waiting = asyncio.create_task(kit.store.claim("w", wait=20))
        await kit.store.enqueue([task(idempotency_key="k", resources_id=new.id)])
        (lease,) = await waiting
        assert lease.resources == new

    run(check, kind)


def test_nothing_is_claimed_for_resources_that_are_not_alive(kind: str) -> None:
    async def check(kit: Kit) -> None:
        leased = await kit.store.add_resources({"x": JSONResource(value=1)}, lease_seconds=5)
        pinned, _ = await kit.store.enqueue([task("pinned", resources_id=leased.id), task("latest")])
        kit.clock.advance(6)
        assert not (await kit.store.get_resources()).alive
        assert await kit.store.claim("w") == []
        waiting = asyncio.create_task(kit.store.claim("w", wait=20))
        await kit.store.keep_resources(leased.id, 5)
        (lease,) = await waiting
        assert lease.rollout.id == pinned.id and lease.resources is not None and lease.resources.id == leased.id
        assert not (await kit.store.retire_resources(leased.id)).alive
        with pytest.raises(LeaseLost):
            await kit.store.keep_resources(leased.id, 5)
        assert await kit.store.claim("w") == []
        newer = await kit.store.add_resources({"p": PromptTemplate(template="{q}")}, idempotency_key="k")
        assert await kit.store.add_resources({"p": PromptTemplate(template="{q}")}, idempotency_key="k") == newer
        (lease,) = await kit.store.claim("w")
        assert lease.rollout.input == "latest" and lease.resources == newer
        assert (await kit.store.list_attempts(lease.rollout.id))[0].resources_id == newer.id
        with pytest.raises(NotFound):
            await kit.store.enqueue([task(resources_id="nobody")])

    run(check, kind)


def test_resources_with_a_key_in_them_are_refused(kind: str) -> None:
    async def check(kit: Kit) -> None:
        with pytest.raises(InvalidRequest, match="api_key"):
            await kit.store.add_resources({"llm": LLM(endpoint="http://x/v1", model="m", api_key="sk-" + "a1" * 20)})

    run(check, kind)
