"""Whether a store can do its work just now: asked by load balancers and supervisors every few seconds, perhaps by many of them."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from sqlalchemy.exc import DBAPIError

from leyden.errors import LeydenError, Unavailable

PATIENCE = 2.0  # seconds for a write and a read; most who ask wait for 1 to 10
FRESH = 1.0  # seconds for which an answer is given again

log = logging.getLogger(__name__)


class Probed(Protocol):
    """What ``SQLStore`` has for it."""

    @property
    def backlog_is_full(self) -> bool: ...

    async def try_write(self) -> None: ...

    async def try_read(self) -> None: ...


class Readiness:
    """Belongs to the store's event loop. However many ask, one write and one read are under way at most, and each second at most."""

    def __init__(self, store: Probed) -> None:
        self._store = store
        self._probe: asyncio.Task[str | None] | None = None  # what is wrong, if anything
        self._probed_at = float("-inf")
        self._said: str | None = None

    async def check(self) -> None:
        """Raises ``Unavailable`` with what is wrong. The cause of it is in the log, and not for everybody who can ask."""
        reason = "the backlog is full" if self._store.backlog_is_full else await self._try()
        if reason != self._said:
            log.warning("not ready: %s", reason) if reason else log.warning("ready again")
            self._said = reason
        if reason is not None:
            raise Unavailable(reason, "see the store's log, and docs/operating.md")

    async def _try(self) -> str | None:
        now = asyncio.get_running_loop().time()
        if self._probe is None or (self._probe.done() and now - self._probed_at >= FRESH):
            self._probe, self._probed_at = asyncio.create_task(self._write_and_read()), now
        await asyncio.wait({self._probe}, timeout=PATIENCE)
        if not self._probe.done():  # it goes on: whoever asks next waits for the same one
            return f"the database has not answered within {PATIENCE:g} s"
        return self._probe.result()

    async def _write_and_read(self) -> str | None:
        for what, attempt in (("written", self._store.try_write), ("read", self._store.try_read)):
            try:
                await attempt()
            except (LeydenError, DBAPIError) as error:
                log.info("a probe failed: %s", error)
                return f"the database cannot be {what}"
        return None
