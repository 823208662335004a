"""Attempt keys (or names) and what they stand for, remembered for a few seconds so that the store is not asked on every call."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import NamedTuple

from leyden.errors import InvalidRequest, LeaseLost, LeydenError, NotFound
from leyden.proxy.refusal import Refusal
from leyden.server.interface import Store
from leyden.types import AttemptBinding

MEMORY_SECONDS = 5.0  # how long a lost lease may go unnoticed here; the store's fence decides at the write
MAX_KEYS = 4096


class AttemptName(NamedTuple):
    """An attempt named in a URL instead of by its key."""

    rollout_id: str
    attempt: int


class Bindings:
    """Resolves attempts; concurrent calls with one key share one question to the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: OrderedDict[str | AttemptName, tuple[float, asyncio.Task[AttemptBinding]]] = OrderedDict()

    async def resolve(self, key: str | AttemptName) -> AttemptBinding:
        """Raises ``Refusal``: 401 for a key never issued, 404 for an attempt that does not exist, 409 ``lease_lost`` once its lease has
        ended, 503 when the store is away."""
        now = time.monotonic()
        asked_at, asking = self._known.get(key, (0.0, None))
        if asking is None or now - asked_at > MEMORY_SECONDS:
            question = self._store.resolve_attempt(*key) if isinstance(key, AttemptName) else self._store.resolve_key(key)
            asking = asyncio.ensure_future(question)
            self._known[key] = now, asking
            self._known.move_to_end(key)
            if len(self._known) > MAX_KEYS:
                self._known.popitem(last=False)
        try:
            return await asyncio.shield(asking)  # one caller that leaves must not take the others' answer away
        except LeydenError as error:
            self._known.pop(key, None)
            raise _refusal(key, error) from error


def _refusal(key: str | AttemptName, error: LeydenError) -> Refusal:
    if isinstance(error, NotFound | InvalidRequest) and isinstance(key, AttemptName):
        return Refusal(404, "unknown_attempt", error.message, "the URL is .../rollout/ROLLOUT_ID/attempt/NUMBER/v1")
    if isinstance(error, NotFound):
        return Refusal(401, "invalid_api_key", "this api key was never issued", "use the key of a claimed rollout")
    if isinstance(error, LeaseLost):
        return Refusal(409, "lease_lost", "this attempt has ended", "stop: the rollout is someone else's, or final")
    return Refusal(503, "store_unavailable", f"the store did not answer: {error.message}", error.hint, retry_after="1")
