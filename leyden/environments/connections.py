"""One pool of connections for each event loop: making one costs 30 ms, and one that outlives its loop complains. It keeps no cookie: by
that a server would know an attempt again, or take it for another one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import httpx

from leyden.environments.credentials import check_key

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_TIMEOUT = httpx.Timeout(600.0, connect=10.0)  # seconds; an attempt's own limit is usually shorter
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=64)


class _Pool:
    """What the machine's environment says of proxies and keys is ignored, a proxy set for the web must not see what agents did; but for
    clients that the caller made, who may rely on it."""

    def __init__(self) -> None:
        self.users = 0
        self.http: httpx.AsyncClient | None = None
        self.openai: AsyncOpenAI | None = None
        self.theirs: Any = None  # an HTTP client as OpenAI's makes one by default

    async def close(self) -> None:
        http, openai, theirs = self.http, self.openai, self.theirs
        self.http = self.openai = self.theirs = None
        if http is not None:
            await http.aclose()
        if openai is not None:
            await openai.close()
        if theirs is not None:
            await theirs.aclose()


_pools: WeakKeyDictionary[asyncio.AbstractEventLoop, _Pool] = WeakKeyDictionary()


def http_client() -> httpx.AsyncClient:
    """The running loop's. It holds no key."""
    pool = _pool()
    if pool.http is None:
        pool.http = httpx.AsyncClient(timeout=_TIMEOUT, limits=_LIMITS, trust_env=False, cookies=_no_cookies())
    return pool.http


def openai_client(endpoint: str, api_key: str | None) -> AsyncOpenAI:
    """One for this endpoint and key, over the running loop's connections."""
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient

    check_key(api_key)
    pool = _pool()
    if pool.openai is None:
        http = DefaultAsyncHttpxClient(trust_env=False, cookies=_no_cookies())
        pool.openai = AsyncOpenAI(base_url="http://127.0.0.1", api_key="none", http_client=http)
    return pool.openai.with_options(base_url=endpoint, api_key=api_key or "none")


def on_this_loop(client: AsyncOpenAI) -> AsyncOpenAI:
    """A caller's client over the running loop's connections: its own may belong to a loop that has ended, where scripts run twice. A client
    that was given an HTTP client of its own keeps that."""
    from openai import DefaultAsyncHttpxClient

    inner: Any = getattr(client, "_client", None)
    made_by_itself = isinstance(inner, DefaultAsyncHttpxClient) and type(inner) is not DefaultAsyncHttpxClient  # a private subclass
    if not made_by_itself and (inner is None or inner is not _sdks_own()):
        return client
    pool = _pool()
    if pool.theirs is None:
        pool.theirs = DefaultAsyncHttpxClient(cookies=_no_cookies())
    return client.with_options(http_client=pool.theirs)


def _no_cookies() -> CookieJar:
    return CookieJar(DefaultCookiePolicy(allowed_domains=[]))


def _sdks_own() -> Any:
    """What the Agents SDK gives all models that it knows by name."""
    from agents.models import openai_provider

    return getattr(openai_provider, "_http_client", None)


@asynccontextmanager
async def connections() -> AsyncIterator[None]:
    """Around whatever asks models: the last one to leave closes the running loop's pool."""
    pool = _pool()
    pool.users += 1
    try:
        yield
    finally:
        pool.users -= 1
        if not pool.users:
            await pool.close()


def _pool() -> _Pool:
    return _pools.setdefault(asyncio.get_running_loop(), _Pool())
