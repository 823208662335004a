"""Whatever an agent, its spans, a hook or a tracer does: its attempt ends at once, by name, and is not left to be lost with the lease."""

from __future__ import annotations

import asyncio
import functools
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import pytest

from leyden.errors import Conflict, LeydenError, UsageError
from leyden.ports import reserve_port
from leyden.runners import PoolConfig, Runner, RunnerConfig, RunnerPool, endpoints, rollout
from leyden.runners.delivery import LEFT_OUT
from leyden.runners.hooks import Hook, Observers
from leyden.runners.loading import make_object
from leyden.runners.runner import Ending
from leyden.runners.tracer import Tracer, current_recorder
from leyden.server import wire
from leyden.server.client import StoreClient
from leyden.server.interface import AttemptEnd
from leyden.server.serving import listening
from leyden.server.sqlstore import SQLStore
from leyden.types import LLM, AttemptState, FailureKind, LeaseRef, NewRollout, Reward, Rollout, RolloutConfig, RolloutState, Span

LIMIT = 30.0  # seconds until a test that hangs is told so; less than the lease, so that no attempt ends by being lost


class Verdict(BaseException):
    """As test frameworks raise them."""


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def note(value: Any, times: int = 1) -> float:
    recorder = current_recorder()
    assert recorder is not None
    for _ in range(times):
        recorder.note("said", {"value": value})
    return 1.0


def throw(error: BaseException) -> float:
    raise error


DEEDS: dict[str, Callable[[], float]] = {
    "no harm": lambda: note("fine"),
    "say what is not JSON": lambda: note("fine") + note(object()) + note(b"\xff") - 2.0,
    "say too much at once": lambda: note("x" * 50_000, times=7),
    "say too much in one": lambda: note("x" * 500_000),
    "raise a verdict": lambda: throw(Verdict("no")),
    "raise without a text": lambda: throw(Mute()),
    "raise a group": lambda: throw(BaseExceptionGroup("several", [Verdict()])),
}


@rollout
async def agent(task: str) -> float:
    return DEEDS[task]() if task in DEEDS else 1.0


class Exits(Hook):
    async def on_rollout_end(self, **about: Any) -> None:
        sys.exit("a hook")


class Fails(Tracer):
    def trace(self, rollout: Rollout) -> AbstractContextManager[None]:
        raise RuntimeError("no collector")


class Picky(StoreClient):
    async def complete(self, ref: LeaseRef, rewards: Any = ()) -> Rollout:
        raise Conflict("reward 'reward' is already 0.5")

    async def end_attempts(self, ends: Sequence[AttemptEnd]) -> list[LeydenError | None]:
        return [Conflict("reward 'reward' is already 0.5") for _ in ends]


def ran(
    task: str, observers: Observers | None = None, connect: Callable[[str], StoreClient] = StoreClient
) -> tuple[Rollout, list[Span], list[Reward]]:
    """One task, run by one runner in this process; the rollout, its spans and its rewards."""

    async def scenario() -> tuple[Rollout, list[Span], list[Reward]]:
        async with await SQLStore.open(sweep_every=0.1) as store, listening(store) as where:
            runner = Runner(agent, lambda: connect(where.url), RunnerConfig(max_rollouts=1), observers=observers)
            (item,) = await store.enqueue([NewRollout(input=task, config=RolloutConfig(max_attempts=1))])
            assert await runner.run() is Ending.STOPPED
            return await store.get_rollout(item.id), await store.list_spans(item.id), await store.list_rewards([item.id])

    return asyncio.run(asyncio.wait_for(scenario(), LIMIT))


@pytest.mark.parametrize(
    ("task", "kept", "reason"),
    [
        ("no harm", 1, None),
        ("say what is not JSON", 3, None),  # as a text
        ("say too much at once", 7, None),
        ("say too much in one", 0, "said: the body is larger"),
    ],
)
def test_a_span_that_the_store_refuses_costs_neither_the_answer_nor_the_other_spans(
    task: str, kept: int, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "MAX_BODY", 200_000)
    done, spans, rewards = ran(task)
    assert done.state is RolloutState.SUCCEEDED and [reward.value for reward in rewards] == [1.0]
    assert len([span for span in spans if span.name == "said"]) == kept
    told = [span for span in spans if span.name == LEFT_OUT]
    assert len(told) == (reason is not None)
    if reason:
        assert str(told[0].attributes["leyden.reason"]).startswith(reason)


def test_spans_beyond_what_an_attempt_may_keep_are_counted_where_a_person_finds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leyden.runners.tracer.MAX_SPANS", 3)
    _, spans, _ = ran("say too much at once")
    assert [span.name for span in spans].count("said") == 3
    (told,) = [span for span in spans if span.name == LEFT_OUT]
    assert told.attributes == {"leyden.count": 4, "leyden.reason": "an attempt keeps 3 spans"}


@pytest.mark.parametrize(
    ("task", "error"),
    [
        ("raise a verdict", "Verdict: no"),
        ("raise without a text", "Mute: (it has no text)"),
        ("raise a group", "BaseExceptionGroup: several (1 sub-exception)"),
    ],
)
def test_what_is_no_ordinary_exception_fails_its_attempt_as_the_agents_fault(task: str, error: str) -> None:
    done, _, _ = ran(task)
    assert (done.state, done.failure, done.error) == (RolloutState.FAILED, FailureKind.AGENT, error)


def test_a_hook_that_exits_fails_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    done, _, rewards = ran("no harm", Observers([Exits()]))
    assert done.state is RolloutState.SUCCEEDED and len(rewards) == 1
    assert "hook Exits.on_rollout_end failed (time 1): SystemExit: a hook" in capsys.readouterr().err


def test_a_tracer_that_fails_fails_the_attempt_by_name() -> None:
    done, _, _ = ran("no harm", Observers(tracer=Fails()))
    assert (done.failure, done.error) == (FailureKind.INFRASTRUCTURE, "the tracer failed: RuntimeError: no collector")


def test_an_answer_that_the_store_refuses_fails_the_attempt_by_name() -> None:
    done, _, rewards = ran("no harm", connect=Picky)
    assert (done.failure, done.error) == (FailureKind.AGENT, "the store refused its end: reward 'reward' is already 0.5")
    assert rewards == []


@pytest.mark.parametrize("endpoint", ["localhost:8000/v1", "http://127.0.0.1:99999/v1", "http://a..b/v1", "http://[/v1", ""])
def test_an_endpoint_that_is_no_url_is_nobody_who_could_be_gone(endpoint: str) -> None:
    assert not asyncio.run(endpoints.is_gone(ValueError("what is this?"), [LLM(endpoint=endpoint, model="m")]))


def test_rollouts_handed_back_because_no_llm_answers_do_not_count_as_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "_LONGEST_PAUSE", 0.1)
    with closing(reserve_port("127.0.0.1", 0)) as socket:
        nowhere = f"http://127.0.0.1:{socket.getsockname()[1]}/v1"

    @rollout
    async def patient(task: str, rollout: Rollout) -> float:
        if rollout.released < 2:
            raise ValueError("nobody said anything")
        return 1.0

    async def scenario() -> None:
        async with await SQLStore.open(sweep_every=0.1) as store, listening(store) as where:
            await store.add_resources({"llm": LLM(endpoint=nowhere, model="m")})
            config = RolloutConfig(max_attempts=1)
            first, second = await store.enqueue([NewRollout(input=text, config=config) for text in ("first", "second")])
            runner = Runner(patient, lambda: StoreClient(where.url), RunnerConfig(concurrency=1, max_rollouts=1))
            assert await runner.run() is Ending.STOPPED
            ends = [await store.get_rollout(item.id) for item in (first, second)]
            assert sorted(item.state for item in ends) == [RolloutState.QUEUED, RolloutState.SUCCEEDED]
            for item in ends:
                states = {attempt.state for attempt in await store.list_attempts(item.id)}
                assert states <= {AttemptState.RELEASED, AttemptState.SUCCEEDED}

    asyncio.run(asyncio.wait_for(scenario(), LIMIT))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("class Wrong:\n    def __init__(self):\n        raise SystemExit(1)", r"Wrong\(\) failed: SystemExit: 1"),
        ("class Wrong:\n    def __init__(self, url): ...", r"Wrong\(\) failed: TypeError"),
        ("Wrong = 3", "is no class but a int"),
    ],
)
def test_a_hook_that_cannot_be_made_is_one_error_of_the_pool(source: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "hooks_that_fail.py"
    path.write_text(source + "\nasync def agent(task): ...\n")
    config = PoolConfig(agent=f"{path}:agent", store_url="http://127.0.0.1:9", n=1, hooks=(f"{path}:Wrong",))
    with pytest.raises(UsageError, match=message):
        asyncio.run(asyncio.wait_for(RunnerPool(config).run(), LIMIT))


def test_a_tracer_without_its_extra_is_told_when_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "leyden.runners.otel", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(UsageError) as raised:
        make_object("leyden.runners.tracer:OtelTracer")
    assert raised.value.hint == "pip install 'leyden[runners]'"


def test_runners_that_share_a_process_join_its_tracer_provider_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.sdk")
    from leyden.runners import otel

    provider, both, joined = otel.TracerProvider(), threading.Barrier(2), []

    def join(processor: Any) -> None:
        joined.append(processor)
        try:
            both.wait(0.5)  # would another come in as well?
        except threading.BrokenBarrierError:
            return

    monkeypatch.setattr(provider, "add_span_processor", join)
    monkeypatch.setattr(otel.trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(otel, "_join", functools.cache(otel._join.__wrapped__))
    threads = [threading.Thread(target=otel.join) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(joined) == 1
