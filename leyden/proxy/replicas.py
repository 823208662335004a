"""The engines that serve one checkpoint under one name: which of them answers a call, who waits, and who is out.

A conversation goes where its prefix lies in the cache: to the replica that answered its last call; a new one to the replica that its
leading messages hash to, by rendezvous hashing (Thaler & Ravishankar 1998), so that samples of one task share a prefill and a replica that
comes or goes moves no other's. One that has more than its share of the load is passed over (bounded loads: Mirrokni et al. 2018).
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import random
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from leyden.proxy.deployments import Deployment
from leyden.proxy.refusal import Refusal

MAX_WAITING = 1024  # calls of one name that wait for a place
MAX_CONVERSATIONS = 8192  # whose last replica is remembered
WAIT = 600.0  # seconds for a place; agents' own clients give up no later
SHARE = 1.25  # a replica may have so many times the mean load before another is asked,
FEW = 4  # and so many calls whatever the others have: engines answer a few at once as fast as one
PROBE_EVERY, PROBE_AT_MOST = 1.0, 15.0  # seconds between two looks at a replica that is out

Conversation = tuple[str, int, bytes]
"""Rollout, attempt, hash of the leading messages."""


@dataclass(eq=False)
class Replica:
    deployment: Deployment
    in_flight: int = 0
    probing: asyncio.Task[None] | None = None  # while it is out

    @property
    def room(self) -> int:
        return self.deployment.max_in_flight - self.in_flight


class ReplicaSet:
    """``enter`` gives a replica, ``leave`` takes it back. ``id`` is what attempts are pinned to: the only entry's own, or the set's."""

    def __init__(self, deployments: Sequence[Deployment]) -> None:
        self.replicas: list[Replica] = []
        self.closed = False  # takes no new call
        self._leaving: set[Replica] = set()  # no longer listed, with calls in flight
        self._last: OrderedDict[Conversation, Replica] = OrderedDict()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._idle = asyncio.Event()
        self.change(deployments)

    def change(self, deployments: Sequence[Deployment]) -> None:
        """Be these from now on. Calls in flight on one that has gone finish there."""
        self.closed = False
        known = {replica.deployment.id: replica for replica in self.replicas}
        self.replicas = [known.pop(deployment.id) if deployment.id in known else Replica(deployment) for deployment in deployments]
        for replica, deployment in zip(self.replicas, deployments, strict=True):
            if replica.deployment != deployment:  # its engine was started again, elsewhere
                replica.deployment = deployment
                self._is_back(replica)
        for gone in known.values():
            self._is_back(gone)
            if gone.in_flight:
                self._leaving.add(gone)
        self._last = OrderedDict((key, replica) for key, replica in self._last.items() if replica in self.replicas)
        self._wake(sum(replica.room for replica in self.replicas))

    @property
    def id(self) -> str:
        return self._first.id if len(self.replicas) == 1 else self._first.set_id

    @property
    def model_name(self) -> str:
        return self._first.model_name

    @property
    def checkpoint(self) -> str | None:
        return self._first.checkpoint

    @property
    def _first(self) -> Deployment:
        return self.replicas[0].deployment

    async def enter(self, conversation: Conversation, tried: Collection[Replica] = ()) -> Replica:
        """A place on the best replica, as soon as there is one; not on one of ``tried``. Raises ``Refusal`` (429) when too many wait."""
        replica = None if self._waiting else self._choose(conversation, tried)
        if replica is None:
            if len(self._waiting) >= MAX_WAITING:
                raise _full(self.model_name)
            replica = await self._wait(conversation, tried)
        replica.in_flight += 1
        if len(self.replicas) > 1:
            self._last[conversation] = replica
            self._last.move_to_end(conversation)
            if len(self._last) > MAX_CONVERSATIONS:
                self._last.popitem(last=False)
        return replica

    def leave(self, replica: Replica) -> None:
        replica.in_flight -= 1
        if not replica.in_flight:
            self._leaving.discard(replica)
            self._idle.set()
            self._idle = asyncio.Event()
        self._wake()

    def lost(self, replica: Replica, probe: Callable[[Deployment], Awaitable[bool]]) -> None:
        """Its connection failed. It is out until a probe finds it; the only one is never out, for there is nobody else to ask."""
        if replica.probing is None and replica in self.replicas and len(self.replicas) > 1:
            replica.probing = asyncio.create_task(self._until_back(replica, probe))

    def left_to_try(self, tried: Collection[Replica]) -> bool:
        return any(replica not in tried for replica in self.replicas)

    async def drained(self, deployment_id: str) -> None:
        """Return once no call is in flight on that replica, nor, under the set's own id, on any or waiting for one."""
        while self._busy(deployment_id):
            await self._idle.wait()

    @property
    def busy(self) -> bool:
        return self._busy(self.id)

    def close(self) -> None:
        """Stop looking for those that are out."""
        for replica in self.replicas:
            self._is_back(replica)

    def _busy(self, deployment_id: str) -> bool:
        every = deployment_id in (self.id, self._first.set_id)
        of = [replica for replica in (*self.replicas, *self._leaving) if every or replica.deployment.id == deployment_id]
        return any(replica.in_flight for replica in of) or (every and bool(self._waiting))

    def _choose(self, conversation: Conversation, tried: Collection[Replica]) -> Replica | None:
        """None: every one that could be asked is full."""
        if len(self.replicas) == 1:
            return self.replicas[0] if self.replicas[0].room > 0 else None
        here = [replica for replica in self.replicas if replica not in tried]
        up = [replica for replica in here if replica.probing is None] or here  # all out: one that is asked says so, or is back
        free = [replica for replica in up if replica.room > 0]
        share = max(FEW, math.ceil(SHARE * (sum(replica.in_flight for replica in up) + 1) / max(1, len(up))))
        light = [replica for replica in free if replica.in_flight < share]
        if (last := self._last.get(conversation)) in light:
            return last
        return max(light or free, key=lambda replica: _weight(conversation[2], replica), default=None)

    async def _wait(self, conversation: Conversation, tried: Collection[Replica]) -> Replica:
        until = asyncio.get_running_loop().time() + WAIT
        first_time = True
        while True:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn) if first_time else self._waiting.appendleft(turn)
            first_time = False
            try:
                async with asyncio.timeout_at(until):
                    await turn
            except BaseException as error:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                elif not turn.cancelled():
                    self._wake()  # its turn is the next one's
                if isinstance(error, TimeoutError):
                    raise _full(self.model_name) from error
                raise
            if (replica := self._choose(conversation, tried)) is not None:
                return replica

    def _wake(self, places: int = 1) -> None:
        while self._waiting and places > 0:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                places -= 1

    async def _until_back(self, replica: Replica, probe: Callable[[Deployment], Awaitable[bool]]) -> None:
        pause = PROBE_EVERY
        while True:
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))
            if await probe(replica.deployment):
                break
            pause = min(2 * pause, PROBE_AT_MOST)
        replica.probing = None
        self._wake(replica.room)

    def _is_back(self, replica: Replica) -> None:
        if replica.probing is not None:
            replica.probing.cancel()
            replica.probing = None


def leading(body: dict[str, Any]) -> bytes:
    """Hash of what a prompt begins with: tools, and the messages up to the first of the user; or the beginning of a text."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        return hashlib.blake2b(str(body.get("prompt"))[:2048].encode(errors="replace"), digest_size=8).digest()
    end = next((n for n, message in enumerate(messages, 1) if isinstance(message, dict) and message.get("role") == "user"), len(messages))
    return hashlib.blake2b(orjson.dumps([body.get("tools"), messages[:end]]), digest_size=8).digest()


def _weight(lead: bytes, replica: Replica) -> bytes:
    return hashlib.blake2b(lead, key=replica.deployment.id.encode(), digest_size=8).digest()


def _full(name: str) -> Refusal:
    return Refusal(429, "too_many_calls", f"too many calls wait for {name}", "run fewer agents at once, or more replicas", retry_after="1")
