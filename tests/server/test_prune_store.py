"""Deleting what ended long ago: all of it, nothing else, and the counts stay right."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from contextlib import suppress
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select
from storekit import Kit, make_generation, make_span, run, task

from leyden.errors import Conflict, InvalidRequest, NotFound
from leyden.server import schema
from leyden.server.operations import prune as prune_ops
from leyden.server.queries import Prune, Pruned
from leyden.server.transaction import Transaction
from leyden.types import FailureKind, JSONResource, LeaseRef, Reward, RolloutConfig, RolloutState, RunState, Span

DAY = 86_400.0
LONG = "x" * 40_000


async def ended(kit: Kit, n: int = 1, **fields: Any) -> list[LeaseRef]:
    """Rollouts that succeeded, with something of everything recorded about them."""
    await kit.store.enqueue([task(i, **fields) for i in range(n)])
    refs = [lease.ref for lease in await kit.store.claim("w", n)]
    for i, ref in enumerate(refs):
        number = hash((ref.rollout_id, i)) % 2**60
        await kit.store.add_spans(ref, [make_span(number, attributes={"text": LONG, "own": ref.rollout_id})])
        await kit.store.add_generations(ref, [make_generation(ref, f"g-{ref.rollout_id}", request={"messages": [LONG]})])
        await kit.store.complete(ref, [Reward(value=1.0)])
    return refs


async def prune_all(kit: Kit, **fields: Any) -> Counter[str]:
    total: Counter[str] = Counter()
    more = True
    while more:
        part = await kit.store.prune(Prune(**fields))
        total.update(part.model_dump(exclude={"more"}))
        more = part.more
    return total


async def rows(kit: Kit) -> dict[str, int]:
    def count(tx: Transaction) -> dict[str, int]:
        return {
            table.name: tx.conn.execute(select(func.count()).select_from(table)).scalar_one() for table in schema.metadata.sorted_tables
        }

    return await kit.sql._executor.read(count)


async def recount(kit: Kit) -> tuple[Counter[Any], Counter[Any]]:
    """The counters as they are kept, and as they should be."""

    def both(tx: Transaction) -> tuple[Counter[Any], Counter[Any]]:
        kept = Counter({tuple(row)[:-1]: row.n for row in tx.conn.execute(select(schema.counters)) if row.n})
        r = schema.rollouts.c
        real: Counter[Any] = Counter()
        for row in tx.conn.execute(select(r.run_id, r.iteration, r.mode, r.queue, r.state, r.failure)):
            real[(row.run_id or "", -1 if row.iteration is None else row.iteration, row.mode, row.queue, row.state, row.failure or "")] += 1
        return kept, real

    return await kit.sql._executor.read(both)


def test_what_ended_long_ago_goes_with_all_that_was_recorded_about_it(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await ended(kit, 3, run_id="r", iteration=1)
        kit.clock.advance(10 * DAY)
        (kept,) = await ended(kit)
        (queued,) = await kit.store.enqueue([task()])
        before = await rows(kit)
        assert before["blobs"] > 0
        would = await kit.store.prune(Prune(older_than=5 * DAY, dry_run=True))
        assert await rows(kit) == before, "a dry run deletes nothing"
        assert (would.rollouts, would.attempts, would.spans, would.generations, would.rewards) == (3, 3, 3, 3, 3)
        deleted = await prune_all(kit, older_than=5 * DAY)
        assert {name: deleted[name] for name in ("rollouts", "attempts", "spans", "generations", "rewards")} == would.model_dump(
            include={"rollouts", "attempts", "spans", "generations", "rewards"}
        )
        assert {rollout.id for rollout in await kit.store.list_rollouts()} == {kept.rollout_id, queued.id}
        after = await rows(kit)
        assert (after["rollouts"], after["attempts"], after["spans"], after["generations"], after["rewards"]) == (2, 1, 1, 1, 1)
        (span,) = await kit.store.list_spans(kept.rollout_id)
        assert span.attributes["text"] == LONG, "pieces that others use stay"
        kept_counts, real = await recount(kit)
        assert kept_counts == real
        kit.clock.advance(10 * DAY)
        await prune_all(kit, older_than=5 * DAY)
        assert (await rows(kit))["blobs"] == (await rows(kit))["blob_uses"] == 0

    run(check, kind)


def test_what_waits_or_runs_is_never_touched_nor_a_run_that_runs(kind: str) -> None:
    async def check(kit: Kit) -> None:
        driven = await kit.store.start_run("live", {})
        await ended(kit, run_id="live")
        config = RolloutConfig(retry_delay=3600, attempt_timeout=86_400)
        await kit.store.enqueue([task("running", config=config), task("retried", config=config), task("delayed", delay=3600)])
        await kit.store.claim("w", 1)
        (lease,) = await kit.store.claim("w", 1)
        await kit.store.fail(lease.ref, FailureKind.TOOL)
        before = await kit.store.list_rollouts()
        kit.clock.advance(DAY)
        assert not any((await prune_all(kit, older_than=0)).values())
        assert await kit.store.list_rollouts() == before
        with pytest.raises(Conflict, match="run live is running"):
            await kit.store.prune(Prune(older_than=0, run_id="live"))
        await kit.store.finish_run("live", driven.epoch, RunState.SUCCEEDED)
        assert (await prune_all(kit, older_than=0, run_id="live"))["rollouts"] == 1

    run(check, kind)


def test_it_goes_by_state_and_by_run(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await ended(kit, run_id="a")
        await ended(kit, run_id="b")
        (other,) = await kit.store.enqueue([task(run_id="b")])
        await kit.store.cancel([other.id])
        kit.clock.advance(1)
        assert (await prune_all(kit, older_than=0, state=RolloutState.CANCELLED))["rollouts"] == 1
        assert (await prune_all(kit, older_than=0, run_id="a"))["rollouts"] == 1
        assert [rollout.run_id for rollout in await kit.store.list_rollouts()] == ["b"]
        with pytest.raises(InvalidRequest, match="state: running is not final"):
            await kit.store.prune(Prune(older_than=0, state=RolloutState.RUNNING))

    run(check, kind)


def test_one_call_deletes_a_bounded_piece(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prune_ops, "MAX_ROLLOUTS", 2)
    monkeypatch.setattr(prune_ops, "MAX_SPANS", 3)

    async def check(kit: Kit) -> None:
        refs = await ended(kit, 5)
        await kit.store.add_spans(refs[0], [make_span(n, trace_id="f" * 32) for n in range(9)])
        kit.clock.advance(1)
        parts: list[Pruned] = []
        while not parts or parts[-1].more:
            parts.append(await kit.store.prune(Prune(older_than=0)))
        assert [part.rollouts for part in parts if part.rollouts] == [1, 2, 2], "one alone has more spans than a piece may"
        assert sum(part.spans for part in parts) == 14

    run(check, kind)


def test_what_nothing_names_any_more_goes_too(kind: str) -> None:
    async def check(kit: Kit) -> None:
        named = await kit.store.add_resources({"a": JSONResource(value=1)})
        unnamed = await kit.store.add_resources({"a": JSONResource(value=2)})
        kept_alive = await kit.store.add_resources({"a": JSONResource(value=3)}, lease_seconds=DAY)
        await kit.store.enqueue([task(resources_id=named.id)])
        await kit.store.register_worker("old", "w", 1)
        await kit.store.stop_worker("old")
        await kit.store.register_worker("vanished", "w", 1)
        kit.clock.advance(DAY / 2)
        latest = await kit.store.add_resources({"a": JSONResource(value=4)})
        await kit.store.register_worker("new", "w", 1)
        kit.clock.advance(1)
        would = await kit.store.prune(Prune(older_than=DAY / 4, dry_run=True))
        assert (would.workers, would.resources) == (2, 1)
        deleted = await prune_all(kit, older_than=DAY / 4)
        assert (deleted["workers"], deleted["resources"]) == (2, 1)
        assert [worker.id for worker in await kit.store.list_workers()] == ["new"]
        for resources in (named, kept_alive, latest):
            await kit.store.get_resources(resources.id)
        assert unnamed.id not in (named.id, latest.id)

    run(check, kind)


def test_resources_that_only_pruned_rollouts_name_are_counted_with_them(kind: str) -> None:
    async def check(kit: Kit) -> None:
        named = await kit.store.add_resources({"a": JSONResource(value=1)})
        await ended(kit, resources_id=named.id)
        kit.clock.advance(DAY)
        await kit.store.add_resources({"a": JSONResource(value=2)})
        would = await kit.store.prune(Prune(older_than=60, dry_run=True))
        deleted = await prune_all(kit, older_than=60)
        assert (would.rollouts, would.resources) == (deleted["rollouts"], deleted["resources"]) == (1, 1)

    run(check, kind)


def test_a_worker_that_beat_a_moment_ago_is_never_forgotten(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.register_worker("beats", "w", 1)
        await kit.store.register_worker("stopped", "w", 1)
        await kit.store.stop_worker("stopped")
        for seconds, left in ((2, {"beats", "stopped"}), (57, {"beats", "stopped"}), (2, set())):
            kit.clock.advance(seconds)
            await prune_all(kit, older_than=1)
            assert {worker.id for worker in await kit.store.list_workers()} == left

    run(check, kind)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_pruning_beside_what_goes_on_leaves_no_part_of_anything_behind(kind: str) -> None:
    """Two that prune at once, while rollouts end and late spans come for those that did."""

    async def check(kit: Kit) -> None:
        done = asyncio.Event()
        spans = itertools.count(1)

        def span() -> Span:
            return make_span(next(spans), attributes={"text": LONG})

        async def work(name: str) -> None:
            for _ in range(4):
                await kit.store.enqueue([task(n, run_id="r", group=name) for n in range(4)])
                for lease in await kit.store.claim(name, 4):
                    await kit.store.add_spans(lease.ref, [span()])
                    await kit.store.complete(lease.ref, [Reward(value=1)])
                    kit.clock.advance(0.001)
                    with suppress(NotFound):  # pruned meanwhile
                        await kit.store.add_spans(lease.ref, [span()])

        async def prune() -> int:
            n = 0
            while not done.is_set():
                n += (await kit.store.prune(Prune(older_than=0))).rollouts
            return n

        pruning = [asyncio.create_task(prune()) for _ in range(2)]
        await asyncio.gather(*(work(f"w{n}") for n in range(3)))
        done.set()
        kit.clock.advance(1)
        assert sum(await asyncio.gather(*pruning)) + (await prune_all(kit, older_than=0))["rollouts"] == 3 * 4 * 4
        left = await rows(kit)
        assert {name: n for name, n in left.items() if n and name not in ("meta", "counters", "workers")} == {}
        kept, real = await recount(kit)
        assert kept == real == Counter()

    run(check, kind)


@pytest.mark.parametrize("kind", ["http-sqlite", "http-postgres"])
def test_old_traces_of_no_rollout_go_too(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prune_ops, "MAX_SPANS", 2)

    def export(trace: int, spans: int) -> dict[str, Any]:
        text = {"key": "text", "value": {"stringValue": LONG}}
        times = {"startTimeUnixNano": "1", "endTimeUnixNano": "2"}
        sent = [
            {"traceId": f"{trace:032x}", "spanId": f"{n:016x}", "name": "n", **times, "attributes": [text]} for n in range(1, spans + 1)
        ]
        return {"resourceSpans": [{"scopeSpans": [{"spans": sent}]}]}

    async def check(kit: Kit) -> None:
        assert kit.url is not None
        async with httpx.AsyncClient(base_url=kit.url, trust_env=False, timeout=60) as http:
            for trace, after in ((1, DAY), (2, 0)):
                (await http.post("/v1/traces", json=export(trace, 3))).raise_for_status()
                kit.clock.advance(after)
            assert (await kit.store.prune(Prune(older_than=DAY / 2, dry_run=True))).spans == 3
            assert (await prune_all(kit, older_than=DAY / 2))["spans"] == 3
            left = await rows(kit)
            assert left["spans"] == 3 and left["blobs"] == left["blob_uses"] > 0
            kit.clock.advance(DAY)
            assert (await prune_all(kit, older_than=DAY / 2))["spans"] == 3
            left = await rows(kit)
            assert left["spans"] == left["blobs"] == left["blob_uses"] == 0

    run(check, kind)


def test_a_rollout_that_was_pruned_may_be_queued_anew_under_its_key(kind: str) -> None:
    async def check(kit: Kit) -> None:
        (first,) = await ended(kit, idempotency_key="k")
        kit.clock.advance(1)
        await prune_all(kit, older_than=0)
        (again,) = await kit.store.enqueue([task(0, idempotency_key="k")])
        assert again.id != first.rollout_id

    run(check, kind)
