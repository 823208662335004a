"""What is not learnt from has a reason, and nothing is missing from the count."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden.algorithm.harvest import Learner, harvest
from leyden.algorithm.refusals import Refusal, by_reason
from leyden.algorithm.rows import RowsConfig
from leyden.algorithm.triplets import GenerationsToTriplets
from leyden.audit import Audit, Finding
from leyden.types import Generation, Reward

EOS = 2


def generation(name, rollout="r", attempt=1, **changes):
    values = dict(
        id=name, call_id=name, rollout_id=rollout, attempt=attempt, model="m", prompt_token_ids=[1, 5], response_token_ids=[7, EOS],
        finish_reason="stop", started_at=0, latency=0.1, checkpoint="version_1",
    )  # fmt: skip
    return Generation(**values | changes)


def test_every_finding_of_an_audit_is_a_reason():
    for finding in Finding:
        adapter = GenerationsToTriplets()
        assert adapter.adapt([generation("g", audit=Audit(findings=(finding,)))]) == []
        assert adapter.refused == {finding.value: 1} and Refusal(finding) in adapter.refused


def test_the_first_finding_is_the_reason_and_the_others_are_told():
    adapter = GenerationsToTriplets()
    adapter.adapt([generation("g", audit=Audit(findings=(Finding.COUNT_MISMATCH, Finding.LOGPROBS_MISALIGNED)))])
    assert [(entry.reason, entry.detail) for entry in adapter.quarantined] == [("count_mismatch", "logprobs_misaligned")]


def test_a_call_that_its_audit_found_nothing_in_is_learnt_from():
    assert len(GenerationsToTriplets().adapt([generation("g", audit=Audit())])) == 1


def test_missing_ids_are_refused_and_never_rendered_again_from_the_text():
    """TRL pull request 6947, and the empty triplets of agent-lightning (442, 74): ids that are not there are not made up."""
    request = {"messages": [{"role": "user", "content": "hi"}]}
    for missing in ({"prompt_token_ids": None}, {"prompt_token_ids": []}, {"response_token_ids": None}):
        adapter = GenerationsToTriplets()
        assert adapter.adapt([generation("g", request=request, response={"role": "assistant", "content": "ho"}, **missing)]) == []
        assert adapter.refused == {Refusal.NO_IDS: 1}


@pytest.mark.parametrize("ids", [[1, 100], [-1, 5]])
def test_ids_that_the_model_does_not_know_are_refused(ids):
    for where in ("prompt_token_ids", "response_token_ids"):
        adapter = GenerationsToTriplets(vocabulary=100)
        assert adapter.adapt([generation("g", **{where: ids})]) == []
        (entry,) = adapter.quarantined
        assert entry.reason is Refusal.OUT_OF_VOCABULARY and "of a vocabulary of 100" in entry.detail
    assert len(GenerationsToTriplets(vocabulary=101).adapt([generation("g", prompt_token_ids=[1, 100])])) == 1


def test_ids_that_no_model_can_have_are_refused_though_nobody_knows_the_vocabulary():
    for odd in (-1, 1 << 31):
        adapter = GenerationsToTriplets()
        assert adapter.adapt([generation("g", response_token_ids=[odd])]) == [] and adapter.refused == {Refusal.OUT_OF_VOCABULARY: 1}


@pytest.mark.parametrize(
    ("logprobs", "reason"),
    [
        ([-0.1], Refusal.LOGPROBS_MISALIGNED),
        ([-0.1, float("nan")], Refusal.LOGPROBS_NOT_FINITE),
        ([-0.1, -9999.0], Refusal.LOGPROBS_NOT_FINITE),
    ],
)
def test_a_call_that_nobody_audited_is_looked_at_when_it_is_learnt_from(logprobs, reason):
    """One log-probability too few would move all that follow it in the row."""
    adapter = GenerationsToTriplets()
    assert adapter.adapt([generation("g", logprobs=logprobs)]) == [] and adapter.refused == {reason: 1}
    assert len(GenerationsToTriplets().adapt([generation("g", logprobs=[-0.1, -0.2])])) == 1


def test_what_another_model_said_is_not_learnt_from():
    adapter = GenerationsToTriplets(checkpoint="version_1")
    calls = [generation("own"), generation("judge", checkpoint=None, model="judge"), generation("old", checkpoint="version_0")]
    assert [triplet.generation_id for triplet in adapter.adapt(calls)] == ["own"]
    assert [entry.detail for entry in adapter.quarantined] == ["judge said it, not version_1", "version_0 said it, not version_1"]


KINDS = [
    {}, {}, {}, {"response_token_ids": None}, {"status": "error"}, {"audit": Audit(findings=(Finding.NO_IDS,))}, {"late": True},
    {"finish_reason": "length"}, {"finish_reason": None}, {"response_token_ids": []}, {"response_token_ids": [7, 8]},
    {"prompt_token_ids": [4] * 30}, {"prompt_token_ids": [1, 5, 7, EOS, 9]}, {"checkpoint": "other"}, {"prompt_token_ids": [999]},
]  # fmt: skip
kinds = st.sampled_from(KINDS)
rollouts = st.sampled_from(["scored", "unscored", "failed", "by_call"])


@given(st.lists(st.tuples(rollouts, kinds), max_size=20), st.booleans(), st.sampled_from(["refuse", "turns"]))
def test_every_call_is_in_one_row_or_once_in_quarantine(drawn, keep_truncated, truncate):
    calls = [generation(f"g{n}", rollout, started_at=n, **changes) for n, (rollout, changes) in enumerate(drawn)]
    calls.sort(key=lambda call: call.rollout_id)
    rewards = [Reward(value=1.0, rollout_id="scored", attempt=1)]
    rewards += [Reward(value=0.5, position=call.id, rollout_id="by_call", attempt=1) for call in calls if call.rollout_id == "by_call"][:1]
    config = RowsConfig(max_tokens=20, keep_truncated=keep_truncated, truncate=truncate)
    left_out = {"unscored": Refusal.NO_REWARD, "failed": Refusal.ATTEMPT_FAILED}
    crop = harvest(calls, rewards, {"scored": "task"}, Learner({EOS}, "version_1", 500), config, left_out=left_out)
    in_rows = [call for row in crop.rows for call in row.generation_ids]
    apart = [call for entry in crop.quarantined for call in entry.generation_ids]
    assert sorted([*in_rows, *apart]) == sorted(call.id for call in calls)
    assert crop.calls == crop.report.rows + crop.report.merged_calls + by_reason(crop.quarantined).total()
    for row in crop.rows:
        assert row.labels[-1] == row.input_ids[-1] and len(row.labels) == len(row.attention_mask) <= 20
