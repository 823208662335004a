"""HTTP around the store's calls: bounded bodies in, JSON out, errors in one shape, no answers for strangers and for web pages of others."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import orjson
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from leyden.errors import Busy, Forbidden, InvalidRequest, LeydenError, TooLarge, Unauthorized
from leyden.server.access import Access, Caller, need_of
from leyden.server.codec import without_surrogates
from leyden.server.sqlstore import SQLStore

MAX_DIGITS = 18  # of a number in a path
MAX_BODY = 64 << 20  # bytes
LARGE_BODY = 256 << 10  # bytes: a larger one is parsed in a thread
LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})
OWN_PAGES = (b"same-origin", b"none")  # Sec-Fetch-Site: a page of ours, or no page at all (typed into the address bar)
CALLER = "leyden.caller"

M = TypeVar("M", bound=BaseModel)
Handler = Callable[..., Awaitable[Any]]


class Call:
    """One request to the store, as a route sees it."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.store = cast(SQLStore, request.app.state.store)
        self.path: dict[str, str] = request.path_params
        self.access = cast(Access, request.app.state.access)
        self.caller = cast(Caller, request.scope[CALLER])
        self.size = 0  # bytes of the body, once it is read

    async def read(self, model: type[M]) -> M:
        """The body. Raises ``TooLarge``, or ``InvalidRequest`` that names the field."""
        body = await self.body(MAX_BODY)
        self.size = len(body)
        return await self.store.intake.work(_parse, model, body) if len(body) > LARGE_BODY else _parse(model, body)

    def check_own(self, body: BaseModel | None) -> None:
        """Raises ``Forbidden`` if whoever calls has an attempt's key, and ``body`` is about another attempt, or about none."""
        mine, ref = self.caller.attempt, getattr(body, "ref", None)
        if mine is not None and (ref is None or (ref.rollout_id, ref.attempt) != mine):
            raise Forbidden("this is the key of another attempt", "use the key that came with the lease of this one")

    def number(self, name: str) -> int:
        """A part of the path. Raises ``InvalidRequest``."""
        text = self.path[name]
        if not text.isdecimal() or len(text) > MAX_DIGITS:
            raise InvalidRequest(f"{name}: must be a whole number, not {text[:32]!r}")
        return int(text)

    def query(self, model: type[M]) -> M:
        try:
            return model.model_validate(dict(self.request.query_params))
        except ValidationError as error:
            raise _invalid(error) from None

    async def body(self, most: int, count: Callable[[int], None] = lambda size: None) -> bytes:
        """The raw body, of ``most`` bytes; ``count`` is told of each piece as it comes. Raises ``TooLarge``."""
        announced = self.request.headers.get("content-length", "")
        if announced.isdigit() and int(announced) > most:
            raise _too_large(most)
        chunks, size = [], 0
        async for chunk in self.request.stream():
            size += len(chunk)
            if size > most:
                raise _too_large(most)
            count(len(chunk))
            chunks.append(chunk)
        return b"".join(chunks)


def _parse(model: type[M], body: bytes) -> M:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        if error.errors(include_url=False, include_input=False)[0]["type"] != "json_invalid":
            raise _invalid(error) from None
    # Lone surrogates are valid JSON to most senders, but not to this parser: read them the slow way.
    try:
        return model.model_validate(without_surrogates(json.loads(body)))
    except ValidationError as error:
        raise _invalid(error) from None
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from None


def _too_large(most: int) -> TooLarge:
    return TooLarge(f"the body is larger than {most >> 20} MiB", "send fewer records in one request")


def _invalid(error: ValidationError) -> InvalidRequest:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "body"
    return InvalidRequest(f"{where}: {first['msg']}")


@dataclass(frozen=True)
class Described:
    """What a route takes and gives, for ``openapi``."""

    name: str
    summary: str
    body: type[BaseModel] | None
    query: type[BaseModel] | None
    answer: Any


class Endpoint:
    """An ASGI application of its own. What it raises is caught around all of them; a plain function Starlette would wrap once more."""

    def __init__(self, answer: Callable[[Request], Awaitable[Response]], described: Described) -> None:
        self._answer = answer
        self.described = described

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._answer(Request(scope, receive, send))
        await response(scope, receive, send)


def route(router: Router, method: str, path: str) -> Callable[[Handler], Handler]:
    """Registers ``handler(call, body, query) -> record or records``. Its annotations say what ``body`` and ``query`` are read as; one that
    takes no such thing leaves it out. A plain Starlette route: no dependency solving on the hot path."""

    def register(handler: Handler) -> Handler:
        signature = inspect.signature(handler, eval_str=True)
        models = {name: signature.parameters[name].annotation for name in ("body", "query") if name in signature.parameters}
        summary = inspect.cleandoc(handler.__doc__ or handler.__name__.replace("_", " "))

        async def answer(request: Request) -> Response:
            call = Call(request)
            given = {}
            if "query" in models:
                given["query"] = call.query(models["query"])
            if "body" in models:
                given["body"] = await call.read(models["body"])
            call.check_own(given.get("body"))
            return json_response(await handler(call, **given))

        described = Described(handler.__name__, summary, models.get("body"), models.get("query"), signature.return_annotation)
        router.routes.append(Route(path, Endpoint(answer, described), methods=[method], name=handler.__name__))
        return handler

    return register


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(to_json(value, inf_nan_mode="constants"), status, headers, "application/json")


# -- errors ------------------------------------------------------------------------------------------------------------


async def answer_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, LeydenError)
    return _error_response(error)


def _error_response(error: LeydenError) -> Response:
    return Response(orjson.dumps(error.as_dict()), error.status, headers_of(error), "application/json")


def headers_of(error: LeydenError) -> dict[str, str]:
    if isinstance(error, Unauthorized):
        return {"www-authenticate": "Bearer"}  # RFC 9110, 11.6.1
    return {"retry-after": f"{error.retry_after:g}"} if isinstance(error, Busy) else {}


async def answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = "not_found" if error.status_code == 404 else "http"
    message = f"{request.method} {request.url.path}: {error.detail}"
    return json_response({"error": {"code": code, "message": message, "hint": None}}, error.status_code, error.headers)


async def answer_nobody(request: Request, error: Exception) -> Response:
    """The client left in the middle of its body. Nothing was done, and nobody reads this."""
    return Response(status_code=400)


async def answer_bug(request: Request, error: Exception) -> Response:
    """The traceback goes to the server's log, never over the wire."""
    return json_response({"error": {"code": "internal", "message": "the store failed on this request", "hint": "see the store's log"}}, 500)


# -- doors -------------------------------------------------------------------------------------------------------------


class PageCheck:
    """Refuses what a browser sends for a web page that is not this server's own, to whose address it has access by being on this machine.

    ``Origin`` and ``Sec-Fetch-Site`` say whose page it is (another port is another origin); the name in ``Host`` unmasks one whose name
    was made to resolve to 127.0.0.1 (DNS rebinding). ``hosts``: the names that are served; None: any.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str] | None) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (why := self._objection(scope["headers"])):
            await _error_response(Forbidden(why, "use http://127.0.0.1, and no page of another site"))(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _objection(self, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
        host = b""
        origins = []
        for name, value in headers:
            if name == b"host":
                host = value.lower()
                if self._hosts is not None and _host_name(value) not in self._hosts:
                    return "this host name is not served here"
            elif name == b"origin":
                origins.append(value.lower())
            elif name == b"sec-fetch-site" and value not in OWN_PAGES:
                return "web pages of other sites are not served here"
        if any(not host or origin.partition(b"://")[2] != host for origin in origins):
            return "web pages of other origins are not served here"
        return None


class AccessCheck:
    """Lets in who may do what the request is about, and says who it is: ``Call.caller``."""

    def __init__(self, app: ASGIApp, access: Access, forms: Mapping[str, Callable[[str, LeydenError], Response]]) -> None:
        """``forms``: by path, routes that tell errors in a form of their own, given the request's content type."""
        self._app = app
        self._access = access
        self._forms = forms

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (need := need_of(scope["method"], scope["path"])) is not None:
            shown = [value.decode("latin-1") for name, value in scope["headers"] if name == b"authorization"]
            try:  # of two, what stands in front of us may have looked at the other one
                scope[CALLER] = await self._access.admit(need, shown[0] if len(shown) == 1 else None)
            except LeydenError as error:
                await self._refusal(scope, error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope, error: LeydenError) -> Response:
        if (form := self._forms.get(scope["path"])) is None:
            return _error_response(error)
        return form(Headers(scope=scope).get("content-type", ""), error)


def _host_name(value: bytes) -> str:
    host = value.decode("latin-1").lower()
    name, separator, port = host.rpartition(":")
    return name if separator and port.isdigit() else host
