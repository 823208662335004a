"""The store's metrics in Prometheus' text format (version 0.0.4).

What commits and answers do is counted in plain numbers (``metrics``), and only a scrape makes families of them: counting is on the way of
every write, and prometheus_client takes a lock for each number. No label is an id, a path or the name of a queue: those have no bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from leyden.audit import Finding
from leyden.server.backlog import MAX_BULK_BYTES, MAX_URGENT
from leyden.server.metrics import Histogram, Metrics
from leyden.server.operating import Measured
from leyden.server.operations.metrics import Stored
from leyden.types import AttemptState, FailureKind, RolloutState

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

_ENDED = [state.value for state in AttemptState if state is not AttemptState.RUNNING]
_PROCESS = ProcessCollector(registry=None)  # memory, descriptors, processor time


def expose(measured: Measured, version: str) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Families(measured, version))
    registry.register(_PROCESS)
    return generate_latest(registry)


class _Families(Collector):
    def __init__(self, measured: Measured, version: str) -> None:
        self._measured = measured
        self._about = {"version": version, "database": measured.dialect}

    def collect(self) -> Iterator[Metric]:
        measured = self._measured
        yield InfoMetricFamily("leyden_store", "Which store this is.", value=self._about)
        yield _gauge("leyden_store_database_up", "1 if the database could be read for this scrape.", measured.stored is not None)
        if measured.stored is not None:
            yield from _of_the_database(measured.stored)
            age = max(0.0, (measured.stored.now - measured.swept_at) / 1e6)
            yield _gauge("leyden_store_sweep_age_seconds", "Since this store last looked for lost leases and what is due.", age)
        yield from _of_work(measured.metrics)
        yield from _of_waiting(measured)
        if measured.sizes is not None:
            yield _gauge("leyden_store_database_bytes", "The SQLite file.", measured.sizes.database)
            yield _gauge("leyden_store_wal_bytes", "Its write-ahead log.", measured.sizes.wal)
            yield _gauge("leyden_store_disk_free_bytes", "Room left on the disk that holds both.", measured.sizes.disk_free)


def _of_the_database(stored: Stored) -> Iterator[Metric]:
    """The same at every store on one database: take the maximum over them, not the sum."""
    rollouts = {state.value: getattr(stored.counts, state.value) for state in RolloutState}
    yield _gauges("leyden_rollouts", "Rollouts by state.", "state", rollouts)
    failed = {kind.value: stored.counts.failures.get(kind, 0) for kind in FailureKind}
    yield _gauges("leyden_rollouts_failed", "Failed rollouts by what the last attempt failed of.", "failure", failed)
    ages = {state.value: age for state, age in stored.ages.items()}
    yield _gauges("leyden_rollouts_oldest_age_seconds", "Since the oldest rollout of a state was created; 0 for none.", "state", ages)
    found = {finding.value: stored.audits.findings.get(finding, 0) for finding in Finding}
    yield _gauges("leyden_generations_flagged", "Calls of models that nothing is learnt from, by what was found.", "finding", found)
    rejected = CounterMetricFamily("leyden_rejected_items", "What was sent and not stored, by reason.", labels=["source", "reason"])
    for source, reason, n in stored.rejected:
        rejected.add_metric([source, reason], n)
    yield rejected


def _of_work(metrics: Metrics) -> Iterator[Metric]:
    """What this process has done since it started."""
    done = metrics.done
    yield _counter("leyden_store_enqueued", "Rollouts queued.", done["enqueued", ""])
    yield _counter("leyden_store_claims", "Rollouts given to runners.", done["claimed", ""])
    endings = {state: done["ended", state] for state in _ENDED}
    yield _counters("leyden_store_attempts_ended", "Attempts ended; lost: their lease ran out.", "state", endings)
    ingested = {kind: done["ingested", kind] for kind in ("spans", "generations")}
    yield _counters("leyden_store_ingested", "Captured records stored.", "kind", ingested)
    yield _counter("leyden_store_ingested_bytes", "Captured data stored.", metrics.bytes)
    outcomes = {outcome: done["commits", outcome] for outcome in ("committed", "refused", "failed")}
    yield _counters("leyden_store_commits", "Transactions; failed: the database did not take it.", "outcome", outcomes)
    yield _histogram("leyden_store_commit_seconds", "From a batch's beginning to its commit.", metrics.commit_seconds)
    yield _histogram("leyden_store_batch_operations", "Operations in one commit.", metrics.batch_operations)
    requests = CounterMetricFamily("leyden_store_requests", "Answers by route and HTTP status.", labels=["route", "status"])
    for (route, status), n in sorted(metrics.requests.items()):
        requests.add_metric([route, str(status)], n)
    yield requests
    yield _gauge("leyden_store_requests_under_way", "Requests being answered now, but for long polls.", metrics.under_way)


def _of_waiting(measured: Measured) -> Iterator[Metric]:
    backlog = measured.backlog
    lanes = {"urgent": backlog.urgent, "bulk": backlog.bulk}
    yield _gauges("leyden_store_backlog_operations", "Writes that wait: the queue's own, and captured data.", "lane", lanes)
    yield _gauge("leyden_store_backlog_bytes", "Captured data that waits.", backlog.bulk_bytes)
    fullest = max(backlog.urgent / MAX_URGENT, backlog.bulk_bytes / MAX_BULK_BYTES)
    yield _gauge("leyden_store_backlog_ratio", "How full the fuller lane is; claims are refused from 0.5, everything at 1.", fullest)
    yield _gauge("leyden_store_intake_bytes", "Captured data that is being received and decoded.", measured.held)
    yield _gauge("leyden_store_claims_waiting", "Claims that wait for work: idle runners.", measured.claims_waiting)
    yield _gauge("leyden_store_rollouts_watched", "Rollouts whose end somebody waits for.", measured.rollouts_watched)


def _gauge(name: str, help: str, value: float) -> Metric:
    return GaugeMetricFamily(name, help, value=value)


def _gauges(name: str, help: str, label: str, values: Mapping[str, float]) -> Metric:
    return _labelled(GaugeMetricFamily(name, help, labels=[label]), values.items())


def _counter(name: str, help: str, value: float) -> Metric:
    return CounterMetricFamily(name, help, value=value)


def _counters(name: str, help: str, label: str, values: Mapping[str, float]) -> Metric:
    return _labelled(CounterMetricFamily(name, help, labels=[label]), values.items())


def _labelled(family: Any, values: Iterable[tuple[str, float]]) -> Metric:
    for value, n in values:
        family.add_metric([value], n)
    return family


def _histogram(name: str, help: str, histogram: Histogram) -> Metric:
    return HistogramMetricFamily(name, help, buckets=histogram.buckets(), sum_value=histogram.total)
