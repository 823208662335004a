from leyden.algorithm.triplets import GenerationsToTriplets, Refusal
from leyden.types import Generation, Reward


def generation(name, rollout="r1", attempt=1, **changes):
    values = dict(
        id=name, call_id=name, rollout_id=rollout, attempt=attempt, model="m", prompt_token_ids=[1, 2], response_token_ids=[3, 4],
        logprobs=[-0.1, -0.2], finish_reason="stop", started_at=0, latency=0.1, checkpoint="version_0",
    )  # fmt: skip
    return Generation(**(values | changes))


def reward(value, position="end", rollout="r1", attempt=1, name="reward"):
    return Reward(name=name, value=value, position=position, rollout_id=rollout, attempt=attempt)


def rewards_of(triplets):
    return {t.generation_id: t.reward for t in triplets}


def test_the_last_reward_carries_back_over_the_whole_attempt():
    triplets = GenerationsToTriplets().adapt([generation("a"), generation("b"), generation("c")], [reward(1.0)])
    assert rewards_of(triplets) == {"a": 1.0, "b": 1.0, "c": 1.0}
    assert [t.generation_id for t in triplets] == ["a", "b", "c"]


def test_a_reward_on_a_call_carries_to_it_and_to_earlier_calls_only():
    triplets = GenerationsToTriplets().adapt([generation("a"), generation("b"), generation("c")], [reward(1.0), reward(0.2, "b")])
    assert rewards_of(triplets) == {"a": 0.2, "b": 0.2, "c": 1.0}


def test_calls_after_the_last_positioned_reward_have_none():
    triplets = GenerationsToTriplets().adapt([generation("a"), generation("b")], [reward(0.5, "a")])
    assert rewards_of(triplets) == {"a": 0.5, "b": None}


def test_a_reward_on_a_refused_call_still_carries_back():
    adapter = GenerationsToTriplets()
    triplets = adapter.adapt([generation("a"), generation("b", response_token_ids=None)], [reward(0.7, "b")])
    assert rewards_of(triplets) == {"a": 0.7}


def test_attempts_do_not_share_rewards():
    calls = [generation("a"), generation("x", rollout="r2"), generation("b"), generation("z", attempt=2)]
    triplets = GenerationsToTriplets().adapt(calls, [reward(1.0), reward(0.0, rollout="r2")])
    assert rewards_of(triplets) == {"a": 1.0, "b": 1.0, "x": 0.0, "z": None}


def test_what_gives_no_triplet_is_counted_by_reason():
    adapter = GenerationsToTriplets()
    calls = [
        generation("ok"),
        generation("failed", status="error"),
        generation("gone", status="disconnected"),
        generation("late", late=True),
        generation("blind", prompt_token_ids=None),
    ]
    assert [t.generation_id for t in adapter.adapt(calls, [])] == ["ok"]
    assert adapter.refused == {Refusal.ERROR: 1, Refusal.DISCONNECTED: 1, Refusal.LATE: 1, Refusal.NO_IDS: 1}


def test_other_names_are_not_the_reward_and_strange_positions_are_counted():
    adapter = GenerationsToTriplets()
    triplets = adapter.adapt([generation("a")], [reward(0.9, name="style"), reward(0.3, position="some-span"), reward(1.0)])
    assert rewards_of(triplets) == {"a": 1.0}
    assert adapter.unplaced_rewards == 1


def test_ids_and_logprobs_are_handed_on_as_they_are():
    (triplet,) = GenerationsToTriplets().adapt([generation("a", finish_reason="length")], [])
    assert (triplet.prompt_ids, triplet.response_ids, triplet.logprobs) == ([1, 2], [3, 4], [-0.1, -0.2])
    assert (triplet.finish_reason, triplet.checkpoint) == ("length", "version_0")
