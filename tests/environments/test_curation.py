"""Sampling, routing, contracts, calibration."""

import asyncio
import random
import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from attempts_for_tests import answers, attempt, result, text_run, tool_run
from hypothesis import given
from hypothesis import strategies as st

from leyden.environments.attempt import StopReason
from leyden.environments.calibration import Labelled, acalibrate, labelled
from leyden.environments.contract import Bound, Rank, RewardContract
from leyden.environments.leakage import LeakageGuard
from leyden.environments.output import ToolCall, ToolOutcome
from leyden.environments.routing import DEFAULT_RULES, Destination, Router, Rule, read_rules
from leyden.environments.sampling import Coverage, FailureFirst, Record, SuccessBand, Uniform, history_of, sample
from leyden.environments.score import Score
from leyden.environments.task import Task
from leyden.errors import UsageError

TASKS = [Task(f"q{i}", id=f"t{i:02}", metadata={"level": "easy" if i % 4 else "hard"}) for i in range(40)]
HISTORY = {f"t{i:02}": Record(i % 11, 10) for i in range(30)}  # the last ten were never tried


@pytest.mark.parametrize("policy", [Uniform(), SuccessBand(), Coverage("level"), FailureFirst()], ids=lambda policy: policy.name)
def test_a_policy_chooses_the_same_whatever_the_order_and_says_so(policy):
    shuffled = random.Random(1).sample(TASKS, len(TASKS))
    one, other = sample(TASKS, 8, policy, 5, HISTORY), sample(shuffled, 8, policy, 5, HISTORY)
    assert one.manifest == other.manifest
    assert [task.id for task in one.tasks] == one.manifest["tasks"] and len(set(one.manifest["tasks"])) == one.manifest["drawn"] <= 8
    assert sum(one.manifest["counts"]["drawn"].values()) == one.manifest["drawn"]
    assert sum(one.manifest["counts"]["offered"].values()) == 40
    assert (one.manifest["policy"]["name"], one.manifest["policy"]["version"], one.manifest["seed"]) == (policy.name, 1, 5)


def test_another_seed_is_another_sample():
    assert len({tuple(sample(TASKS, 8, Uniform(), seed).manifest["tasks"]) for seed in range(5)}) == 5


def test_the_band_keeps_what_passes_sometimes():
    chosen = sample(TASKS, 12, SuccessBand(0.3, 0.7), 0, HISTORY).tasks
    rates = [HISTORY[task.id].rate for task in chosen if task.id in HISTORY]
    assert len(rates) == 12 and all(0.3 <= rate <= 0.7 for rate in rates)
    more = sample(TASKS, 40, SuccessBand(0.3, 0.7), 0, HISTORY).tasks
    assert sum(task.id not in HISTORY for task in more) == 10  # what was never tried fills up, nothing else does


def test_quotas_hold_and_what_a_value_cannot_fill_stays_empty():
    drawn = sample(TASKS, 20, Coverage("level", {"hard": 0.75, "easy": 0.25}), 0).manifest["counts"]["drawn"]
    assert drawn == {"easy": 5, "hard": 10}  # there are ten hard ones
    assert sample(TASKS, 9, Coverage("level"), 0).manifest["counts"]["drawn"] == {"easy": 5, "hard": 4}
    with pytest.raises(UsageError, match="over 1 together"):
        Coverage("level", {"hard": 0.75, "easy": 0.5})


def test_what_no_task_can_meet_is_refused():
    for make in (lambda: SuccessBand(0.8, 0.2), lambda: SuccessBand(float("nan")), lambda: Coverage("level", {"hard": float("nan")})):
        with pytest.raises(UsageError):
            make()
    with pytest.raises(UsageError, match="two tasks have one id"):
        sample([Task("a", id="x"), Task("b", id="x")], 2, Uniform(), 0)


def test_failures_come_first_and_what_always_passes_last():
    order = [HISTORY.get(task.id, Record(0, 0)).rate for task in sample(TASKS, 40, FailureFirst(), 0, HISTORY).tasks]
    known = [rate for rate in order if rate is not None and rate < 1]
    assert order[: len(known)] == sorted(known) and order[-1] == 1.0 and order[len(known)] is None


def test_history_sums_over_results():
    tried = result(answers(True, False, None), answers(False))
    assert history_of([*tried.task_results, *tried.task_results]) == {"t1": Record(2, 4), "t2": Record(0, 2)}


# -- routing -------------------------------------------------------------------------------------------------------------------


def broken_tool(answer="408", passed=True):
    run = tool_run(answer=answer)
    return attempt(0, passed, replace(run, tools=(ToolCall("calculate", {}, ToolOutcome.ERROR, call_id="c0"), *run.tools)))


def score(passed, **dimensions):
    return Score(float(passed), passed, dimensions=dimensions)


ROUTES = {
    "passed": (attempt(), Destination.SFT),
    "not safe": (replace(attempt(), score=score(True, safety=0.0)), Destination.SAFETY),
    "infrastructure failed": (attempt(0, None, error_type="APIConnectionError"), Destination.INCIDENT),
    "the agent broke": (attempt(0, None, error_type="KeyError"), Destination.REPAIR),
    "ran out of time": (attempt(0, None, stop_reason=StopReason.TIMEOUT), Destination.INCIDENT),
    "cancelled": (attempt(0, None, stop_reason=StopReason.CANCELLED), Destination.DISCARD),
    "cut at the token limit": (attempt(0, None, stop_reason=StopReason.TRUNCATED), Destination.DISCARD),
    "waits for an approval": (attempt(0, None, stop_reason=StopReason.PAUSED), Destination.REVIEW),
    "nobody could judge it": (attempt(0, None, stop_reason=StopReason.COMPLETED), Destination.REVIEW),
    "passed after a tool failed": (broken_tool(), Destination.REPAIR),
    "failed after a tool failed": (broken_tool(passed=False), Destination.REPAIR),
    "the task never passes": (attempt(0, False), Destination.REVIEW),
}


@pytest.mark.parametrize("rule", ROUTES)
def test_each_kind_of_attempt_goes_where_the_rules_say(rule):
    made, to = ROUTES[rule]
    router = Router()
    (routed,) = router.route(result([made]).task_results[0])
    assert (routed.to, routed.rule) == (to, rule) and router.counts[to] == 1 == router.by_rule[rule]


def test_a_failure_beside_a_pass_is_a_preference_and_a_detour_is_not_imitated():
    (one,) = result([attempt(0, True), attempt(1, False), attempt(2, True, tool_run())]).task_results
    assert [routed.to for routed in Router().route(one)] == [Destination.SFT, Destination.PREFERENCE, Destination.EFFICIENCY]


def test_what_is_near_an_evaluation_task_is_discarded_whatever_it_is():
    router = Router(guard=LeakageGuard({"frozen": [Task("QUESTION T1")]}))
    tried = result(answers(True, None, False), answers(True))
    routed = [one for task in tried.task_results for one in router.route(task)]
    assert [one.to for one in routed] == [Destination.DISCARD] * 3 + [Destination.SFT]


@given(st.lists(st.sampled_from(sorted(ROUTES)), max_size=12))
def test_every_attempt_goes_to_one_place(kinds):
    router = Router()
    (one,) = result([replace(ROUTES[kind][0], index=index) for index, kind in enumerate(kinds)]).task_results
    routed = list(router.route(one))
    assert len(routed) == len(kinds) == sum(router.counts.values()) == sum(router.by_rule.values())
    assert Counter(item.to for item in routed) == +router.counts


def test_rules_are_read_from_a_file_and_decide_in_its_order(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text(
        '[[rule]]\nname = "dear"\nto = "efficiency"\nwhen = { output_tokens = "> 100" }\n'
        '[[rule]]\nname = "odd"\nto = "review"\nwhen = { error_type = "unknown", stop_reason = "!= completed" }\n'
        '[[rule]]\nname = "good"\nto = "sft"\nwhen = { value = ">= 0.5", stop_reason = ["completed", "paused"] }\n'
    )
    router = Router(read_rules(path))
    (one,) = result([attempt(run=text_run(output_tokens=101)), attempt(1, None), attempt(2), attempt(3, False)]).task_results
    assert [routed.rule for routed in router.route(one)] == ["dear", "odd", "good", "no rule"]


@pytest.mark.parametrize(
    "text, message",
    [
        ("[[rule]]\nname = 'x'\nto = 'sfd'", "x: it goes to 'sfd'"),
        ("[[rule]]\nto = 'sft'\nwhen = { pased = true }", "rule 1.*no fact 'pased'.*did you mean passed"),
        ("[[rule]]\nto = 'sft'\nwhen = { value = '> much' }", "'> much' is no condition"),
        ("", "holds no rule"),
        ("[[rul]]\nto = 'sft'", "no key 'rul'.*did you mean rule"),
        ("rule = 3", "holds no rule"),
        ("rule = ['sft']", "holds no rule"),
        ("[[rule]]\nto = 'sft'\nwhn = {}", "no key 'whn'.*did you mean when"),
        ("[[rule]]\nto = 'sft'\nwhen = 3", "`when` a table"),
        ("[[rule", "cannot read rules"),
    ],
)
def test_a_bad_rule_is_named(tmp_path, text, message):
    (tmp_path / "rules.toml").write_text(text)
    with pytest.raises(UsageError) as found:
        read_rules(tmp_path / "rules.toml")
    assert re.search(message, f"{found.value} {found.value.hint}")


def test_a_condition_that_is_not_holds_for_no_unknown_fact_and_knows_numbers_and_truth():
    rule = Rule("x", Destination.SFT, {"error_type": "!= McpError"})
    assert rule.holds({"error_type": "KeyError"}) and not rule.holds({"error_type": None}) and not rule.holds({"error_type": "McpError"})
    assert not Rule("x", Destination.SFT, {"tool_calls": "!= 2.0"}).holds({"tool_calls": 2})
    assert not Rule("x", Destination.SFT, {"passed": "!= true"}).holds({"passed": True})


def test_the_default_rules_have_names_of_their_own_and_end_in_one_that_always_holds():
    assert len({rule.name for rule in DEFAULT_RULES}) == len(DEFAULT_RULES) and not DEFAULT_RULES[-1].when
    assert isinstance(DEFAULT_RULES[0], Rule)


# -- contract ------------------------------------------------------------------------------------------------------------------

CONTRACT = RewardContract.from_dict({"gates": {"safety": {"at_least": 1}, "cost": {"at_most": 5}}, "ranks": ["value", "-steps"]})


def judged(index, value, **dimensions):
    return replace(attempt(index), score=Score(value, value >= 0.5, dimensions=dimensions))


def test_a_gate_cannot_be_bought_off_and_ranks_order_the_rest():
    tried = [
        judged(0, 1.0, safety=0.99, cost=1, steps=1),
        judged(1, 0.5, safety=1, cost=5, steps=9),
        judged(2, 1.0, safety=1, cost=2, steps=7),
        judged(3, 1.0, safety=1, cost=2, steps=3),
        judged(4, 1.0, safety=1, cost=2),
        judged(5, 1.0, cost=2),
        attempt(6, None),
    ]
    assert [made.index for made in CONTRACT.best_first(tried)] == [3, 2, 4, 1]
    assert CONTRACT.violations(tried[0].score) == ["safety is 0.99"] and CONTRACT.violations(tried[5].score) == ["safety is missing"]
    assert CONTRACT.least == {"safety": 1} and CONTRACT.ranks == (Rank("value"), Rank("steps", lowest_first=True))


@pytest.mark.parametrize("told", [{"gate": {}}, {"gates": {"safety": {"least": 1}}}, {"gates": {"safety": {}}}, {"gates": ["safety"]}])
def test_a_contract_that_says_nothing_is_refused(told):
    with pytest.raises(UsageError):
        RewardContract.from_dict(told)
    assert Bound(at_least=1) == CONTRACT.gates["safety"]


# -- calibration ---------------------------------------------------------------------------------------------------------------


class Lenient:
    """Passes whatever holds a digit."""

    async def ascore(self, run, expected=None):
        if run.content == "crash":
            raise ValueError("no idea")
        if run.content == "bool":
            return True
        return Score(float(any(map(str.isdigit, run.content))), any(map(str.isdigit, run.content)), reason="a digit")


def test_a_scorer_is_held_against_people():
    said = [("42", True), ("7", False), ("none", True), ("none", False), ("8", False), ("crash", True)]
    known = [Labelled(text_run(answer=text), None, good, f"t{n}/0") for n, (text, good) in enumerate(said)]
    found = asyncio.run(acalibrate(Lenient(), known))
    assert (found.n, found.n_judged, found.n_good, found.n_bad) == (6, 5, 2, 3)
    assert (found.false_positive_rate, found.false_negative_rate, found.agreement) == (2 / 3, 1 / 2, 2 / 5)
    assert [one.name for one in found.disagreements] == ["t1/0", "t2/0", "t4/0"] and found.errors == {"t5/0": "ValueError: no idea"}
    assert found.intervals["false_positive_rate"].low == pytest.approx(0.2077, abs=1e-3)
    assert "passes 2 of 3 bad answers" in str(found) and "1 raised errors" in str(found)
    assert asyncio.run(acalibrate(Lenient(), known[-1:])).agreement is None
    odd = asyncio.run(acalibrate(Lenient(), [Labelled(text_run(answer="bool"), None, True, "odd")]))
    assert odd.errors == {"odd": "TypeError: a scorer gives a Score, not bool"}


def test_labels_are_of_attempts_that_have_an_answer():
    tried = result(answers(True, False))
    assert [one.name for one in labelled(tried, {("t1", 1): True})] == ["t1/1"]
    for labels in ({("t1", 5): True}, {("t9", 0): True}, {("t1", 0): 1}):
        with pytest.raises(UsageError):
            labelled(tried, labels)
