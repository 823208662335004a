"""Eight claimers in four processes after the same rollouts, in batches of 1, 8 and 64: each is given once, and no limit is ever passed.

On SQLite they are clients of one store; on PostgreSQL each process is a store of its own on the same database.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any

import psycopg
import pytest
from store_process import until
from store_room import SCALE, Room

from leyden.server.client import StoreClient
from leyden.server.sqlstore import SQLStore
from leyden.types import NewRollout

ROUNDS = 3 * SCALE
ROLLOUTS = 20_000  # in each round
LIMITED = ROLLOUTS // 20  # of them in a queue with a limit
PROCESSES = 4
LIMITS = (12, 1, 40)  # of one round and the next
PATIENCE = 240.0


@pytest.mark.timeout(600 * SCALE)
def test_no_rollout_is_given_twice_and_no_limit_is_passed_by_racing_claimers(room: Room) -> None:
    asyncio.run(_race(room))


async def _race(room: Room) -> None:
    async with AsyncExitStack() as stack:
        if room.postgres is None:
            where = (await stack.enter_async_context(room.store())).url
            store: SQLStore | StoreClient = await stack.enter_async_context(StoreClient(where))
        else:
            where = room.database
            store = await stack.enter_async_context(await SQLStore.open(where))
        for number in range(ROUNDS):
            await _one_round(room, where, store, f"race-{number}", LIMITS[number % len(LIMITS)])


async def _one_round(room: Room, where: str, store: SQLStore | StoreClient, run_id: str, limit: int) -> None:
    limited, free = f"{run_id}-limited", f"{run_id}-free"
    await store.set_queue(limited, max_running=limit)
    new = [NewRollout(input=i, run_id=run_id, queue=free) for i in range(ROLLOUTS)]
    new[::20] = [item.model_copy(update={"queue": limited, "priority": -1}) for item in new[::20]]  # wanted before all others
    made = {rollout.id for i in range(0, ROLLOUTS, 5000) for rollout in await store.enqueue(new[i : i + 5000])}
    go, logs = room.directory / f"{run_id}.go", [room.directory / f"{run_id}-{i}.jsonl" for i in range(PROCESSES)]
    forks = [
        room.nursery.start("claim_racer:run", where, log.stem, run_id, limited, free, str(go), str(log), log=room.directory / "racers.log")
        for log in logs
    ]
    said = (room.directory / "racers.log").read_text
    await until(lambda: all(log.with_suffix(".ready").exists() for log in logs), "the racers are ready", said, PATIENCE)
    with watching(room, limited) as seen:
        go.touch()
        await until(lambda: not any(fork.alive for fork in forks), "the race is over", said, PATIENCE)
    notes = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    given = Counter(rollout_id for what, _, rollout_id, *_ in notes if what == "given")
    assert given.keys() == made and set(given.values()) == {1}, "each was given once"
    assert {attempt for _, _, _, attempt, *_ in notes} == {1}
    assert len({(rollout_id, token) for what, _, rollout_id, _, token, _ in notes if what == "given"}) == ROLLOUTS
    assert most_at_once([(what, at) for what, at, *_, queue in notes if queue == limited]) <= limit
    assert 0 < max(seen) <= limit, f"of {len(seen)} looks"
    counts = await store.count(run_id)
    assert (counts.running, counts.succeeded, counts.total) == (ROLLOUTS - LIMITED, LIMITED, ROLLOUTS)
    assert all(log.stat().st_size for log in logs), "all of them took part"


def most_at_once(notes: list[tuple[str, float]]) -> int:
    """How many a claimer held and had not begun to end, at the worst moment: no more than were running."""
    most = held = 0
    for _, what in sorted((at, what) for what, at in notes):
        held += 1 if what == "given" else -1
        most = max(most, held)
    return most


@contextmanager
def watching(room: Room, queue: str) -> Iterator[list[int]]:
    """Looks at the leases of ``queue`` all the time: how many there were, at each look."""
    seen: list[int] = []
    over = threading.Event()

    def look() -> None:
        if room.postgres is None:
            conn: Any = sqlite3.connect(f"file:{room.database}?mode=ro", uri=True)
            query = "SELECT count(*) FROM leases WHERE queue = ?"
        else:
            conn = psycopg.connect(room.database, autocommit=True)
            query = "SELECT count(*) FROM leases WHERE queue = %s"
        while not over.wait(0.002):
            seen.append(conn.execute(query, (queue,)).fetchone()[0])
        conn.close()

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()
