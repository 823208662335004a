"""A call that its caller gives up leaves the client as it was: the next call is answered."""

from __future__ import annotations

import asyncio

from storekit import Kit, run

from leyden.server.client import StoreClient


def test_calls_given_up_at_any_moment_cost_the_client_nothing() -> None:
    """The first call of a client connects as well, which is the moment that used to leave a connection nobody could use again."""

    async def check(kit: Kit) -> None:
        for moment in range(150):
            assert kit.url is not None
            async with StoreClient(kit.url) as client:
                if moment % 3 == 0:
                    await client.list_workers()  # connected before
                given_up = asyncio.create_task(client.heartbeat("w", []))
                for _ in range(moment % 25):
                    await asyncio.sleep(0)
                given_up.cancel()
                await asyncio.wait([given_up])
                await asyncio.wait_for(client.list_workers(), 20)

    run(check, "http-sqlite")
