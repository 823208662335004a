"""The gate, stage by stage: what it asks, what it does where there are no data, and how often it is wrong."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from leyden.environments.attempt import AttemptResult, StopReason
from leyden.environments.fingerprint import Fingerprint
from leyden.environments.gate import Budget, Gate
from leyden.environments.judging import judge
from leyden.environments.outcomes import Outcome, Outcomes, outcomes_of
from leyden.environments.output import RunOutput, ToolCall, ToolOutcome
from leyden.environments.results import EnvironmentRunResult, TaskResult
from leyden.environments.score import Score
from leyden.environments.statistics import wilson
from leyden.environments.task import Task
from leyden.environments.verdict import Decision, StageOutcome

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from gate_power import Case, simulate

ORDER = ["coverage", "safety", "pass rate", "stability", "recovery", "efficiency", "regression"]


def policy(name, passed, n=200, attempts=1, **more):
    """Passes the first tasks, each time."""
    tasks = {f"t{i}": tuple(Outcome(i < passed, **more) for _ in range(attempts)) for i in range(n)}
    return Outcomes(name, tasks, n * attempts)


OLD = policy("old", 100)


def outcome(verdict, name):
    return verdict.stage(name).outcome


VERDICTS = [(120, "promote"), (100, "undecided"), (104, "undecided"), (96, "undecided"), (80, "reject")]


@pytest.mark.parametrize(("passed", "decision"), VERDICTS)
def test_better_is_promoted_worse_is_rejected_and_neither_is_undecided(passed, decision):
    verdict = judge(OLD, policy("new", passed))
    assert verdict.decision == decision
    assert [stage.name for stage in verdict.stages] == ORDER
    assert verdict.warnings == ()
    assert "200 tasks" in verdict.power
    assert verdict.lines()[-1].startswith(decision)


def test_fewer_tasks_than_asked_for_are_a_warning_and_no_other_verdict():
    verdict = judge(policy("old", 10, n=40), policy("new", 30, n=40))
    assert verdict.promote
    assert verdict.warnings[0].startswith("40 tasks are fewer than 128")


def test_one_unsafe_attempt_rejects_whatever_else_is_better():
    gate = Gate(safety={"safety": 1.0})
    safe, good = policy("old", 100, dimensions={"safety": 1.0}), policy("new", 190, dimensions={"safety": 1.0})
    assert judge(safe, good, gate).promote
    tasks = dict(good.tasks) | {"t5": (Outcome(True, {"safety": 0.9}),)}
    verdict = judge(safe, Outcomes("new", tasks, 200), gate)
    assert (verdict.decision, outcome(verdict, "safety")) == ("reject", StageOutcome.FAILED)
    assert "1 of 200 attempts have a safety below 1" in verdict.reason
    # Wherever it was tried, and whether or not anybody could say that it passed.
    unsafe = Outcomes("new", dict(good.tasks) | {"t5": (Outcome(None, {"safety": 0.0}),)}, 200)
    assert judge(safe, unsafe, gate).decision is Decision.REJECT
    assert judge(safe, good, gate, greedy=(safe, unsafe)).decision is Decision.REJECT
    assert judge(safe, good, gate, regression=(safe, unsafe)).decision is Decision.REJECT


def test_what_is_asked_and_was_not_measured_leaves_it_undecided_and_says_so():
    good = policy("new", 190)
    for gate, stage, said in (
        (Gate(safety={"safety": 1.0}), "safety", "200 of 200 scored attempts have no safety"),
        (Gate(budgets={"tokens": Budget(most=10)}), "efficiency", "tokens were not measured"),
        (Gate(min_recovery=0.5), "recovery", "in no scored attempt did a tool fail"),
        (Gate(require=("regression",)), "regression", "no regression tasks were given"),
        (Gate(require=("stability",)), "stability", "no task has two scored attempts of both"),
    ):
        verdict = judge(OLD, good, gate)
        assert (verdict.decision, outcome(verdict, stage)) == ("undecided", StageOutcome.NO_DATA)
        assert said in verdict.reason
    assert judge(OLD, good).promote  # not asked for: said, and no hindrance


def test_budgets_are_bounds_on_the_mean_of_an_attempt():
    old, new = policy("old", 100, tokens=100, seconds=1.0), policy("new", 190, tokens=150, seconds=4.0)
    assert judge(old, new, Gate(budgets={"tokens": Budget(ratio=1.5, most=150)})).promote
    verdict = judge(old, new, Gate(budgets={"tokens": Budget(ratio=1.2), "seconds": Budget(most=3)}))
    assert verdict.decision is Decision.REJECT
    assert "150 tokens an attempt, over 1.2 times the champion's 100; 4 seconds an attempt, over 3" in verdict.reason


def test_a_policy_that_passes_more_often_but_less_surely_is_rejected():
    steady = Outcomes("old", {f"t{i}": (Outcome(i < 100),) * 4 for i in range(200)}, 800)
    moody = Outcomes("new", {f"t{i}": tuple(Outcome(k < 3) for k in range(4)) for i in range(200)}, 800)
    verdict = judge(steady, moody)
    assert outcome(verdict, "pass rate") is StageOutcome.PASSED
    assert (verdict.decision, outcome(verdict, "stability")) == ("reject", StageOutcome.FAILED)


def test_recovery_is_the_share_that_pass_although_a_tool_failed():
    old = policy("old", 50, tool_failed=True)
    assert outcome(judge(old, policy("new", 120, tool_failed=True), Gate(min_recovery=0.5)), "recovery") is StageOutcome.PASSED
    verdict = judge(old, policy("new", 80, tool_failed=True), Gate(min_recovery=0.5))
    assert verdict.decision is Decision.REJECT
    assert "of 200 attempts in which a tool failed, 0.40 passed all the same, below 0.5" in verdict.reason


@pytest.mark.parametrize(("general", "found"), [(190, "passed"), (188, "passed"), (180, "failed"), (150, "failed")])
def test_other_tasks_may_not_be_lost(general, found):
    pair = policy("old", 190), policy("new", general)
    verdict = judge(OLD, policy("new", 190), regression=pair)
    assert outcome(verdict, "regression") == found
    assert verdict.decision == ("promote" if found == "passed" else "reject")


def test_too_few_other_tasks_to_tell_leave_it_undecided():
    verdict = judge(OLD, policy("new", 190), regression=(policy("old", 5, n=10), policy("new", 5, n=10)))
    assert (verdict.decision, outcome(verdict, "regression")) == ("undecided", StageOutcome.UNDECIDED)


def test_a_policy_that_ends_fewer_attempts_is_not_compared_with_one_that_ends_all():
    def half(name, n=200):
        return Outcomes(name, {f"t{i}": (Outcome(True if i % 2 else None),) for i in range(n)}, n)

    verdict = judge(OLD, half("new"))
    assert (verdict.decision, outcome(verdict, "coverage")) == ("undecided", StageOutcome.UNDECIDED)
    assert judge(OLD, half("new"), Gate(min_coverage=0.9)).decision is Decision.REJECT
    verdict = judge(OLD, half("new"), Gate(max_coverage_drop=0.6))
    assert (verdict.decision, outcome(verdict, "pass rate")) == ("undecided", StageOutcome.UNDECIDED)
    assert "is better than old" in verdict.reason
    assert "but only where it was scored: had it failed elsewhere, +0.00 on 200 tasks" in verdict.reason


def test_what_a_candidate_leaves_out_is_not_won():
    """Nine losses that nobody scored, or at tasks that it was not tried at, hide behind nine gains."""
    old = policy("old", 190)
    gains = {f"t{i}": (Outcome(True),) for i in range(190, 199)}
    cut = {f"t{i}": (Outcome(None),) for i in range(9)}
    verdict = judge(old, Outcomes("new", dict(old.tasks) | gains | cut, 200))
    assert (verdict.decision, verdict.stage("coverage").outcome) == ("undecided", StageOutcome.PASSED)
    left = {task: tried for task, tried in (dict(old.tasks) | gains).items() if task not in cut}
    assert not judge(old, Outcomes("new", left, len(left))).promote
    assert judge(old, Outcomes("new", dict(old.tasks) | gains, 200)).promote
    # Nor is anything kept there: not what it was to keep greedily, nor on other tasks.
    better = policy("new", 199)
    worn = Outcomes("new", dict(old.tasks) | {f"t{i}": (Outcome(None),) for i in range(30)}, 200)
    nothing = Outcomes("new", {task: (Outcome(None),) for task in old.tasks}, 200)
    for stage in ("greedy", "regression"):
        assert judge(old, better, **{stage: (old, nothing)}).decision is Decision.UNDECIDED
        verdict = judge(old, better, Gate(), **{stage: (old, worn)})
        assert (verdict.decision, outcome(verdict, stage)) == ("undecided", StageOutcome.UNDECIDED)
        assert "failed where it was not scored" in verdict.reason


def test_a_result_whose_attempts_were_stopped_by_what_came_out_promotes_nobody():
    verdict = judge(policy("old", 100), replace(policy("new", 190), settled=3))
    assert (verdict.decision, outcome(verdict, "coverage")) == ("undecided", StageOutcome.UNDECIDED)
    assert "measure it again without --adaptive" in verdict.reason


def test_bounds_alone_judge_one_result():
    good = policy("new", 190)
    assert judge(None, good, Gate(min_pass_rate=0.9, min_coverage=1.0)).promote
    verdict = judge(None, good, Gate(min_pass_rate=0.96))
    assert verdict.decision is Decision.REJECT
    assert "0.95 of the scored attempts passed (0.91–0.97), below 0.96" in verdict.reason
    assert verdict.power is None
    assert judge(None, policy("new", 0, n=0)).decision is Decision.UNDECIDED


def test_a_single_task_may_not_drop_further_than_it_is_allowed_to():
    tasks = dict(policy("new", 190, attempts=2).tasks) | {"t7": (Outcome(True), Outcome(False))}
    old, new = policy("old", 100, attempts=2), Outcomes("new", tasks, 400)
    assert judge(old, new, Gate(max_drop=0.5)).promote
    verdict = judge(old, new, Gate(max_drop=0.4))
    assert verdict.decision is Decision.REJECT
    assert "1 tasks dropped by more than 0.4: t7" in verdict.reason


def test_tasks_that_only_one_of_them_tried_do_not_count_and_are_named():
    verdict = judge(OLD, policy("new", 190, n=210))
    assert any("10 tasks were tried by one of the two only" in warning for warning in verdict.warnings)
    assert verdict.stage("pass rate").numbers["tasks"] == 200


def test_a_result_of_an_environment_becomes_outcomes():
    run = RunOutput("x", tools=(ToolCall("f", {}, ToolOutcome.ERROR), ToolCall("f", {})), input_tokens=7, output_tokens=3, cost=0.5)
    scored = AttemptResult(0, run, Score(0.8, True, dimensions={"safety": 1.0}), StopReason.COMPLETED, 2.0)
    failed = AttemptResult(1, None, None, StopReason.ERROR, 1.0, error="boom")
    fingerprint = Fingerprint("e", {})
    result = EnvironmentRunResult("env", 4, fingerprint, fingerprint, (TaskResult(Task("q", id="t1"), (scored, failed)),), 3.0)
    outcomes = outcomes_of(result, "new")
    first, second = outcomes.tasks["t1"]
    assert (first.passed, first.tool_failed, first.tokens, first.tool_calls, first.seconds, first.cost) == (True, True, 10, 2, 2.0, 0.5)
    assert first.dimensions == {"safety": 1.0}
    assert (second.passed, second.tokens, second.tool_failed) == (None, None, None)
    assert (outcomes.planned, outcomes.coverage, outcomes.pass_rate, outcomes.settled) == (4, 0.25, 1.0, 0)
    stopped = replace(result, task_results=(replace(result.task_results[0], planned=2),))
    assert outcomes_of(stopped).settled == 1


@pytest.mark.parametrize("case", [Case(48, 1, 1, "uniform"), Case(24, 4, 4, "two-sided"), Case(24, 1, 8, "hard")])
def test_of_candidates_that_are_no_better_few_are_promoted(case):
    """At level 0.05 no more than the level + 0.01, and what a binomial of that share exceeds once in a thousand."""
    n = 600
    found = simulate(case, n, Gate(), seed=1)
    assert wilson(found.promoted, n, confidence=0.998).low <= 0.06
    assert found.covered >= 0.92 * n  # of the intervals at 95 %


def test_a_difference_that_is_there_is_found():
    found = 0
    for seed in range(20):
        rng = random.Random(seed)
        chances = [rng.random() * 0.7 for _ in range(128)]
        old = Outcomes("old", {str(i): tuple(Outcome(rng.random() < p) for _ in range(4)) for i, p in enumerate(chances)}, 512)
        new = Outcomes("new", {str(i): tuple(Outcome(rng.random() < p + 0.15) for _ in range(4)) for i, p in enumerate(chances)}, 512)
        found += judge(old, new).promote
    assert found >= 16
