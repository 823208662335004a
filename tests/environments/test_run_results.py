"""What a result says: counts, rates, zone, summary, the grid and the reports."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console
from run_room import result, scored

from leyden.environments import RunOutput, StopReason, ToolCall, ToolOutcome
from leyden.environments.live import shown
from leyden.environments.results import EnvironmentRunResult, TaskResult
from leyden.environments.tally import Tally
from leyden.errors import NotFound, UsageError


def lines(found: EnvironmentRunResult, **how: object) -> list[str]:
    out = io.StringIO()
    found.print_report(console=Console(file=out, width=300), **how)  # type: ignore[arg-type]
    return out.getvalue().splitlines()


def test_what_has_no_score_is_in_no_rate() -> None:
    found = result({"a": [1.0, None, 0.0, None], "b": [None] * 4})
    assert (found.n_attempts, found.n_scored, found.n_unscored, found.n_planned) == (8, 2, 6, 8)
    assert (found.pass_rate, found.mean_value, found.coverage) == (0.5, 0.5, 0.25)
    assert [one.pass_rate for one in found.task_results] == [0.5, None]
    assert found.task_results[1].mean_value is None and found.pass_at(1) == 0.5
    nothing = result({"b": [None]})
    assert (nothing.pass_rate, nothing.mean_value, nothing.pass_at(1), nothing.summary()["interval"]) == (None, None, None, None)


@pytest.mark.parametrize(
    ("values", "in_zone"),
    [
        ([1.0, 0.0], True), ([1.0, 1.0], False), ([0.0, 0.0], False), ([1.0], False), ([0.0], False), ([None, None], False),
        ([1.0, None], False), ([0.0, None, 1.0], True), ([0.9, 0.6], False), ([0.4, 0.5], True),
    ],
)  # fmt: skip
def test_the_learning_zone_is_what_passes_sometimes(values: list[float | None], in_zone: bool) -> None:
    found = result({"a": values, "b": [1.0]})
    assert found.task_results[0].in_learning_zone is in_zone
    zone = found.learning_zone()
    assert [one.task.id for one in zone.task_results] == (["a"] if in_zone else [])
    assert all(any(not attempt.passed and attempt.score for attempt in one.attempts) for one in zone.task_results)
    assert (zone.k, zone.env_fingerprint, zone.duration_seconds) == (found.k, found.env_fingerprint, found.duration_seconds)


def test_rates_are_of_attempts_and_pass_at_k_is_of_tasks() -> None:
    found = result({"a": [1.0, 1.0, 1.0, 1.0], "b": [1.0, 0.0, 0.0, 0.0]})
    assert found.pass_rate == 5 / 8
    assert found.pass_at(1) == pytest.approx(5 / 8) and found.pass_at(2) == pytest.approx((1 + 0.5) / 2)
    assert found.pass_hat(2) == pytest.approx(0.5) and found.pass_at(4) == 1.0 and found.pass_at(5) is None
    low, high = found.interval.low, found.interval.high
    assert 0 < low < 5 / 8 < high < 1
    assert high - low > found.task_results[1].interval.high - found.task_results[1].interval.low - 0.5


def test_the_summary_is_json_with_its_keys_in_order() -> None:
    summary = result({"a": [1.0, 0.0], "b": [None, 1.0]}).summary()
    assert list(summary) == [
        "env", "k", "n_tasks", "n_attempts", "n_scored", "n_unscored", "pass_rate", "mean_value", "env_fingerprint", "policy_fingerprint",
        "stopped_early", "tasks", "run_id", "n_planned", "coverage", "interval", "at_k", "stop_reasons", "duration_seconds",
    ]  # fmt: skip
    assert summary["tasks"] == [
        {"id": "a", "pass_rate": 0.5, "mean_value": 0.5, "n_unscored": 0, "learning_zone": True},
        {"id": "b", "pass_rate": 1.0, "mean_value": 1.0, "n_unscored": 1, "learning_zone": False},
    ]
    assert summary["at_k"]["k"] == 1 and summary["stop_reasons"] == {"completed": 4}
    assert json.loads(json.dumps(summary)) == summary


def test_errors_are_by_task_in_the_order_of_the_attempts() -> None:
    found = result({"a": [1.0], "b": [1.0]})
    broken = [scored(None, n, error=f"scorer: ValueError: {n}") for n in range(2)]
    found = replace(found, task_results=(found.task_results[0], TaskResult(found.task_results[1].task, tuple(broken))))
    assert found.errors() == {"b": ["scorer: ValueError: 0", "scorer: ValueError: 1"]}


def test_tasks_are_picked_by_id_and_for_another_try() -> None:
    found = result({"all": [1.0, 1.0], "some": [1.0, 0.0], "none": [0.0, 0.0], "unscored": [1.0, None]})
    assert [one.task.id for one in found.unsolved().task_results] == ["some", "none", "unscored"]
    assert [one.task.id for one in found.select(["none", "all"]).task_results] == ["none", "all"]
    with pytest.raises(NotFound, match="no task 'x'"):
        found.select(["x"])
    rows = list(found.rows())
    assert [(row["task"], row["attempt"], row["passed"]) for row in rows[2:4]] == [("some", 0, True), ("some", 1, False)]
    assert rows[-1]["value"] is None and rows[0]["content"] == "an answer"


def test_the_grid_has_a_glyph_for_every_attempt() -> None:
    shown_lines = str(result({"easy": [1.0, 1.0, 1.0], "mixed": [1.0, 0.0, None]})).splitlines()
    assert shown_lines[0] == "room  k=3 · 6 attempts · 1.5s"
    assert shown_lines[1] == "  easy   ███  3/3  1.00"
    assert shown_lines[2] == "  mixed  █░▲  1/2  0.50  learning zone, 1 unscored"
    assert "5 of 6 planned scored" in shown_lines[3] and shown_lines[-1] == "first error: scorer: ValueError: no"
    stopped = replace(result({"a": [None, None]}, k=8), stopped_early="error-storm")
    assert "stopped early: error-storm" in str(stopped) and "no attempt of 8 planned has a score" in str(stopped)


def test_money_is_shown_only_where_it_was_counted() -> None:
    found = result({"a": [1.0, 1.0]})
    assert "$" not in str(found) and "$" not in "".join(lines(found, only="all"))
    (one,) = found.task_results
    paid = tuple(replace(attempt, run=RunOutput("x", cost=0.25)) for attempt in one.attempts)
    assert "$0.5000" in str(replace(found, task_results=(replace(one, attempts=paid),))).splitlines()[0]


def test_no_live_grid_is_made_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    import rich.live

    def never(*_: object, **__: object) -> None:
        raise AssertionError("a live grid was made")

    monkeypatch.setattr(rich.live, "Live", never)
    with shown(Tally.__new__(Tally), quiet=False):
        pass


def test_the_report_shows_what_failed_and_counts_what_it_hides() -> None:
    call = ToolCall("add", {"a": 1}, ToolOutcome.ERROR, "no")
    long = RunOutput("x" * 500, tools=(call, ToolCall("add", {}, ToolOutcome.REFUSED)), input_tokens=7, output_tokens=3)
    found = result({"good": [1.0], "bad": [0.0, None]})
    good, bad = found.task_results
    found = replace(found, task_results=(good, replace(bad, attempts=(replace(bad.attempts[0], run=long), bad.attempts[1]))))
    failed = lines(found)
    assert failed[0] == "bad #1  failed 0.00  completed  0.1s, a tool call was refused"
    assert '    tool add({"a": 1}): error' in failed and "    7 + 3 tokens" in failed
    assert any(line.startswith("    answer: xxx") and len(line) < 130 for line in failed)
    assert "bad #2  unscored  completed  0.1s" in failed and not any("good" in line for line in failed)
    assert lines(found, attempts=1)[-1] == "... 1 more"
    assert lines(found, only="all")[0].startswith("good #1  passed 1.00")
    assert lines(result({"a": [1.0, 1.0]})) == ["room: all 2 attempts passed"]
    with pytest.raises(UsageError, match="'passed'"):
        lines(found, only="passed")


def test_one_attempt_is_shown_whole() -> None:
    found = result({"a": [1.0, 0.0]})
    out = io.StringIO()
    found.print_attempt("a", 2, console=Console(file=out, width=300))
    text = out.getvalue()
    assert text.startswith("a #2  failed 0.00") and "[assistant] an answer" in text and "expected: yes" in text
    found.print_attempt("a", 1, markdown=True, console=Console(file=io.StringIO()))
    with pytest.raises(NotFound, match="no task 'b'"):
        found.print_attempt("b")
    for wrong in (0, 3, True):
        with pytest.raises(NotFound, match="no attempt"):
            found.print_attempt("a", wrong)


def test_a_stop_that_is_no_error_is_named() -> None:
    found = result({"a": [1.0]})
    (one,) = found.task_results
    cut = replace(one.attempts[0], score=None, stop_reason=StopReason.TRUNCATED, error="run ended with status truncated")
    found = replace(found, task_results=(replace(one, attempts=(cut,)),))
    assert found.stop_reasons() == {"truncated": 1} and "first error: run ended with status truncated" in str(found)


def test_ids_of_any_kind_keep_the_grid_in_columns() -> None:
    from rich.cells import cell_len

    lines = str(result({"漢字": [1.0], "x" * 200: [0.0], "two\nlines \x1b[31mred": [1.0]})).splitlines()
    assert len(lines) == 5 and "\x1b" not in "".join(lines)
    assert len({cell_len(line[: line.index(glyph)]) for line, glyph in zip(lines[1:4], "█░█", strict=True)}) == 1
