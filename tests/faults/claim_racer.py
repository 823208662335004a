"""A process that claims as fast as it can: two claimers, which note what they were given and when. A store of its own on PostgreSQL, a
client elsewhere."""

from __future__ import annotations

import asyncio
import json
import time
from itertools import cycle
from pathlib import Path

from leyden.server.client import StoreClient
from leyden.server.sqlstore import SQLStore
from leyden.types import LeaseRef

CLAIMERS = 2
SIZES = (1, 8, 64)


def run(database: str, name: str, run_id: str, limited: str, free: str, go: str, log: str) -> None:
    asyncio.run(_race(database, name, run_id, limited, free, Path(go), Path(log)))


async def _race(database: str, name: str, run_id: str, limited: str, free: str, go: Path, log: Path) -> None:
    async with StoreClient(database) if database.startswith("http") else await SQLStore.open(database) as store:
        log.with_suffix(".ready").touch()
        while not go.exists():  # noqa: ASYNC240
            await asyncio.sleep(0.01)
        notes: list[tuple[str, float, LeaseRef, str]] = []

        async def claim(number: int) -> None:
            sizes = cycle((*SIZES[number:], *SIZES[:number]))
            while True:
                leases = await store.claim(f"{name}-{number}", next(sizes), wait=0.5, lease_seconds=300.0, queues=[limited, free])
                given_at = time.monotonic()
                notes.extend(("given", given_at, lease.ref, lease.rollout.queue) for lease in leases)
                if not leases and (await store.count(run_id)).queued == 0:
                    return
                for lease in leases:
                    if lease.rollout.queue == limited:
                        notes.append(("ending", time.monotonic(), lease.ref, limited))  # before it is: the store may know it any time later
                        await store.complete(lease.ref)

        await asyncio.gather(*map(claim, range(CLAIMERS)))
    with log.open("w") as lines:
        for what, at, ref, queue in notes:
            lines.write(json.dumps([what, at, ref.rollout_id, ref.attempt, ref.token, queue]) + "\n")
