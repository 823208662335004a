"""The store's benchmark does the work it says, and writes it all down; a short run of ours alone, whose numbers nobody looks at."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import store
from store_spans import json_lines, otlp_body, percentiles, renewed

from leyden.server.otlp.answers import Encoding
from leyden.server.otlp.export import Sender, read_export
from leyden.types import Span


def test_a_short_run_of_ours_does_its_rollouts_and_writes_what_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = tmp_path / "report.json"
    command = [
        "store.py",
        "--only-ours",
        "--rounds",
        "1",
        "--seconds",
        "0.05",
        "--runners",
        "1",
        "--only",
        "rollouts",
        "--json",
        str(report),
    ]
    monkeypatch.setattr(sys, "argv", command)
    assert store.main() == 0
    (row,) = json.loads(report.read_text())["rows"]
    spread = row["leyden"][row["unit"]]
    assert 0 < spread["min"] <= spread["median"] <= spread["max"]
    assert set(row["leyden"]["last"]["by_route"]) >= {"/v1/leases/claim", "/v1/leases/end"}


def test_a_body_sent_again_holds_other_spans_of_the_same_size() -> None:
    lines = [renewed(line, number) for number in (1, 2) for line in json_lines(3)]
    sent = [Span.model_validate_json(line) for line in lines]
    assert len({(span.trace_id, span.span_id) for span in sent}) == 6
    assert len({span.attributes["gen_ai.input.messages"] for span in sent}) == 6
    assert {900 < len(line) < 1200 for line in lines} == {True}
    body = otlp_body(3, {})
    exports = [read_export(renewed(body, number), Encoding.PROTOBUF, Sender()) for number in (1, 2)]
    rows = [row for export in exports for batch in export.batches for row in batch.rows]
    assert len({(row["trace_id"], row["span_id"]) for row in rows}) == 6


def test_percentiles_are_of_the_ordered_times() -> None:
    assert percentiles([number / 1000 for number in reversed(range(1, 101))]) == {"p50_ms": 50.5, "p99_ms": 100.0}
