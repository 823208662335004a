"""The proxy's routes: each request form and the model list, by ``Authorization`` header or by attempt URL."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from leyden.proxy.answers import Reader
from leyden.proxy.apis import APIS, MESSAGES, Api
from leyden.proxy.bindings import AttemptName, Bindings
from leyden.proxy.calls import Calls
from leyden.proxy.model_table import ModelTable
from leyden.proxy.refusal import Refusal
from leyden.types import AttemptBinding

log = logging.getLogger(__name__)

MAX_BODY = 16 * 2**20  # bytes


def build_app(bindings: Bindings, calls: Calls, table: ModelTable) -> Router:
    """``/v1/...`` with an attempt's key as bearer token or ``x-api-key``; ``/a/{key}/v1/...`` for agents that can set only a URL.

    ``/rollout/{rollout_id}/attempt/{attempt}/v1/...``, Agent-lightning's form, needs no key: who reaches the store could look it up.
    """

    async def bind(request: Request) -> AttemptBinding:
        if "rollout_id" in request.path_params:
            return await bindings.resolve(AttemptName(request.path_params["rollout_id"], request.path_params["attempt"]))
        return await bindings.resolve(_key(request))

    def answer_in(api: Api) -> _Endpoint:
        async def answer(request: Request) -> ASGIApp:
            binding = await bind(request)
            raw = await _read(request)
            asked = api.parse(raw)
            fingerprint = (binding.ref.rollout_id, binding.ref.attempt, hashlib.sha256(raw).digest())
            is_retry = request.headers.get("x-stainless-retry-count", "0") not in ("", "0")
            return Reader(calls.answer(api, asked, binding, fingerprint, is_retry))

        return _Endpoint("POST", answer)

    async def count_tokens(request: Request) -> ASGIApp:
        binding = await bind(request)
        asked = MESSAGES.parse_count(await _read(request))
        return JSONResponse({"input_tokens": await calls.counts.count(asked, binding)})

    async def list_models(request: Request) -> Response:
        await bind(request)
        models = [_model(deployment.model_name) for deployment in table.current]
        ends = {"first_id": models[0]["id"], "last_id": models[-1]["id"]} if models else {"first_id": None, "last_id": None}
        return JSONResponse({"object": "list", "data": models, "has_more": False, **ends})

    async def show_model(request: Request) -> Response:
        binding = await bind(request)
        table.pick(binding.resources, name := request.path_params["name"])  # as a call that names it would be answered
        return JSONResponse(_model(name))

    routes: list[BaseRoute] = []
    for prefix in ("", "/a/{key}", "/rollout/{rollout_id}/attempt/{attempt:int}"):
        routes += [Route(f"{prefix}/v1{api.path}", answer_in(api)) for api in APIS]
        routes.append(Route(f"{prefix}/v1{MESSAGES.counts}", _Endpoint("POST", count_tokens)))
        routes.append(Route(f"{prefix}/v1/models", _Endpoint("GET", list_models)))
        routes.append(Route(f"{prefix}/v1/models/{{name:path}}", _Endpoint("GET", show_model)))
    return Router(routes, default=_Endpoint("", _no_route))


class _Endpoint:
    """An application of its own: a ``Starlette`` would wrap every message on its way out four times."""

    def __init__(self, method: str, answer: Callable[[Request], Awaitable[ASGIApp]]) -> None:
        self._method = method
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        try:
            response = await (self._answer if request.method == self._method else _no_route)(request)
        except Refusal as refusal:
            response = _refused(request, refusal)
        except ClientDisconnect:  # while it sent its body: no one would read an answer
            return
        except Exception:  # whatever a request may hold, its sender gets an answer in its form
            log.exception("a request to %s failed inside the proxy", _path(request))
            response = _refused(request, Refusal(500, "internal_error", "the proxy failed on this request", "see its log"))
        await response(scope, receive, send)


def _refused(request: Request, refusal: Refusal) -> Response:
    return Response(_form_of(request).refuse(refusal), refusal.status, refusal.headers)


def _model(name: str) -> dict[str, Any]:
    """As OpenAI lists a model, and as Anthropic does: every client reads its own fields."""
    openai = {"id": name, "object": "model", "created": 0, "owned_by": "leyden"}
    return {**openai, "type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}


def _key(request: Request) -> str:
    """Raises ``Refusal`` (401)."""
    key = request.path_params.get("key") or request.headers.get("x-api-key")
    if not key:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key:
            raise Refusal(401, "missing_api_key", "the request carries no api key", "send the attempt's key as bearer token or x-api-key")
    return key


async def _read(request: Request) -> bytes:
    """The body. Raises ``Refusal`` (413) as soon as it is too long."""
    raw = bytearray()
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > MAX_BODY:
            raise Refusal(413, "body_too_large", f"the request body is longer than {MAX_BODY} bytes")
    return bytes(raw)


async def _no_route(request: Request) -> ASGIApp:
    """Raises ``Refusal`` (404)."""
    path = _path(request)
    hint = f"it serves {', '.join(f'POST /v1{api.path}' for api in APIS)} and GET /v1/models and /v1/models/NAME"
    if path.startswith("v1/"):
        hint = "this client adds /v1 itself: its base URL is the endpoint without /v1"
    raise Refusal(404, "unknown_url", f"the proxy does not serve {request.method} /v1/{path}", hint)


def _path(request: Request) -> str:
    """Below /v1: what is before it may hold a key."""
    return request.url.path.partition("/v1/")[2]


def _form_of(request: Request) -> Api:
    """The form in which to answer: that of the API below whose path the URL lies, OpenAI's for any other."""
    path = f"/{_path(request).removeprefix('v1/')}/"
    return next((api for api in APIS if path.startswith(f"{api.path}/")), APIS[0])
