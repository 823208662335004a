"""Who waits in this process, and how they are woken: by commits, never by polling."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, TypeVar

from leyden.server.operations.claims import Claimed, ClaimRequest
from leyden.types import Lease

T = TypeVar("T")

ROUND_LIMIT = 512  # rollouts asked for in one batched claim
FIRST_ROUND = 32  # and in the first one after news, most of which are of one rollout


@dataclass(eq=False)
class _Waiter:
    request: ClaimRequest
    answer: asyncio.Future[list[Lease]]
    news: bool = True  # since it was last looked at: it is new, or there may be something for it
    unserved: bool = True  # neither asked for nor passed over since then
    asked: bool = False  # part of the claim that runs now
    last_round: bool = False  # its time is up: the next answer is final, empty or not
    gone: bool = False  # cancelled while it was part of a running claim
    replaced: bool = False  # the same request came again: that one gets the leases


class ClaimDesk:
    """Serves claims first in, first out. One batched claim at a time asks for all for whom there may be work, as ``wake`` says: thousands
    that wait for one queue cost nothing while there is work in others."""

    def __init__(
        self,
        claim: Callable[[Sequence[ClaimRequest]], Coroutine[Any, Any, Claimed]],
        hand_back: Callable[[Sequence[Lease]], Coroutine[Any, Any, None]],
        feeds: bool,
    ) -> None:
        """``feeds``: whether work may be given out in the transaction that brings it. Of stores that share a database, each of which
        locks what it claims after what it has brought, two would wait for each other."""
        self._claim = claim
        self._feeds = feeds
        self._hand_back = hand_back
        self._waiters: dict[_Waiter, None] = {}  # in order
        self._by_request: dict[tuple[str, str], _Waiter] = {}
        self._closed = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._serving = False

    async def claim(self, request: ClaimRequest, wait: float) -> list[Lease]:
        """Leases, or none after ``wait`` seconds, later only if it had no turn until then. If the caller is cancelled, what it was given is
        handed back."""
        waiter = _Waiter(request, asyncio.get_running_loop().create_future(), last_round=wait <= 0 or self._closed)
        key = request.worker_id, request.request_id
        former = self._by_request.get(key)
        if former is not None:
            self._replace(former)
        self._by_request[key] = waiter
        self._waiters[waiter] = None
        self._serve_soon()
        try:
            if not waiter.last_round:
                await asyncio.wait({waiter.answer}, timeout=wait)
                waiter.last_round = True
                if not waiter.answer.done() and not waiter.asked and not waiter.unserved:
                    self._settle(waiter, [])
            await asyncio.wait({waiter.answer})
            return waiter.answer.result()
        except asyncio.CancelledError:
            self._leave(waiter)
            raise
        finally:
            if self._by_request.get(key) is waiter:
                del self._by_request[key]

    @property
    def waiting(self) -> int:
        """Claims that wait for work now."""
        return len(self._waiters)

    def wake(self, queues: Set[str] | None = None) -> None:
        """There may be something new in ``queues``; None: in any."""
        for waiter in self._waiters:
            waiter.news |= queues is None or not queues.isdisjoint(waiter.request.queues)
        self._serve_soon()

    async def feed(self, queues: Set[str], write: Callable[[Sequence[ClaimRequest]], Coroutine[Any, Any, tuple[T, Claimed]]]) -> T:
        """``write`` brings work into ``queues`` and serves, in the same transaction, the requests that it is given: the first of those who
        wait there. Returns what it brought."""
        waiting = [waiter for waiter in self._waiters if not queues.isdisjoint(waiter.request.queues)]
        if not self._feeds or self._serving or not waiting:  # who is being asked for now is served by the next claim
            return (await write([]))[0]
        self._serving = True
        chosen = _first_round(waiting, FIRST_ROUND)
        for waiter in chosen:  # from now on: the time of one of them may be up before the task begins
            waiter.asked = True
        feeding = asyncio.create_task(self._feed(chosen, write))
        self._keep(feeding)
        return await asyncio.shield(feeding)  # whoever brought it may leave: those who were served are told

    async def _feed(self, chosen: list[_Waiter], write: Callable[[Sequence[ClaimRequest]], Coroutine[Any, Any, tuple[T, Claimed]]]) -> T:
        try:
            brought, claimed = await write([waiter.request for waiter in chosen])
        except BaseException:  # what could not be brought is no answer to those who wait: they are looked at once more
            for waiter in chosen:
                waiter.asked, waiter.news, waiter.unserved = False, True, True
                if waiter.gone or waiter.replaced:
                    self._settle(waiter, [])
            raise
        else:
            self._answer(chosen, claimed)
            return brought
        finally:
            self._serving = False
            self._serve_soon()

    def _serve_soon(self) -> None:
        if not self._serving and self._waiters:
            self._serving = True
            self._start(self._serve())

    async def close(self) -> None:
        """Answer all who wait, and finish handing back."""
        self._closed = True
        for waiter in list(self._waiters):
            waiter.last_round = True
            if not waiter.asked:
                self._settle(waiter, [])
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _serve(self) -> None:
        try:
            while waiting := [waiter for waiter in self._waiters if waiter.news]:
                await self._serve_all(waiting)
        finally:
            self._serving = False

    async def _serve_all(self, waiting: list[_Waiter]) -> None:
        """Ask for all of them, a round at a time, but for nobody whose queues have nothing left."""
        for waiter in waiting:
            waiter.news, waiter.unserved = False, True
        drained: set[str] = set()
        limit = FIRST_ROUND
        while waiting:
            chosen = _first_round(waiting, limit)
            limit = ROUND_LIMIT
            drained |= await self._serve_round(chosen)
            behind = [waiter for waiter in waiting[len(chosen) :] if not waiter.gone and not waiter.answer.done()]
            waiting = [waiter for waiter in behind if not drained.issuperset(waiter.request.queues)]
            for waiter in behind:
                if drained.issuperset(waiter.request.queues):
                    waiter.unserved = False
                    if waiter.last_round:
                        self._settle(waiter, [])

    async def _serve_round(self, chosen: list[_Waiter]) -> frozenset[str]:
        """Returns the queues that have nothing left."""
        for waiter in chosen:
            waiter.asked, waiter.unserved = True, False
        try:
            claimed = await self._claim([waiter.request for waiter in chosen])
        except Exception as error:  # the store is behind, closed, or could not write: each of them is told
            for waiter in chosen:
                waiter.asked = False
                self._drop(waiter)
                if not waiter.gone and not waiter.answer.done():
                    waiter.answer.set_exception(error)
            return frozenset()
        self._answer(chosen, claimed)
        return claimed.drained

    def _answer(self, chosen: list[_Waiter], claimed: Claimed) -> None:
        for waiter, leases in zip(chosen, claimed.answers, strict=True):
            waiter.asked = False
            if waiter.gone or waiter.replaced:
                # Whoever repeated it is given them, if there is still somebody.
                repeated = waiter.replaced and (waiter.request.worker_id, waiter.request.request_id) in self._by_request
                if leases and not repeated:
                    self._start(self._hand_back(leases))
                self._settle(waiter, [])
            elif leases or waiter.last_round:
                self._settle(waiter, leases)

    def _settle(self, waiter: _Waiter, leases: list[Lease]) -> None:
        self._drop(waiter)
        if not waiter.answer.done():
            waiter.answer.set_result(leases)

    def _drop(self, waiter: _Waiter) -> None:
        self._waiters.pop(waiter, None)

    def _replace(self, former: _Waiter) -> None:
        former.replaced = True
        if not former.asked:
            self._settle(former, [])

    def _leave(self, waiter: _Waiter) -> None:
        waiter.gone = True
        self._drop(waiter)
        if waiter.answer.done() and not waiter.answer.cancelled() and waiter.answer.exception() is None and not waiter.replaced:
            leases = waiter.answer.result()
            if leases:
                self._start(self._hand_back(leases))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._keep(asyncio.create_task(work))

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _first_round(waiting: Sequence[_Waiter], limit: int) -> list[_Waiter]:
    chosen: list[_Waiter] = []
    wanted = 0
    for waiter in waiting:
        if chosen and wanted + waiter.request.limit > limit:
            break
        chosen.append(waiter)
        wanted += waiter.request.limit
    return chosen


class FinalWatch:
    """Tells waiters which rollouts have become final."""

    def __init__(self) -> None:
        self._watchers: defaultdict[str, set[Watcher]] = defaultdict(set)
        self._closed = False

    @property
    def ids(self) -> Collection[str]:
        """What somebody waits for."""
        return self._watchers.keys()

    def announce(self, finished: Iterable[str]) -> None:
        for rollout_id in finished:
            for watcher in self._watchers.get(rollout_id, ()):
                watcher.final.add(rollout_id)
                watcher.news.set()

    def watch(self, ids: Sequence[str]) -> Watcher:
        watcher = Watcher(frozenset(ids), closed=self._closed)
        for rollout_id in watcher.ids:
            self._watchers[rollout_id].add(watcher)
        return watcher

    def leave(self, watcher: Watcher) -> None:
        for rollout_id in watcher.ids:
            watchers = self._watchers[rollout_id]
            watchers.discard(watcher)
            if not watchers:
                del self._watchers[rollout_id]

    def close(self) -> None:
        self._closed = True
        for watcher in {watcher for watchers in self._watchers.values() for watcher in watchers}:
            watcher.closed = True
            watcher.news.set()


@dataclass(eq=False)
class Watcher:
    """Register it (``FinalWatch.watch``) before reading the present state, so that nothing falls in between."""

    ids: frozenset[str]
    final: set[str] = field(default_factory=set)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    closed: bool = False

    async def until(self, done: int, wait: float) -> None:
        """Returns when ``done`` of them are final, after ``wait`` seconds, or when the store closes."""
        deadline = asyncio.get_running_loop().time() + wait
        while len(self.final) < done and not self.closed:
            self.news.clear()
            left = deadline - asyncio.get_running_loop().time()
            try:
                await asyncio.wait_for(self.news.wait(), left)
            except TimeoutError:
                return
