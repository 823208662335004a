"""Queue rollouts, wait for them, and bring back what they earned. Used by collection and by evaluation."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from leyden.algorithm.sft.cost import Interval
from leyden.algorithm.sft.report import Board, StepView, clock
from leyden.environments.scored import of_one_source
from leyden.errors import Conflict, TooLarge, Unavailable
from leyden.server.interface import Store
from leyden.server.queries import MAX_IDS
from leyden.types import Generation, NewRollout, Reward, Rollout, RolloutState

REWARD = "reward"
ENQUEUE_BATCH = 256
READ_BATCH = 32  # rollouts a request for generations asks for: each may hold thousands of token ids
LOOK_EVERY = 2.0  # seconds a wait lasts before the board hears of it
ALIVE_WITHIN = 30.0  # seconds since a runner's last heartbeat
FEW_LEFT = 0.1  # of all rollouts: from here on, cores begin to be idle
NO_RUNNER_AFTER = 10.0  # seconds without one before a person is told

Captured = tuple[list[Generation], list[Reward]]

T = TypeVar("T")


@dataclass(frozen=True)
class Ended:
    """One rollout's end. ``reward`` is None where it has none: it failed, or nobody scored it. Neither is a reward of 0."""

    rollout: Rollout
    reward: float | None

    @property
    def failed(self) -> bool:
        return self.rollout.state != RolloutState.SUCCEEDED


class TooManyFailed(Unavailable):
    code = "too_many_failed"


@dataclass(frozen=True)
class Patience:
    """What bounds the wait."""

    max_failed_share: float
    without_runner: float  # seconds
    without_progress: float  # seconds in which no rollout ended although runners live


async def run_rollouts(
    store: Store,
    new: Sequence[NewRollout],
    patience: Patience,
    board: Board,
    view: StepView,
    near_end: Callable[[], None] | None = None,
) -> list[Ended]:
    """Queue ``new`` and wait until all are final; in the order given. ``near_end`` is called, more than once, when few are left.

    Raises ``TooManyFailed`` naming the first error when more than the stated share failed, and ``Unavailable`` when no runner
    comes, or when nothing ends.
    """
    view.update(done=0, total=len(new), note="queued")
    queued = [rollout for batch in batches(new, ENQUEUE_BATCH) for rollout in await store.enqueue(batch)]
    wait = _Wait(len(queued), patience, board, view)
    pending = {rollout.id for rollout in queued}
    while pending:
        final = await store.wait_rollouts(sorted(pending)[:MAX_IDS], wait=LOOK_EVERY, done=min(8, len(pending)))
        rewards = last_rewards(await store.list_rewards([rollout.id for rollout in final])) if final else {}
        wait.add([_end(rollout, rewards) for rollout in final], await _running(store, new[0]))
        pending -= {rollout.id for rollout in final}
        if near_end and pending and len(pending) <= FEW_LEFT * len(queued):
            near_end()
        if pending and not final:
            wait.check_runners(len(await store.list_workers(alive_within=ALIVE_WITHIN)))
    return [wait.ended[rollout.id] for rollout in queued]


async def _running(store: Store, new: NewRollout) -> int | None:
    """How many of the step's rollouts a runner holds; None for rollouts of no run, which nobody counts."""
    return (await store.count(new.run_id, new.iteration, new.mode)).running if new.run_id else None


async def read_ended(store: Store, rollout_ids: Sequence[str]) -> list[Ended]:
    """How rollouts ended that an earlier driver waited for; in the order given. Raises ``Conflict`` where the store does not hold them."""
    found: dict[str, Rollout] = {}
    rewards: list[Reward] = []
    for ids in batches(rollout_ids, ENQUEUE_BATCH):
        found |= {rollout.id: rollout for rollout in await store.list_rollouts(ids=ids) if rollout.state.final}
        rewards += await store.list_rewards(ids)
    missing = [rollout_id for rollout_id in rollout_ids if rollout_id not in found]
    if missing:
        raise Conflict(
            f"the store does not hold {len(missing)} of {len(rollout_ids)} rollouts that this run has finished, such as {missing[0]}",
            "go on with the store that it ran with, or start afresh with --new",
        )
    last = last_rewards(rewards)
    return [_end(found[rollout_id], last) for rollout_id in rollout_ids]


def _end(rollout: Rollout, rewards: Mapping[str, float]) -> Ended:
    """What an attempt earned before it failed is not what its rollout earned."""
    return Ended(rollout, rewards.get(rollout.id) if rollout.state == RolloutState.SUCCEEDED else None)


class _Wait:
    """Keeps score while rollouts end, and decides when waiting makes no sense any more."""

    def __init__(self, total: int, patience: Patience, board: Board, view: StepView) -> None:
        self.ended: dict[str, Ended] = {}
        self._total = total
        self._patience = patience
        self._board = board
        self._view = view
        self._failed: list[Rollout] = []
        self._last_end = self._runner_seen = time.monotonic()
        self._told = False

    def add(self, ended: Sequence[Ended], running: int | None) -> None:
        if ended:
            self._last_end = self._runner_seen = time.monotonic()
        self.ended |= {end.rollout.id: end for end in ended}
        self._failed += [end.rollout for end in ended if end.failed]
        scored = [end.reward for end in self.ended.values() if end.reward is not None]
        notes = [f"{running} running"] if running else []
        notes += [f"{len(self._failed)} failed"] if self._failed else []
        notes += [f"reward {sum(scored) / len(scored):.2f}" if scored else "no reward yet"]
        self._view.update(done=len(self.ended), note=", ".join(notes))
        if len(self._failed) > self._patience.max_failed_share * self._total:
            raise TooManyFailed(
                f"{len(self._failed)} of {len(self.ended)} rollouts failed; the first: {_why(self._failed[0])}",
                "a failed rollout is no reward of 0: look at the runners' logs, or run the agent once by hand; then start afresh",
            )

    def check_runners(self, alive: int) -> None:
        now = time.monotonic()
        if alive:
            self._runner_seen, self._told = now, False
            if now - self._last_end > self._patience.without_progress:
                raise Unavailable(
                    f"no rollout ended in {clock(now - self._last_end)} although {alive} runners live",
                    "look at the runners' and the engine's logs",
                )
            return
        gone = now - self._runner_seen
        if gone > self._patience.without_runner:
            raise Unavailable(f"no runner was connected for {clock(gone)}", "start some, then run again: python examples/math/runners.py")
        if gone > NO_RUNNER_AFTER and not self._told:
            self._told = True
            self._board.say("  no runner is connected: start python examples/math/runners.py")


def _why(rollout: Rollout) -> str:
    kind = rollout.failure or rollout.state
    return f"{kind}: {rollout.error.splitlines()[0]}" if rollout.error else str(kind)


def last_rewards(rewards: Iterable[Reward]) -> Mapping[str, float]:
    """Rollout id → its reward: the one at the end, else the one given last; of the source that spoke first."""
    last: dict[str, Reward] = {}
    for reward in of_one_source(rewards, REWARD):
        if reward.rollout_id:
            known = last.get(reward.rollout_id)
            if known is None or known.position != "end":
                last[reward.rollout_id] = reward
    return {rollout_id: reward.value for rollout_id, reward in last.items()}


async def read_captured(store: Store, rollout_ids: Sequence[str]) -> Captured:
    """Every generation and reward of the rollouts' latest attempts."""
    generations: list[Generation] = []
    rewards: list[Reward] = []
    for ids in batches(rollout_ids, READ_BATCH):
        generations += await read_generations(store, ids)
        rewards += await store.list_rewards(ids)
    return generations, rewards


async def read_call_times(store: Store, ended: Sequence[Ended], generations: Sequence[Generation]) -> list[Interval]:
    """When each call of these rollouts was at an engine: of the latest attempts, whose ``generations`` are given, and of those before."""
    retried: dict[int, list[str]] = defaultdict(list)
    for end in ended:
        for attempt in range(1, end.rollout.attempt):
            retried[attempt].append(end.rollout.id)
    calls = list(generations)
    for attempt, rollout_ids in retried.items():
        for ids in batches(rollout_ids, READ_BATCH):
            calls += await read_generations(store, ids, attempt)
    return [(call.started_at, call.started_at + round(call.latency * 1e6)) for call in calls]


async def read_generations(store: Store, rollout_ids: Sequence[str], attempt: int | None = None) -> list[Generation]:
    """Those of that attempt, or of each one's latest: as many at once as an answer of the store can hold."""
    try:
        return await store.list_generations(rollout_ids, attempt)
    except TooLarge:
        if len(rollout_ids) == 1:
            raise
    half = len(rollout_ids) // 2
    return [one for some in (rollout_ids[:half], rollout_ids[half:]) for one in await read_generations(store, some, attempt)]


def count_tokens(generations: Iterable[Generation]) -> Counter[str]:
    """What the model read and sampled. The choices of one call share its prompt and, without ids, its usage: both count once."""
    tokens: Counter[str] = Counter(read=0, sampled=0)
    calls = set()
    for item in generations:
        first = item.call_id not in calls
        calls.add(item.call_id)
        if first:
            tokens["read"] += item.prompt_tokens or len(item.prompt_token_ids or ())
        if item.response_token_ids is not None:
            tokens["sampled"] += len(item.response_token_ids)
        elif first:
            tokens["sampled"] += item.completion_tokens or 0
    return tokens


def batches(items: Sequence[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
