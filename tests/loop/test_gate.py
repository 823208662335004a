import pytest

from leyden.algorithm.sft.collect import Ended
from leyden.algorithm.sft.evaluate import Evaluation, Measurement, judge_versions, measure
from leyden.environments.gate import Budget, Gate
from leyden.environments.verdict import Decision, StageOutcome
from leyden.types import Generation, Mode, Reward, Rollout, RolloutConfig, RolloutState


def outcomes(passed, n=64, **more):
    return Measurement(temperature=1.0, passed=tuple(i < passed for i in range(n)), **more)


def evaluation(version, sampled, greedy, **more):
    return Evaluation(version=version, sampled=outcomes(sampled), greedy=outcomes(greedy), **more)


def ended(reward, state=RolloutState.SUCCEEDED, name="r"):
    rollout = Rollout(id=name, input=1, mode=Mode.VAL, priority=0, state=state, config=RolloutConfig(), created_at=0)
    return Ended(rollout, reward)


@pytest.mark.parametrize(
    ("before", "after", "decision", "word"),
    [
        ((15, 30), (40, 50), Decision.PROMOTE, "version_1 is better than version_0"),
        ((15, 30), (17, 30), Decision.UNDECIDED, "neither better nor worse"),
        ((15, 30), (15, 30), Decision.UNDECIDED, "neither better nor worse"),
        ((15, 30), (5, 60), Decision.REJECT, "version_1 is worse than version_0"),
        ((15, 60), (40, 30), Decision.REJECT, "greedy: worse beyond chance"),
        ((15, 30), (40, 28), Decision.PROMOTE, "is better"),  # greedily lower by what chance does
    ],
)
def test_the_gate_promotes_only_what_is_better_beyond_chance(before, after, decision, word):
    verdict = judge_versions(evaluation("version_0", *before), evaluation("version_1", *after), Gate())
    assert verdict.decision is decision
    assert verdict.promote is (decision is Decision.PROMOTE)
    assert word in verdict.reason
    assert "p = " in verdict.reason
    assert "95 %" in verdict.reason
    assert "64 tasks" in verdict.power
    assert any("64 tasks are fewer than 128" in warning for warning in verdict.warnings)


def test_only_tasks_that_both_were_scored_on_are_compared():
    before = Measurement(temperature=1.0, passed=(None,) * 10 + (False,) * 10)
    after = Measurement(temperature=1.0, passed=(True,) * 10 + (None,) * 10)
    pair = (Evaluation(version=name, sampled=arm, greedy=arm) for name, arm in (("a", before), ("b", after)))
    verdict = judge_versions(*pair, Gate())
    assert verdict.decision is Decision.UNDECIDED
    assert "on 0 tasks" in verdict.reason
    assert verdict.stage("greedy").outcome is StageOutcome.NO_DATA


def test_a_regression_on_other_tasks_stops_a_better_version():
    before = evaluation("version_0", 15, 30, regression=outcomes(60))
    assert judge_versions(before, evaluation("version_1", 40, 50, regression=outcomes(60)), Gate()).promote
    worse = judge_versions(before, evaluation("version_1", 40, 50, regression=outcomes(30)), Gate())
    assert worse.decision is Decision.REJECT
    assert worse.reason.startswith("regression: version_1 is worse by more than 0.05")


def test_tokens_and_named_rewards_reach_the_gate():
    calls = [
        Generation(
            id=f"g{i}", call_id=f"g{i}", rollout_id=f"r{i}", attempt=1, model="m", started_at=0, latency=0.1,
            prompt_token_ids=[1] * 10, prompt_tokens=10, response_token_ids=[2] * 5,
        )
        for i in range(2)
    ]  # fmt: skip
    rewards = [Reward(name="reward.safety", value=float(i), rollout_id=f"r{i}", attempt=1) for i in range(2)]
    found = measure([ended(1.0, name="r0"), ended(1.0, name="r1")], 1.0, 0.5, 1, calls, rewards)
    assert found.tokens == (15, 15)
    assert found.dimensions == ({"safety": 0.0}, {"safety": 1.0})
    more = [("reward.safety", 1.0, "agent", "r1"), ("reward.safety", 0.5, "agent", "r1"), ("reward.safety", 0.0, "second opinion", "r1")]
    rewards += [Reward(name=name, value=value, source=source, rollout_id=of, attempt=1) for name, value, source, of in more]
    rewards[1:2] = []
    lowest = measure([ended(1.0, name="r0"), ended(1.0, name="r1")], 1.0, 0.5, 1, calls, rewards)
    assert lowest.dimensions == ({"safety": 0.0}, {"safety": 0.5})  # of whoever spoke first
    both = Evaluation(version="v", sampled=found, greedy=found)
    assert judge_versions(both, both, Gate(safety={"safety": 0.5})).decision is Decision.REJECT
    assert judge_versions(both, both, Gate(budgets={"tokens": Budget(most=14)})).stage("efficiency").outcome is StageOutcome.FAILED


def test_the_rate_is_over_the_planned_tasks_and_says_how_many_were_scored():
    measurement = measure([ended(1.0), ended(0.0), ended(None), ended(None, RolloutState.FAILED)], 1.0, passing=0.5)
    assert measurement.passed == (True, False, None, None)
    assert (measurement.n, measurement.scored, measurement.passes, measurement.rate) == (4, 2, 1, 0.25)
    summary = measurement.as_summary()
    assert (summary["n"], summary["scored"], summary["pass_rate"]) == (4, 2, 0.25)
    assert summary["low"] < 0.25 < summary["high"]
    assert "2 unscored" in str(measurement)


def test_several_attempts_at_a_task_are_not_as_many_tasks():
    alike = Measurement(temperature=1.0, attempts=4, passed=(True,) * 40 + (False,) * 40)
    once = Measurement(temperature=1.0, passed=(True,) * 10 + (False,) * 10)
    assert (alike.n, alike.rate) == (20, 0.5)
    assert alike.interval.low == pytest.approx(once.interval.low, abs=0.01)
