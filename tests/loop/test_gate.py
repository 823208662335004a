import pytest

from leyden.algorithm.sft.collect import Ended
from leyden.algorithm.sft.evaluate import Evaluation, Measurement, decide, measure
from leyden.types import Mode, Rollout, RolloutConfig, RolloutState


def evaluation(version, sampled, greedy):
    def outcomes(passed, n=64):
        return Measurement(temperature=1.0, passed=tuple(i < passed for i in range(n)))

    return Evaluation(version=version, sampled=outcomes(sampled), greedy=outcomes(greedy))


def ended(reward, state=RolloutState.SUCCEEDED):
    rollout = Rollout(id="r", input=1, mode=Mode.VAL, priority=0, state=state, config=RolloutConfig(), created_at=0)
    return Ended(rollout, reward)


@pytest.mark.parametrize(
    ("before", "after", "promoted", "word"),
    [
        ((15, 30), (40, 50), True, "version_1 is better than version_0"),
        ((15, 30), (17, 30), False, "not better"),
        ((15, 30), (10, 60), False, "not better"),
        ((15, 60), (40, 30), False, "worse greedily"),
        ((15, 30), (40, 28), True, "is better"),  # greedily lower by what chance does
    ],
)
def test_the_gate_promotes_only_what_is_better_beyond_chance(before, after, promoted, word):
    decision = decide(evaluation("version_0", *before), evaluation("version_1", *after), alpha=0.05)
    assert decision.promote is promoted
    assert word in decision.reason
    assert "p = " in decision.reason
    assert "95 %" in decision.reason


def test_only_tasks_that_both_were_scored_on_are_compared():
    before = Measurement(temperature=1.0, passed=(None,) * 10 + (False,) * 10)
    after = Measurement(temperature=1.0, passed=(True,) * 10 + (None,) * 10)
    decision = decide(Evaluation(version="a", sampled=before, greedy=before), Evaluation(version="b", sampled=after, greedy=after), 0.05)
    assert not decision.promote
    assert "on 0 tasks" in decision.reason


def test_the_rate_is_over_the_planned_tasks_and_says_how_many_were_scored():
    measurement = measure([ended(1.0), ended(0.0), ended(None), ended(None, RolloutState.FAILED)], 1.0, passing=0.5)
    assert measurement.passed == (True, False, None, None)
    assert (measurement.n, measurement.scored, measurement.passes, measurement.rate) == (4, 2, 1, 0.25)
    summary = measurement.as_summary()
    assert (summary["n"], summary["scored"], summary["pass_rate"]) == (4, 2, 0.25)
    assert summary["low"] < 0.25 < summary["high"]
    assert "2 unscored" in str(measurement)
