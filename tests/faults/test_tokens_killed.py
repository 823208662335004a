"""A store that is killed around the commit of a token, and a client that asks again: it is there once, or was revoked, and holds."""

from __future__ import annotations

import asyncio

from store_process import until
from store_room import Room

from leyden.server.client import StoreClient
from leyden.server.operations import tokens as token_ops
from leyden.server.tokens import Scope, mint
from leyden.server.tokenstore import in_database


def test_a_token_made_or_revoked_around_a_kill_is_so_once_the_client_hears_it(room: Room) -> None:
    admin, text = mint("admin", (Scope.ADMIN,))
    in_database(room.database, token_ops.add, admin)

    async def scenario() -> None:
        async with room.store() as store, StoreClient(store.url, deadline=60, token=text) as client:
            await client.list_tokens()
            made = []
            for moment in ("before-commit", "after-commit"):
                await store.restart(failpoint=f"tokens.add:{moment}")
                new, _ = mint("ci", (Scope.READ,))
                made.append(new.id)
                adding = asyncio.create_task(client.add_token(new))
                await until(lambda: not store.alive, "the store is killed", store.said)
                await store.start(failpoint=f"tokens.revoke:{moment}")
                assert (await adding).id == new.id
                revoking = asyncio.create_task(client.revoke_token(new.id))
                await until(lambda: not store.alive, "the store is killed", store.said)
                await store.start()
                assert (await revoking).revoked_at is not None
            assert [(token.id, token.revoked_at is None) for token in await client.list_tokens()] == [
                (admin.id, True), *((token_id, False) for token_id in made)
            ]  # fmt: skip

    room.run(scenario())
