"""Who may do what over HTTP: one table says what each route asks for, and a token's scopes or an attempt's key answer it.

A store without a token in its database asks nobody, and so listens on this machine alone. From the first token on it asks everybody,
always: revoking the last one closes it, and opens nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Protocol

from starlette.routing import compile_path

from leyden.errors import Forbidden, LeydenError, Unauthorized
from leyden.server.operations.fence import KEY
from leyden.server.tokens import Scope, StoredToken, id_in

REFRESH = 2.0  # seconds after which the tokens are read anew, while what is known goes on being used
STALE = 10.0  # seconds after which what is known is not used any more: so long a revoked token may work where the database is slow
UNKNOWN = 0.2  # seconds after which they are read anew for one that is not among them
LOOKUPS = 2  # keys looked up at once: strangers who guess must not keep the store's readers busy
_HINT = "send it as Authorization: Bearer TOKEN, or set LEYDEN_TOKEN; who runs the store makes one: leyden token create NAME --scope SCOPE"
_MAKE = "make one with: leyden token create NAME --scope SCOPE"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Need:
    """Any one of ``scopes``; or else, if it is about its ``own`` attempt, that attempt's key."""

    scopes: frozenset[Scope]
    own: bool = False

    def __str__(self) -> str:
        return " or ".join(scope for scope in Scope if scope in self.scopes)


def _any_of(*scopes: Scope, own: bool = False) -> Need:
    return Need(frozenset({*scopes, Scope.ADMIN}), own)


_ENQUEUE, _CLAIM, _INGEST, _READ = (_any_of(scope) for scope in (Scope.ENQUEUE, Scope.CLAIM, Scope.INGEST, Scope.READ))
_OWN, _RESOURCES, _ADMIN = _any_of(Scope.INGEST, own=True), _any_of(Scope.RESOURCES), _any_of()

NEEDS: Mapping[tuple[str, str], Need | None] = {
    ("GET", "/health"): None,  # anybody may ask
    ("GET", "/ready"): None,  # load balancers; it says no more than that something is wrong
    ("GET", "/metrics"): _READ,
    ("GET", "/openapi.json"): _any_of(*Scope),
    # A driver's: it queues, takes back, and says which run it is for.
    ("POST", "/v1/rollouts"): _ENQUEUE,
    ("POST", "/v1/rollouts/cancel"): _ENQUEUE,
    ("POST", "/v1/rollouts/requeue"): _ENQUEUE,
    ("POST", "/v1/runs/{run_id}/start"): _ENQUEUE,
    ("POST", "/v1/runs/{run_id}/keep"): _ENQUEUE,
    ("POST", "/v1/runs/{run_id}/finish"): _ENQUEUE,
    # A runner's.
    ("POST", "/v1/leases/claim"): _CLAIM,
    ("POST", "/v1/leases/heartbeat"): _CLAIM,
    ("POST", "/v1/leases/complete"): _CLAIM,
    ("POST", "/v1/leases/end"): _CLAIM,
    ("POST", "/v1/leases/fail"): _CLAIM,
    ("POST", "/v1/leases/release"): _CLAIM,
    ("POST", "/v1/workers"): _CLAIM,
    ("POST", "/v1/workers/{worker_id}/stop"): _CLAIM,
    ("GET", "/v1/workers"): _any_of(Scope.CLAIM, Scope.READ),
    # What happened in attempts: from runners, exporters, verifiers, and the proxy, which has to know whose key it was shown.
    ("POST", "/v1/spans"): _OWN,
    ("POST", "/v1/rewards"): _OWN,
    ("POST", "/v1/traces"): _OWN,
    ("POST", "/v1/generations"): _INGEST,
    ("POST", "/v1/scores"): _INGEST,
    ("POST", "/v1/leases/resolve"): _INGEST,
    ("GET", "/v1/rollouts/{rollout_id}/attempts/{attempt}/binding"): _INGEST,
    # Reading.
    ("POST", "/v1/rollouts/query"): _READ,
    ("POST", "/v1/rollouts/wait"): _READ,
    ("GET", "/v1/rollouts/{rollout_id}"): _READ,
    ("GET", "/v1/rollouts/{rollout_id}/attempts"): _READ,
    ("GET", "/v1/rollouts/{rollout_id}/spans"): _READ,
    ("POST", "/v1/spans/query"): _READ,
    ("POST", "/v1/traces/query"): _READ,
    ("POST", "/v1/generations/query"): _READ,
    ("POST", "/v1/audits/query"): _READ,
    ("GET", "/v1/audits/counts"): _READ,
    ("POST", "/v1/rewards/query"): _READ,
    ("GET", "/v1/rejections"): _READ,
    ("GET", "/v1/counts"): _READ,
    ("GET", "/v1/queues"): _READ,
    ("GET", "/v1/runs"): _READ,
    ("GET", "/v1/runs/{run_id}"): _READ,
    ("GET", "/v1/resources"): _any_of(Scope.RESOURCES, Scope.READ),
    ("GET", "/v1/resources/{resources_id}"): _any_of(Scope.RESOURCES, Scope.READ),
    # Where the model is: whoever may say that decides whom the proxy calls.
    ("POST", "/v1/resources"): _RESOURCES,
    ("POST", "/v1/resources/{resources_id}/keep"): _RESOURCES,
    ("POST", "/v1/resources/{resources_id}/retire"): _RESOURCES,
    ("POST", "/v1/queues/{name}"): _ADMIN,
    ("POST", "/v1/prune"): _ADMIN,
    ("POST", "/v1/tokens"): _ADMIN,
    ("GET", "/v1/tokens"): _ADMIN,
    ("POST", "/v1/tokens/{token_id}/revoke"): _ADMIN,
}
_PATTERNS = [(method, compile_path(path)[0], need) for (method, path), need in NEEDS.items() if "{" in path]


def need_of(method: str, path: str) -> Need | None:
    """What a request asks for; None: nothing. What stands nowhere in the table is for admins."""
    method = "GET" if method == "HEAD" else method
    if (method, path) in NEEDS:
        return NEEDS[method, path]
    return next((need for of, pattern, need in _PATTERNS if of == method and pattern.match(path)), _ADMIN)


@dataclass(frozen=True)
class Caller:
    """Whoever sent a request. ``attempt``: all that it may write to, where all it has is that attempt's key."""

    scopes: frozenset[Scope]
    attempt: tuple[str, int] | None = None

    def check(self, scope: Scope, what: str) -> None:
        """For a request that is about more than its route says. Raises ``Forbidden``."""
        if self.scopes.isdisjoint({scope, Scope.ADMIN}):
            raise Forbidden(f"this token may not {what}: it needs the scope {scope}", _MAKE)


ANYBODY = Caller(frozenset(Scope))  # in a store that has no tokens


class KnowsTokens(Protocol):
    """What is asked of a store."""

    async def stored_tokens(self) -> list[StoredToken]: ...

    async def attempt_of_key(self, key: str) -> tuple[str, int] | None: ...


class Access:
    """``always``: ask for a token even where the database holds none. Belongs to one event loop."""

    def __init__(self, store: KnowsTokens, always: bool = False) -> None:
        self._store = store
        self._always = always
        self._tokens: dict[str, StoredToken] = {}
        self._known_at = -inf
        self._reading: asyncio.Task[LeydenError | None] | None = None
        self._lookups = asyncio.Semaphore(LOOKUPS)

    async def admit(self, need: Need, authorization: str | None) -> Caller:
        """Raises ``Unauthorized`` for a stranger, ``Forbidden`` for one who may not do this, ``Unavailable`` if no token can be read."""
        scheme, _, shown = (authorization or "").partition(" ")
        shown = shown.strip() if scheme.lower() == "bearer" else ""
        token_id = id_in(shown)
        tokens = await self._known(STALE)
        if token_id is not None and token_id not in tokens:  # perhaps it is new
            tokens = await self._known(UNKNOWN)
        if not tokens and not self._always:
            return ANYBODY
        caller = await self._recognised(shown, None if token_id is None else tokens.get(token_id))
        if caller.attempt is not None and not need.own:
            raise Forbidden(
                "the key of an attempt opens nothing but spans and rewards of that attempt", f"use a token with the scope {need}"
            )
        if caller.attempt is None and caller.scopes.isdisjoint(need.scopes):
            raise Forbidden(f"this token may not do that: it needs the scope {need}", _MAKE)
        return caller

    def forget(self) -> None:
        """The tokens have just been changed here: the next request waits until they are read anew."""
        self._known_at = -inf
        self._reading = None

    async def _recognised(self, shown: str, token: StoredToken | None) -> Caller:
        """``token``: the one that ``shown`` says it is."""
        if token is not None and token.is_of(shown) and not token.revoked:
            return Caller(token.scopes)
        if KEY.fullmatch(shown):
            async with self._lookups:
                attempt = await self._store.attempt_of_key(shown)
            if attempt is not None:
                return Caller(frozenset(), attempt)
        raise Unauthorized("this token is not known here, or has been revoked" if shown else "this store asks for a token", _HINT)

    async def _known(self, most: float) -> Mapping[str, StoredToken]:
        """All tokens by their ids, as they were at most so many seconds ago."""
        loop = asyncio.get_running_loop()
        while (age := loop.time() - self._known_at) > min(most, REFRESH):
            if self._reading is None:
                self._reading = loop.create_task(self._read(loop.time()))
            if age <= most:
                break
            if error := await asyncio.shield(self._reading):
                raise error
            if self._known_at > -inf:  # else they have been changed since that look
                break
        return self._tokens

    async def _read(self, now: float) -> LeydenError | None:
        try:
            found = await self._store.stored_tokens()
        except LeydenError as error:
            log.warning("the tokens could not be read: %s", error)
            return error
        else:
            if self._reading is asyncio.current_task():  # else they have been changed meanwhile
                self._tokens, self._known_at = {token.id: token for token in found}, now
            return None
        finally:
            if self._reading is asyncio.current_task():
                self._reading = None
