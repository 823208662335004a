"""The heartbeat: a thread with its own connection, so that an agent that blocks the runner's event loop keeps its leases."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

from leyden.errors import LeydenError
from leyden.server.interface import Store
from leyden.types import LeaseRef, Verdict

Report = Callable[[list[LeaseRef], list[Verdict], float], None]


class Heart:
    """Beats for all leases every ``lease_seconds / 4``; with no lease, to say that the worker lives.

    ``report(refs, verdicts, sent)`` is called in the heart's thread after each answered beat; ``sent``: when it left, in monotonic seconds.
    ``on_beat`` is called there before each beat.
    """

    def __init__(
        self, connect: Callable[[], Store], worker_id: str, lease_seconds: float, report: Report, on_beat: Callable[[], None]
    ) -> None:
        self._connect = connect
        self._worker_id = worker_id
        self._lease_seconds = lease_seconds
        self._report = report
        self._on_beat = on_beat
        self.busy_until = 0.0  # of its connection to the store
        self._lock = threading.Lock()
        self._refs: set[LeaseRef] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._beat_on, name="heart", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """No beat begins after this; one that is under way is not waited for."""
        self._stopping.set()

    def hold(self, ref: LeaseRef) -> None:
        with self._lock:
            self._refs.add(ref)

    def drop(self, ref: LeaseRef) -> None:
        with self._lock:
            self._refs.discard(ref)

    def _beat_on(self) -> None:
        interval = self._lease_seconds / 4
        with asyncio.Runner() as loop:
            store = self._connect()
            while not self._stopping.wait(interval):
                self._on_beat()
                loop.run(self._beat(store, interval))
            loop.run(store.close())

    async def _beat(self, store: Store, timeout: float) -> None:
        with self._lock:
            refs = list(self._refs)
        sent = time.monotonic()
        try:
            verdicts = await asyncio.wait_for(store.heartbeat(self._worker_id, refs, self._lease_seconds), timeout)
        except (LeydenError, TimeoutError):
            return  # the store is away: the claims say so, and the runner's clock ends the leases it can no longer be sure of
        finally:
            self.busy_until = store.busy_until
        self._report(refs, verdicts, sent)
