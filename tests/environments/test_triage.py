"""Zones, how often to try, and whose fault it is that a task never passes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden.environments.adaptive import AdaptiveK
from leyden.environments.attempt import AttemptResult, StopReason
from leyden.environments.output import RunOutput, ToolCall, ToolOutcome
from leyden.environments.results import TaskResult
from leyden.environments.score import Score
from leyden.environments.task import Task
from leyden.environments.triage import Suspect, examine_failures
from leyden.environments.zone import Band, band_of, count_bands


def attempt(content="no", value=0.0, error=None, stop=StopReason.COMPLETED, tools=()):
    score = None if value is None else Score(value, value >= 0.5)
    run = RunOutput(content, tools=tuple(ToolCall("search", {}, outcome) for outcome in tools)) if content is not None else None
    return AttemptResult(0, run, score, stop, 0.1, error=error)


def task(*attempts, expected=None, name="t1"):
    return TaskResult(Task("q", expected, name), attempts)


def test_bands_meet_at_the_zones_edges():
    places = {(0, 10): "never", (2, 10): "hard", (3, 10): "zone", (7, 10): "zone", (8, 10): "easy", (10, 10): "always", (0, 0): "unscored"}
    assert {counts: band_of(*counts).value for counts in places} == places
    bands = count_bands([task(attempt()), task(attempt(value=1.0)), task(attempt(), attempt(value=1.0)), task(attempt(value=None))])
    assert list(bands) == list(Band)
    assert {band.value: n for band, n in bands.items() if n} == {"never": 1, "zone": 1, "always": 1, "unscored": 1}


def test_a_task_is_tried_until_its_place_is_known():
    rule = AdaptiveK(max_k=16)
    assert rule.enough(1, 2)  # it passes sometimes
    assert next(n for n in range(1, 17) if rule.enough(0, n)) == 7  # 0.7^7 = 0.08
    assert next(n for n in range(1, 17) if rule.enough(n, n)) == 7
    assert not rule.enough(0, 0)
    assert AdaptiveK(max_k=3).enough(0, 3)
    assert not AdaptiveK(max_k=9, min_k=4).enough(1, 3)
    for bad in ({"max_k": 1}, {"max_k": 4, "min_k": 0}, {"max_k": 4, "confidence": 1.0}, {"max_k": 4, "low": 0.8}):
        with pytest.raises(ValueError):
            AdaptiveK(**bad)


@given(st.integers(1, 20), st.lists(st.booleans(), max_size=25))
def test_what_is_enough_stays_enough(max_k, outcomes):
    rule, settled = AdaptiveK(max_k=max_k, min_k=min(2, max_k)), False
    for n in range(1, len(outcomes) + 1):
        enough = rule.enough(sum(outcomes[:n]), n)
        assert enough or not settled
        assert enough or n < max_k
        settled = enough


CASES = {
    "the agent breaks": (Suspect.ENVIRONMENT, [attempt(None, None, "ConnectError: no", StopReason.ERROR)] * 4, "ConnectError: no"),
    "it never ends": (Suspect.ENVIRONMENT, [attempt(None, None, None, StopReason.TIMEOUT)] * 3, "3 timeout"),
    "the scorer crashes": (Suspect.VERIFIER, [attempt("a", None, "scorer: KeyError: 'x'")] * 4, "scorer: KeyError"),
    "the scorer crashes at times": (Suspect.VERIFIER, [attempt("a"), attempt("b", None, "scorer: boom")], "failed in 1 of 2"),
    "equal answers, unequal values": (Suspect.VERIFIER, [attempt("a", 0.1), attempt("a ", 0.3)], "the same answer got 0.1 and 0.3"),
    "the answer is there": (Suspect.VERIFIER, [attempt("no"), attempt("It is **46** apples.")], "hold what was expected"),
    "a tool fails": (Suspect.ENVIRONMENT, [attempt(c, tools=[ToolOutcome.OK, ToolOutcome.ERROR]) for c in "ab"], "search 2 times"),
    "tools are refused": (Suspect.ENVIRONMENT, [attempt(c, tools=[ToolOutcome.REFUSED]) for c in "ab"], "was refused in all 2"),
    "it guesses": (Suspect.MODEL, [attempt("1"), attempt("2"), attempt("460")], "3 different wrong answers"),
    "it insists": (Suspect.MODEL, [attempt("12")] * 5, "the same wrong answer: is the task told rightly?"),
    "a tool fails at times": (Suspect.MODEL, [attempt("1", tools=[ToolOutcome.ERROR]), attempt("2")], "2 different"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_task_that_never_passes_has_a_suspect_and_evidence(case):
    suspect, attempts, evidence = CASES[case]
    (finding,) = examine_failures([task(*attempts, expected=46)])
    assert finding.suspect is suspect
    assert evidence in str(finding)


def test_only_tasks_that_were_tried_and_never_passed_are_examined():
    assert examine_failures([task(attempt(), attempt(value=1.0)), task(), task(attempt(value=1.0))]) == []
