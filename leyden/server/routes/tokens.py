from __future__ import annotations

from starlette.routing import Router

from leyden.errors import Forbidden
from leyden.server.access import ANYBODY
from leyden.server.tokens import NewToken, Token
from leyden.server.wire import Call, route

router = Router()


@route(router, "POST", "/v1/tokens")
async def add_token(call: Call, body: NewToken) -> Token:
    """Not the first one: whoever may use an open store must not be able to close it to its owner."""
    if call.caller is ANYBODY:
        hint = "where the database is: leyden token create NAME --scope admin --database FILE"
        raise Forbidden("a store's first token is made in its database, not over HTTP", hint)
    token = await call.store.add_token(body)
    call.access.forget()
    return token


@route(router, "GET", "/v1/tokens")
async def list_tokens(call: Call) -> list[Token]:
    return await call.store.list_tokens()


@route(router, "POST", "/v1/tokens/{token_id}/revoke")
async def revoke_token(call: Call) -> Token:
    token = await call.store.revoke_token(call.path["token_id"])
    call.access.forget()
    return token
