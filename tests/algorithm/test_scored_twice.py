"""A second opinion on an attempt changes nothing for those who do not ask for it."""

from leyden.algorithm.sft.collect import last_rewards
from leyden.algorithm.triplets import GenerationsToTriplets
from leyden.types import Generation, Reward


def reward(value, source="agent", **fields):
    return Reward(**{"value": value, "source": source, "rollout_id": "r", "attempt": 1, **fields})


CALLS = [
    Generation(
        id=f"g{n}", call_id=f"g{n}", rollout_id="r", attempt=1, model="m", prompt_token_ids=[1], response_token_ids=[2], started_at=n,
        latency=0.1,
    )
    for n in range(2)
]  # fmt: skip


def trained_on(rewards, **options):
    return [triplet.reward for triplet in GenerationsToTriplets(**options).adapt(CALLS, rewards)]


def test_the_source_that_spoke_first_counts():
    twice = [reward(1.0, "v1"), reward(0.0, "v2"), reward(0.5, "v3", rollout_id="other")]
    assert last_rewards(twice) == {"r": 1.0, "other": 0.5}
    assert trained_on(twice) == [1.0, 1.0]


def test_a_later_verdict_at_the_end_does_not_overrule_what_was_said_call_by_call():
    rewards = [reward(0.25, position="g0"), reward(0.75, position="g1"), reward(0.0, "v2")]
    assert last_rewards(rewards) == {"r": 0.75}
    assert trained_on(rewards) == [0.25, 0.75]


def test_a_source_that_is_named_counts_instead():
    assert trained_on([reward(1.0, "v1"), reward(0.0, "v2")], source="v2") == [0.0, 0.0]
    assert trained_on([reward(1.0, "v1")], source="v2") == [None, None]
