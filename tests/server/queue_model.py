"""What the queue should be: a small model of it, in plain Python. Times are microseconds; the jitter of retries is one half."""

from __future__ import annotations

from dataclasses import dataclass, field

from storekit import SECOND

from leyden.types import FailureKind, LeaseRef, NewRollout, RolloutState

LEASE, TIMEOUT, STALL = 5 * SECOND, 12 * SECOND, 2 * SECOND
RETRIED = (FailureKind.TOOL, FailureKind.INFRASTRUCTURE, FailureKind.LOST)


@dataclass
class Held:
    ref: LeaseRef
    expires_at: int
    deadline_at: int


@dataclass
class Item:
    """A rollout; ``ended`` says how each of its leases ended."""

    new: NewRollout
    seq: int
    pinned: int | None  # index of the resources it is for
    state: RolloutState = RolloutState.QUEUED
    available_at: int | None = None
    attempt: int = 0
    failures: int = 0
    lost: int = 0
    released: int = 0
    failure: FailureKind | None = None
    held: Held | None = None
    ended: dict[LeaseRef, str] = field(default_factory=dict)
    rewards: dict[int, float] = field(default_factory=dict)  # by attempt

    def end(self, how: str, state: RolloutState, delay: int = 0, now: int = 0, failure: FailureKind | None = None) -> None:
        if self.held:
            self.ended[self.held.ref] = how
        self.held, self.state, self.failure = None, state, failure
        self.available_at = now + delay if delay else None
        if delay:
            self.state = RolloutState.SCHEDULED

    def fail(self, how: str, failure: FailureKind, now: int) -> None:
        lost = failure is FailureKind.LOST
        self.lost, self.failures = self.lost + lost, self.failures + (not lost)
        config = self.new.config
        tally, budget = (self.lost, config.max_lost) if lost else (self.failures, config.max_attempts)
        if failure not in RETRIED or tally >= budget:
            return self.end(how, RolloutState.FAILED, failure=failure)
        delay = 0.0 if lost else config.retry_delays.get(failure, config.retry_delay) * 2 ** (tally - 1) / 2
        self.end(how, RolloutState.QUEUED, round(delay * SECOND), now)

    def cancel(self) -> None:
        self.end("cancelled", RolloutState.CANCELLED, failure=FailureKind.CANCELLED)

    def requeue(self) -> None:
        self.end("", RolloutState.QUEUED)
        self.failures = self.lost = self.released = 0


@dataclass
class Model:
    now: int
    swept_at: int
    items: dict[str, Item] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)
    limits: dict[str, int | None] = field(default_factory=dict)
    alive: list[bool] = field(default_factory=list)  # the versions of the resources

    def running(self, queue: str) -> int:
        return sum(item.held is not None for item in self.items.values() if item.new.queue == queue)

    def ready(self, queues: list[str], n: int) -> list[str]:
        """What a claim of ``n`` gets, in order."""
        room = {queue: 10**9 if (limit := self.limits.get(queue)) is None else limit - self.running(queue) for queue in queues}
        found: list[str] = []
        for item_id, item in sorted(self.items.items(), key=lambda pair: (pair[1].new.priority, pair[1].seq)):
            queue = item.new.queue
            alive = self.alive[item.pinned] if item.pinned is not None else not self.alive or self.alive[-1]
            open_ = queue in room and queue not in self.paused and room[queue] > 0
            if item.state is RolloutState.QUEUED and alive and open_ and len(found) < n:
                found.append(item_id)
                room[queue] -= 1
        return found

    def sweep(self) -> None:
        if self.now - self.swept_at > STALL:
            self.forgive(self.now - self.swept_at)
        self.swept_at = self.now
        due = [item for item in self.items.values() if item.available_at is not None and item.available_at <= self.now]
        for item in self.items.values():
            if item.held and min(item.held.expires_at, item.held.deadline_at) <= self.now:
                lost = item.held.expires_at < item.held.deadline_at
                item.fail("swept", FailureKind.LOST if lost else FailureKind.TIMEOUT, self.now)
        for item in due:
            item.end("", RolloutState.QUEUED)

    def forgive(self, gap: int) -> None:
        for item in self.items.values():
            if item.held:
                item.held.expires_at, item.held.deadline_at = self.now + LEASE, item.held.deadline_at + gap

    def restart(self, shared: bool) -> None:
        beats = [item.held.expires_at - LEASE for item in self.items.values() if item.held]
        gap = self.now - (self.swept_at if shared else max(beats, default=self.now))
        if not shared or gap > STALL:
            self.forgive(gap)
        self.swept_at = self.now
