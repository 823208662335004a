"""What ``/metrics`` says: what was done, what waits, and nothing that grows without bound."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import text
from storekit import Kit, hold_writer, make_generation, make_span, run, task

from leyden.audit import Finding
from leyden.errors import LeydenError, NotFound
from leyden.server import backlog, wire
from leyden.server.metrics import Histogram
from leyden.server.transaction import Transaction
from leyden.types import AttemptState, FailureKind, RolloutState

HTTP = ("http-sqlite", "http-postgres")
Sample = Callable[..., float | None]


async def scrape(kit: Kit) -> Sample:
    """A function of name and labels: the value, None where there is no such series."""
    series = {(name, tuple(sorted(labels.items()))): value for name, labels, value in await samples(kit)}
    return lambda name, **labels: series.get((name, tuple(sorted(labels.items()))))


async def samples(kit: Kit) -> list[tuple[str, dict[str, str], float]]:
    answer = await ask(kit, "GET", "/metrics")
    assert answer.status_code == 200 and answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return [
        (sample.name, sample.labels, sample.value) for family in text_string_to_metric_families(answer.text) for sample in family.samples
    ]


async def ask(kit: Kit, method: str, path: str, **options: Any) -> httpx.Response:
    assert kit.url is not None
    async with httpx.AsyncClient(base_url=kit.url, trust_env=False, verify=False, timeout=60) as http:
        return await http.request(method, path, **options)


@pytest.mark.parametrize("kind", HTTP)
def test_what_was_done_is_counted_and_what_waits_is_shown_with_its_age(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task(i) for i in range(5)] + [task(delay=100.0)])
        kit.clock.advance(7)
        first, second, third = await kit.store.claim("w", 3)
        await kit.store.add_spans(first.ref, [make_span(1, attributes={"text": "x" * 1000}), make_span(2)])
        await kit.store.add_spans(first.ref, [make_span(1)])  # once more: it is not new
        await kit.store.add_generations(first.ref, [make_generation(first.ref, "g1")])
        await kit.store.complete(first.ref)
        await kit.store.fail(second.ref, FailureKind.AGENT, "no")
        await kit.pass_time(61)
        value = await scrape(kit)
        assert value("leyden_store_enqueued_total") == 6 and value("leyden_store_claims_total") == 3
        ended = {state: value("leyden_store_attempts_ended_total", state=state.value) for state in AttemptState}
        assert ended.pop(AttemptState.RUNNING) is None, "it is no end"
        assert ended == dict.fromkeys(ended, 0) | dict.fromkeys((AttemptState.SUCCEEDED, AttemptState.FAILED, AttemptState.LOST), 1)
        assert {state: value("leyden_rollouts", state=state.value) for state in RolloutState} == {
            "queued": 3, "scheduled": 1, "running": 0, "succeeded": 1, "failed": 1, "cancelled": 0,
        }  # fmt: skip
        assert value("leyden_rollouts_failed", failure="agent") == 1 and value("leyden_rollouts_failed", failure="tool") == 0
        ages = {state: value("leyden_rollouts_oldest_age_seconds", state=state) for state in ("queued", "scheduled", "running")}
        assert ages == {"queued": 68, "scheduled": 68, "running": 0}
        assert value("leyden_store_ingested_total", kind="spans") == 2 and value("leyden_store_ingested_total", kind="generations") == 1
        assert (value("leyden_store_ingested_bytes_total") or 0) > 1000
        assert value("leyden_store_sweep_age_seconds") == 0 and value("leyden_store_database_up") == 1
        assert third.ref.rollout_id, "its lease ran out"

    run(check, kind)


@pytest.mark.parametrize("kind", HTTP)
def test_commits_are_counted_by_outcome_with_their_time_and_size(kind: str) -> None:
    async def check(kit: Kit) -> None:
        before = await scrape(kit)
        await kit.store.enqueue([task()])
        with pytest.raises(NotFound):
            await kit.sql.enqueue([task(resources_id="none")])
        value = await scrape(kit)

        def more(name: str, **labels: str) -> float:
            return (value(name, **labels) or 0) - (before(name, **labels) or 0)

        assert more("leyden_store_commits_total", outcome="committed") >= 1
        assert more("leyden_store_commits_total", outcome="refused") == 1
        assert value("leyden_store_commits_total", outcome="failed") == 0
        commits = sum(value("leyden_store_commits_total", outcome=outcome) or 0 for outcome in ("committed", "refused", "failed"))
        for histogram in ("commit_seconds", "batch_operations"):
            assert value(f"leyden_store_{histogram}_count") == value(f"leyden_store_{histogram}_bucket", le="+Inf") == commits
            assert (value(f"leyden_store_{histogram}_sum") or 0) > 0

    run(check, kind)


def test_operations_that_waited_together_are_one_commit_of_their_number() -> None:
    async def check(kit: Kit) -> None:
        gate, holding = await hold_writer(kit)
        beats = [asyncio.create_task(kit.sql.heartbeat("w", [])) for _ in range(8)]
        while kit.sql._executor.waiting().urgent < 8:
            await asyncio.sleep(0.001)
        assert kit.sql.metrics.batch_operations.total == (before := kit.sql.metrics.batch_operations.total)
        gate.set()
        await asyncio.gather(holding, *beats)
        assert kit.sql.metrics.batch_operations.total - before == 1 + 8
        assert kit.sql.metrics.batch_operations.buckets()[-1][1] >= 2

    run(check)


def test_a_commit_that_the_database_does_not_take_is_counted_as_failed() -> None:
    def break_it(tx: Transaction) -> None:
        tx.conn.execute(text("INSERT INTO no_such_table VALUES (1)"))

    async def check(kit: Kit) -> None:
        with pytest.raises(LeydenError):
            await kit.sql._executor.write(break_it)
        assert (await scrape(kit))("leyden_store_commits_total", outcome="failed") == 1

    run(check, "http-sqlite")


def test_what_waits_is_shown_while_it_does() -> None:
    async def check(kit: Kit) -> None:
        waiting = asyncio.create_task(kit.sql.claim("w", wait=20))
        watching = asyncio.create_task(kit.sql.wait_rollouts([(await kit.sql.enqueue([task(queue="other")]))[0].id], wait=20))
        while not (kit.sql._desk.waiting and kit.sql._watch.ids):
            await asyncio.sleep(0.001)
        await kit.sql.heartbeat("w", [])  # behind the claim that the new rollout has woken
        gate, holding = await hold_writer(kit)
        waiting_too = asyncio.create_task(kit.sql.heartbeat("w", []))
        bulk = asyncio.create_task(kit.sql._executor.write_bulk(backlog.MAX_BULK_BYTES // 4, lambda tx: None))
        while kit.sql._executor.waiting() != backlog.Waiting(1, 1, backlog.MAX_BULK_BYTES // 4):
            await asyncio.sleep(0.001)
        value = await scrape(kit)
        assert value("leyden_store_claims_waiting") == 1 and value("leyden_store_rollouts_watched") == 1
        assert value("leyden_store_backlog_operations", lane="urgent") == value("leyden_store_backlog_operations", lane="bulk") == 1
        assert value("leyden_store_backlog_bytes") == backlog.MAX_BULK_BYTES // 4 and value("leyden_store_backlog_ratio") == 0.25
        gate.set()
        await asyncio.gather(holding, waiting_too, bulk)
        for task_ in (waiting, watching):
            task_.cancel()
        assert (await scrape(kit))("leyden_store_backlog_ratio") == 0

    run(check, "http-sqlite")


def test_answers_are_counted_by_route_and_status_whoever_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(kit: Kit) -> None:
        claim = {"worker_id": "w", "limit": 1, "wait": 0, "request_id": "c"}
        await ask(kit, "POST", "/v1/leases/claim", json={**claim, "limit": -1})
        monkeypatch.setattr(backlog, "MAX_URGENT", 0)
        await ask(kit, "POST", "/v1/leases/claim", json=claim)
        monkeypatch.undo()
        monkeypatch.setattr(wire, "MAX_BODY", 100)
        await ask(kit, "POST", "/v1/spans", content=b"x" * 101)
        await ask(kit, "GET", "/v1/rollouts/ro-unknown")
        await ask(kit, "GET", "/health", headers={"host": "evil.example"})

        async def bug(*_: Any) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(kit.sql, "list_queues", bug)
        await ask(kit, "GET", "/v1/queues")
        value = await scrape(kit)
        for route, status in (
            ("/v1/leases/claim", 422), ("/v1/leases/claim", 429), ("/v1/spans", 413), ("/v1/rollouts/{rollout_id}", 404), ("none", 403),
            ("/v1/queues", 500),
        ):  # fmt: skip
            assert value("leyden_store_requests_total", route=route, status=str(status)) == 1, (route, status)

    run(check, "http-sqlite")


def test_spans_that_were_refused_are_counted_by_reason_in_the_database() -> None:
    async def check(kit: Kit) -> None:
        body = {"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "zz", "spanId": "b7ad6b7169203331", "name": "x"}] * 3}]}]}
        await ask(kit, "POST", "/v1/traces", json=body)
        assert (await scrape(kit))("leyden_rejected_items_total", source="otlp", reason="its trace id is not 16 bytes") == 3

    run(check, "http-sqlite")


def test_no_series_is_made_of_what_users_choose() -> None:
    """Queues, runs, workers, models, paths: of each there may be any number."""

    async def use(kit: Kit, n: int) -> None:
        await kit.store.enqueue([task(queue=f"queue-{n}", run_id=f"run-{n}", iteration=n, group=f"group-{n}")])
        (lease,) = await kit.store.claim(f"worker-{n}", queues=[f"queue-{n}"])
        await kit.store.add_spans(lease.ref, [make_span(n + 1, name=f"span-{n}")])
        await kit.store.add_generations(lease.ref, [make_generation(lease.ref, f"generation-{n}", model=f"model-{n}")])
        await kit.store.complete(lease.ref)
        for path in (f"/v1/rollouts/{lease.rollout.id}", f"/path-{n}", f"/v1/rollouts/unknown-{n}"):
            await ask(kit, "GET", path)
        await ask(kit, f"METHOD{n}" if n else "METHOD", "/health")

    async def check(kit: Kit) -> None:
        await use(kit, 0)
        await scrape(kit)
        before = {(name, tuple(labels.items())) for name, labels, _ in await samples(kit)}
        for n in range(1, 4):
            await use(kit, n)
        after = {(name, tuple(labels.items())) for name, labels, _ in await samples(kit)}
        assert after == before

    run(check, "http-sqlite")


def test_every_kind_there_is_has_a_series_from_the_start() -> None:
    """So that an alert sees the first failure as a change."""

    async def check(kit: Kit) -> None:
        value = await scrape(kit)
        assert all(value("leyden_rollouts_failed", failure=kind.value) == 0 for kind in FailureKind)
        assert all(value("leyden_generations_flagged", finding=finding.value) == 0 for finding in Finding)
        assert value("leyden_store_ingested_bytes_total") == 0
        assert (value("process_resident_memory_bytes") or 0) > 0 and (value("process_open_fds") or 0) > 0

    run(check, "http-sqlite")


def test_the_sizes_of_a_file_are_told_and_a_servers_are_its_own() -> None:
    async def of_a_file(kit: Kit) -> None:
        value = await scrape(kit)
        assert all((value(f"leyden_store_{what}_bytes") or 0) > 0 for what in ("database", "wal", "disk_free"))
        assert value("leyden_store_info", version=_version_of(await samples(kit)), database="sqlite") == 1

    async def of_a_server(kit: Kit) -> None:
        value = await scrape(kit)
        assert value("leyden_store_wal_bytes") is None and value("leyden_store_database_bytes") is None

    run(of_a_file, "http-sqlite")
    run(of_a_server, "http-postgres")


def _version_of(found: list[tuple[str, dict[str, str], float]]) -> str:
    return next(labels["version"] for name, labels, _ in found if name == "leyden_store_info")


def test_a_database_that_cannot_be_read_is_told_and_the_rest_still_is() -> None:
    def spoil(tx: Transaction) -> None:
        tx.conn.execute(text("DROP TABLE counters"))

    async def check(kit: Kit) -> None:
        await kit.sql._executor.write(spoil)
        value = await scrape(kit)
        assert value("leyden_store_database_up") == 0 and value("leyden_rollouts", state="queued") is None
        assert (value("leyden_store_commits_total", outcome="committed") or 0) > 0

    run(check, "http-sqlite")


def test_a_histogram_counts_each_value_once_and_in_every_bucket_above_it() -> None:
    histogram = Histogram((1, 2.5))
    for value in (0.5, 1, 2, 2.5, 9):
        histogram.observe(value)
    assert histogram.buckets() == [("1", 2), ("2.5", 4), ("+Inf", 5)] and histogram.total == 15
