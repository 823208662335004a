"""What every ``Store`` promises of what was captured in an attempt, asked of each kind of it."""

from __future__ import annotations

import pytest
from storekit import Kit, make_generation, make_span, run, task

from leyden.errors import Conflict, InvalidRequest, NotFound
from leyden.types import (
    Reward,
)


def test_generations_read_back_exactly_and_count_once(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task()])
        (lease,) = await kit.store.claim("w")
        full = make_generation(
            lease.ref,
            "g1",
            prompt_token_ids=[0, 2**31 - 1],
            response_token_ids=[5, 6],
            logprobs=[-0.5, -9999.0],
            sampling={"temperature": 1.0},
            request={"messages": [{"role": "user", "content": "é\0"}], "x": 1e300},
            response={"role": "assistant", "content": None},
            finish_reason="stop",
            prompt_tokens=2,
            completion_tokens=2,
        )
        await kit.store.add_generations(lease.ref, [full, make_generation(lease.ref, "g0", started_at=0)])
        await kit.store.add_generations(lease.ref, [full])
        assert await kit.store.list_generations([lease.ref.rollout_id]) == [make_generation(lease.ref, "g0", started_at=0), full]
        with pytest.raises(InvalidRequest):
            await kit.store.add_generations(
                lease.ref, [make_generation(lease.ref, "g2"), make_generation(lease.ref, "g3", prompt_token_ids=[2**31])]
            )
        with pytest.raises(InvalidRequest):
            await kit.store.add_generations(lease.ref, [make_generation(lease.ref, "g4", response_token_ids=[1], logprobs=[])])
        assert len(await kit.store.list_generations([lease.ref.rollout_id])) == 2, "all or none"

    run(check, kind)


def test_spans_dedupe_and_lose_their_secrets(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task()])
        (lease,) = await kit.store.claim("w")
        secret = "sk-" + "a1b2c3d4e5f6g7h8i9j0k1"
        attributes = {"http.headers": {"Authorization": "Bearer " + "x1" * 20}, "text": f"key is {secret} ok", "api_key": "anything"}
        assert await kit.store.add_spans(lease.ref, [make_span(1, attributes=attributes), make_span(2), make_span(2)]) == 2
        assert await kit.store.add_spans(lease.ref, [make_span(1), make_span(3)]) == 1
        one, two, three = await kit.store.list_spans(lease.ref.rollout_id)
        assert one.attributes == {
            "http.headers": {"Authorization": "[redacted]"},
            "text": "key is [redacted] ok",
            "api_key": "[redacted]",
        }
        assert (two.rollout_id, two.attempt, three.late) == (lease.ref.rollout_id, 1, False)

    run(check, kind)


def test_a_generation_loses_its_secrets(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task()])
        (lease,) = await kit.store.claim("w")
        text = "use sk-" + "a1b2c3d4e5f6g7h8i9j0k1"
        message = {"role": "assistant", "content": text}
        new = make_generation(lease.ref, "g", sampling={"api_key": "x", "seed": 1}, request={"messages": [message]}, response=message)
        await kit.store.add_generations(lease.ref, [new])
        (kept,) = await kit.store.list_generations([lease.ref.rollout_id])
        assert kept.sampling == {"api_key": "[redacted]", "seed": 1}
        assert kept.response == kept.request["messages"][0] == message | {"content": "use [redacted]"}

    run(check, kind)


def test_an_attempt_that_has_ended_is_scored_again_under_another_name(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task()])
        (lease,) = await kit.store.claim("w")
        rollout, again = lease.ref.rollout_id, [Reward(value=0.25, source="v2"), Reward(name="passed", value=0.0, source="v2")]
        with pytest.raises(Conflict, match="has not ended"):
            await kit.store.add_scores(rollout, 1, again)
        await kit.store.complete(lease.ref, [Reward(value=1.0, source="v1")])
        for _ in range(2):
            await kit.store.add_scores(rollout, 1, again)
        with pytest.raises(Conflict, match=r"already 0\.25"):
            await kit.store.add_scores(rollout, 1, [Reward(name="new", value=1.0, source="v2"), Reward(value=0.5, source="v2")])
        with pytest.raises(InvalidRequest, match="the attempt's own"):
            await kit.store.add_scores(rollout, 1, [Reward(value=0.5)])
        for unknown in ((rollout, 2), ("nobody", 1)):
            with pytest.raises(NotFound, match="has no attempt"):
                await kit.store.add_scores(*unknown, again)
        with pytest.raises(Conflict, match=r"already 1\.0"):  # within one call too
            await kit.store.add_scores(rollout, 1, [Reward(value=1.0, source="v3"), Reward(value=0.5, source="v3")])
        kept = [(reward.name, reward.source, reward.value) for reward in await kit.store.list_rewards([rollout])]
        assert kept == [("reward", "v1", 1.0), ("reward", "v2", 0.25), ("passed", "v2", 0.0)]

    run(check, kind)


def test_a_reward_counts_once(kind: str) -> None:
    async def check(kit: Kit) -> None:
        await kit.store.enqueue([task()])
        (lease,) = await kit.store.claim("w")
        for _ in range(2):
            await kit.store.add_rewards(lease.ref, [Reward(value=0.5), Reward(value=0.7, source="verifier")])
        with pytest.raises(Conflict):
            await kit.store.add_rewards(lease.ref, [Reward(value=0.1, name="new"), Reward(value=0.6)])
        assert [reward.value for reward in await kit.store.list_rewards([lease.ref.rollout_id])] == [0.5, 0.7]

    run(check, kind)
