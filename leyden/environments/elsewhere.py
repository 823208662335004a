"""A run whose attempts are made by runners elsewhere: ``leyden runners module:env --store URL``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from leyden.environments.attempt import AttemptResult
from leyden.environments.driving import attempt_of, batches, driving, enqueue, in_order_of_ending, lent, named_generations
from leyden.environments.evaldir import EvalDir
from leyden.environments.plan import Key, Plan
from leyden.environments.stored import RECORD
from leyden.environments.tally import Tally
from leyden.server.client import StoreClient
from leyden.server.interface import Store
from leyden.types import Rollout, RunState

WINDOW = 256  # of the oldest rollouts that are open: what is waited for
LOOK_EVERY = 1.0  # seconds a wait lasts at most
PAGE = 1000  # rollouts
AT_ONCE = 32  # of which the records are read
ALIVE_WITHIN = 30.0  # seconds since a runner's last heartbeat
TOLD_AFTER = 10.0  # seconds without a runner before a person is told


async def run_elsewhere(
    url: str, run: EvalDir, asked: Mapping[str, Any], plan: Plan, tally: Tally, say: Callable[[str], None], runners: str
) -> None:
    """Queue what is not in the store yet, and wait. ``runners``: the command that starts some, for a person to read."""
    async with StoreClient(url) as store, driving(store, run.id, asked) as driven, lent(store, plan.llm) as resources_id:
        rollouts = await enqueue(store, plan, run.id, resources_id, remote=True)
        await _Waiting(store, run.id, plan, tally, rollouts, say, runners).wait()
        await store.finish_run(run.id, driven.epoch, RunState.SUCCEEDED, {"n_attempts": tally.n_ended, "n_scored": tally.n_scored})


class _Waiting:
    def __init__(
        self, store: Store, run_id: str, plan: Plan, tally: Tally, rollouts: dict[Key, Rollout], say: Callable[[str], None], runners: str
    ) -> None:
        self._store = store
        self._run_id = run_id
        self._plan = plan
        self._tally = tally
        self._rollouts = rollouts
        self._keys = {rollout.id: key for key, rollout in rollouts.items()}
        self._say = say
        self._runners = runners
        self._seen_runner = time.monotonic()
        self._told = False

    async def wait(self) -> None:
        await self._take(dict(self._rollouts))
        while self._tally.open:
            waited_for = [self._rollouts[key].id for key in islice((key for key in self._plan.keys if key in self._tally.open), WINDOW)]
            final = await self._store.wait_rollouts(waited_for, LOOK_EVERY, done=min(8, len(waited_for)))
            await self._take({self._keys[rollout.id]: rollout for rollout in final})
            if not final:
                await self._look_for_runners()

    async def _take(self, rollouts: Mapping[Key, Rollout]) -> None:
        given_up: set[Key] = set()
        for batch in batches(in_order_of_ending(rollouts), AT_ONCE):
            for key, attempt in zip((key for key, _ in batch), await asyncio.gather(*(self._read(*item) for item in batch)), strict=True):
                if attempt is None:
                    self._tally.give_up([key])
                else:
                    given_up |= self._tally.add(key[0], attempt)
        dropped = given_up & self._tally.open
        for keys in batches(sorted(dropped), PAGE):
            await self._store.cancel([self._rollouts[key].id for key in keys])
        self._tally.give_up(dropped)

    async def _read(self, key: Key, rollout: Rollout) -> AttemptResult | None:
        spans = await self._store.list_spans(rollout.id, rollout.attempt) if rollout.attempt else []
        record = next((span for span in spans if span.name == RECORD and not span.late), None)
        attempt = attempt_of(rollout, key[1], record, self._plan.output_type)
        return None if attempt is None else await named_generations(self._store, attempt)

    async def _look_for_runners(self) -> None:
        if await self._store.list_workers(alive_within=ALIVE_WITHIN):
            self._seen_runner, self._told = time.monotonic(), False
        elif time.monotonic() - self._seen_runner > TOLD_AFTER and not self._told:
            self._told = True
            self._say(f"no runner is connected: start some with {self._runners}")
