"""The trails of the attempts that a proxy serves: the latest ones in memory, any other read back from the store when it is needed."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from leyden.proxy.trail import Message, Place, Trail
from leyden.server.interface import Store
from leyden.types import Generation, LeaseRef

MAX_BYTES = 64 * 2**20  # of all trails together, about
MAX_TRAILS = 1024

Attempt = tuple[str, int]


class Trails:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: OrderedDict[Attempt, Trail] = OrderedDict()
        self._loading: dict[Attempt, asyncio.Task[None]] = {}
        self._size = 0

    def of(self, ref: LeaseRef) -> Trail:
        key = (ref.rollout_id, ref.attempt)
        trail = self._known.get(key)
        if trail is None:
            trail = self._known[key] = Trail()
        self._known.move_to_end(key)
        return trail

    async def place(self, ref: LeaseRef, preamble: Message, messages: Sequence[Mapping[str, Any]]) -> Place:
        """Raises what the store raises. It is asked once for an attempt, and only for a request with an answer that nobody here knows: the
        proxy was started anew, or the attempt's trail was forgotten, or the agent brings answers of its own."""
        trail = self.of(ref)
        place = trail.place(preamble, messages)
        unknown = place.goes_on is None and place.forked is None
        if not unknown or trail.loaded or not any(message.get("role") == "assistant" for message in messages):
            return place
        key = (ref.rollout_id, ref.attempt)
        if key not in self._loading:
            loading = self._loading[key] = asyncio.create_task(self._load(ref, trail))
            loading.add_done_callback(lambda _: self._loading.pop(key, None))
        await asyncio.shield(self._loading[key])
        return trail.place(preamble, messages)

    def keep(self, ref: LeaseRef, place: Place, generations: Sequence[Generation]) -> None:
        trail = self.of(ref)
        before = trail.size
        for generation in generations:
            trail.add(place, generation)
        self._grow(trail.size - before)

    async def _load(self, ref: LeaseRef, trail: Trail) -> None:
        recorded = await self._store.list_generations([ref.rollout_id], ref.attempt)
        before = trail.size
        trail.load(recorded)
        self._grow(trail.size - before)

    def _grow(self, size: int) -> None:
        self._size += size
        while self._known and (self._size > MAX_BYTES or len(self._known) > MAX_TRAILS):
            _, oldest = self._known.popitem(last=False)
            self._size -= oldest.size
            oldest.let_go()
