"""The proxy's routes: each request form and the model list, by ``Authorization`` header or by attempt URL."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from leyden.proxy.answers import Reader
from leyden.proxy.apis import APIS, Api
from leyden.proxy.bindings import AttemptName, Bindings
from leyden.proxy.calls import Calls
from leyden.proxy.deployments import ModelTable
from leyden.proxy.refusal import Refusal
from leyden.types import AttemptBinding

MAX_BODY = 16 * 2**20  # bytes


def build_app(bindings: Bindings, calls: Calls, table: ModelTable) -> Starlette:
    """``/v1/...`` with an attempt's key as bearer token; ``/a/{key}/v1/...`` for agents that can set nothing but a URL.

    ``/rollout/{rollout_id}/attempt/{attempt}/v1/...``, Agent-lightning's form, needs no key: who reaches the store could look it up.
    """

    async def bind(request: Request) -> AttemptBinding:
        if "rollout_id" in request.path_params:
            return await bindings.resolve(AttemptName(request.path_params["rollout_id"], request.path_params["attempt"]))
        return await bindings.resolve(_key(request))

    def answer_in(api: Api) -> Callable[[Request], Awaitable[ASGIApp]]:
        async def answer(request: Request) -> ASGIApp:
            try:
                binding = await bind(request)
                raw = await _read(request)
                asked = api.parse(raw)
            except Refusal as refusal:
                return Response(api.refuse(refusal), refusal.status, refusal.headers)
            fingerprint = (binding.ref.rollout_id, binding.ref.attempt, hashlib.sha256(raw).digest())
            is_retry = request.headers.get("x-stainless-retry-count", "0") not in ("", "0")
            return Reader(calls.answer(api, asked, binding, fingerprint, is_retry))

        return answer

    async def list_models(request: Request) -> Response:
        await bind(request)
        models = [{"id": d.model_name, "object": "model", "created": 0, "owned_by": "leyden"} for d in table.current]
        return JSONResponse({"object": "list", "data": models})

    routes: list[BaseRoute] = []
    for prefix in ("", "/a/{key}", "/rollout/{rollout_id}/attempt/{attempt:int}"):
        routes += [Route(f"{prefix}/v1{api.path}", answer_in(api), methods=["POST"]) for api in APIS]
        routes.append(Route(f"{prefix}/v1/models", list_models, methods=["GET"]))
    return Starlette(routes=routes, exception_handlers={Refusal: _refuse, 404: _no_route, 405: _no_route, ClientDisconnect: _nobody})


def _key(request: Request) -> str:
    """Raises ``Refusal`` (401)."""
    key = request.path_params.get("key")
    if key is None:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key:
            raise Refusal(401, "missing_api_key", "the request carries no api key", "send the attempt's key as bearer token")
    return key


async def _read(request: Request) -> bytes:
    """The body. Raises ``Refusal`` (413) as soon as it is too long."""
    raw = bytearray()
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > MAX_BODY:
            raise Refusal(413, "body_too_large", f"the request body is longer than {MAX_BODY} bytes")
    return bytes(raw)


async def _refuse(_: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return JSONResponse(error.as_openai(), error.status, error.headers)


async def _no_route(request: Request, _: Exception) -> Response:
    path = request.url.path.partition("/v1/")[2]  # what is before it may hold a key
    hint = "it serves POST /v1/chat/completions and GET /v1/models"
    refusal = Refusal(404, "unknown_url", f"the proxy does not serve {request.method} /v1/{path}", hint)
    return JSONResponse(refusal.as_openai(), refusal.status, refusal.headers)


async def _nobody(_: Request, __: Exception) -> Response:
    return Response(status_code=499)  # the client left while it sent its body: no one reads this
