import asyncio
import io

import pytest
from rich.console import Console

from leyden.algorithm.sft import collect
from leyden.algorithm.sft.collect import Patience, TooManyFailed, count_tokens, run_rollouts
from leyden.algorithm.sft.report import Board, StepView
from leyden.errors import Unavailable
from leyden.server.sqlstore import SQLStore
from leyden.types import FailureKind, Generation, NewRollout, Reward, RolloutConfig, RolloutState

PATIENT = Patience(max_failed_share=0.5, without_runner=60, without_progress=60)


async def work(store, behave):
    """A runner: ``behave(input)`` is the reward, None for none, or the failure."""
    await store.register_worker("w1", "w", 4)
    while True:
        for lease in await store.claim("w1", limit=4, wait=5):
            outcome = behave(lease.rollout.input)
            if outcome is FailureKind.TIMEOUT:
                await store.add_rewards(lease.ref, [Reward(value=1.0)])  # and then it hung
            if isinstance(outcome, FailureKind):
                await store.fail(lease.ref, outcome, "it broke\nin two lines")
            else:
                await store.complete(lease.ref, [] if outcome is None else [Reward(value=outcome)])


def run(new, behave, patience=PATIENT, console=None):
    board = Board(Console(file=console or io.StringIO()))
    view = StepView("test", None)

    async def scenario():
        async with await SQLStore.open(None) as store:
            worker = asyncio.create_task(work(store, behave)) if behave else None
            try:
                return await run_rollouts(store, new, patience, board, view)
            finally:
                if worker:
                    worker.cancel()

    return asyncio.run(scenario()), view


def rollouts(n, **config):
    return [NewRollout(input=i, config=RolloutConfig(max_attempts=1, **config)) for i in range(n)]


def test_ends_come_back_in_the_order_they_were_queued():
    ended, view = run(rollouts(40), lambda i: float(i % 2))
    assert [end.rollout.input for end in ended] == list(range(40))
    assert [end.reward for end in ended] == [float(i % 2) for i in range(40)]
    assert (view.done, view.total) == (40, 40)
    assert "reward 0.50" in view.note


def test_near_the_end_somebody_is_told_and_not_before():
    left = []

    async def scenario():
        told, view = asyncio.Event(), StepView("test", None)

        def near_end():
            left.append(view.total - view.done)
            told.set()

        async def all_but_three(store):
            await store.register_worker("w1", "w", 40)
            for done in range(40):
                if done == 37:
                    await told.wait()
                (lease,) = await store.claim("w1", wait=5)
                await store.complete(lease.ref, [Reward(value=1.0)])

        async with await SQLStore.open(None) as store:
            worker = asyncio.create_task(all_but_three(store))
            ended = await run_rollouts(store, rollouts(40), PATIENT, Board(Console(file=io.StringIO())), view, near_end)
            await worker
            return ended

    assert len(asyncio.run(scenario())) == 40
    assert left[0] in (3, 4) and min(left) > 0


def test_a_failed_rollout_and_an_unscored_one_have_no_reward():
    behaviours = {0: 0.0, 1: None, 2: FailureKind.INFRASTRUCTURE, 3: 1.0}
    ended, view = run(rollouts(4), behaviours.get)
    assert [end.reward for end in ended] == [0.0, None, None, 1.0]
    assert [end.failed for end in ended] == [False, False, True, False]
    assert ended[2].rollout.state == RolloutState.FAILED
    assert "1 failed" in view.note


def test_what_was_earned_before_a_failure_does_not_count():
    ended, _ = run(rollouts(3), {0: FailureKind.TIMEOUT, 1: 1.0, 2: 0.0}.get)
    assert [end.reward for end in ended] == [None, 1.0, 0.0]


def test_too_many_failures_stop_the_step_and_name_the_first_error():
    with pytest.raises(TooManyFailed, match=r"the first: agent: it broke$"):
        run(rollouts(20), lambda i: FailureKind.AGENT)


def test_a_repeated_call_with_the_same_keys_runs_nothing_twice():
    new = [NewRollout(input=i, idempotency_key=f"run/1/collect/{i}/0") for i in range(6)]
    seen = []

    async def scenario():
        board = Board(Console(file=io.StringIO()))
        async with await SQLStore.open(None) as store:
            worker = asyncio.create_task(work(store, lambda i: seen.append(i) or 1.0))
            first = await run_rollouts(store, new, PATIENT, board, StepView("one", None))
            second = await run_rollouts(store, new, PATIENT, board, StepView("two", None))
            worker.cancel()
            return first, second

    first, second = asyncio.run(scenario())
    assert sorted(seen) == list(range(6))
    assert [end.rollout.id for end in first] == [end.rollout.id for end in second]
    assert [end.reward for end in second] == [1.0] * 6


def test_without_a_runner_a_person_is_told_what_to_start_and_then_it_ends(monkeypatch):
    monkeypatch.setattr(collect, "LOOK_EVERY", 0.02)
    monkeypatch.setattr(collect, "NO_RUNNER_AFTER", 0.0)
    console = io.StringIO()
    with pytest.raises(Unavailable, match="no runner was connected"):
        run(rollouts(2), None, Patience(0.5, without_runner=0.2, without_progress=60), console)
    assert console.getvalue().count("start python examples/math/runners.py") == 1


def test_runners_that_end_nothing_are_not_waited_for_without_end(monkeypatch):
    monkeypatch.setattr(collect, "LOOK_EVERY", 0.02)

    async def scenario():
        async with await SQLStore.open(None) as store:
            await store.register_worker("w1", "w", 4)
            patience = Patience(0.5, without_runner=60, without_progress=0.1)
            await run_rollouts(store, rollouts(2), patience, Board(Console(file=io.StringIO())), StepView("test", None))

    with pytest.raises(Unavailable, match=r"no rollout ended .* although 1 runners live"):
        asyncio.run(scenario())


def test_what_runs_is_shown_beside_what_has_ended(monkeypatch):
    monkeypatch.setattr(collect, "LOOK_EVERY", 0.02)
    new = [NewRollout(input=i, run_id="run-1", iteration=1) for i in range(12)]

    async def scenario():
        async with await SQLStore.open(None) as store:
            await store.start_run("run-1", {})
            await store.register_worker("w1", "w", 4)
            view = StepView("test", None)
            waiting = asyncio.create_task(run_rollouts(store, new, PATIENT, Board(Console(file=io.StringIO())), view))
            first, *_ = await store.claim("w1", limit=4, wait=5)
            await store.complete(first.ref, [Reward(value=1.0)])
            while view.done != 1:
                await asyncio.sleep(0.01)
            waiting.cancel()
            return view.note

    assert asyncio.run(asyncio.wait_for(scenario(), 20)) == "3 running, reward 1.00"


def test_the_tokens_of_a_call_with_several_choices_are_read_once():
    def generation(call, choice, **values):
        ids = {"id": f"{call}-{choice}", "call_id": call, "rollout_id": "r", "attempt": 1, "model": "m", "started_at": 0, "latency": 0.1}
        return Generation(**ids, choice=choice, **values)

    shared = {"prompt_token_ids": [1, 2, 3], "prompt_tokens": 3, "completion_tokens": 5}
    calls = [generation("a", 0, response_token_ids=[4, 5], **shared), generation("a", 1, response_token_ids=[4, 5, 6], **shared)]
    calls += [generation("b", 0, prompt_tokens=7, completion_tokens=2), generation("c", 0, status="error")]
    assert count_tokens(calls) == {"read": 10, "sampled": 7}
