"""Where a run's time went: what counts as generation and as training, and that nothing of it is lost or counted twice."""

from __future__ import annotations

import asyncio
import io
import json
import time

import instant_loop
import pytest
from hypothesis import given
from hypothesis import strategies as st
from instant_loop import SMALL, play
from rich.console import Console

from leyden.algorithm.sft import steps
from leyden.algorithm.sft.collect import read_call_times, read_captured, read_ended
from leyden.algorithm.sft.cost import Cost, seconds_covered
from leyden.algorithm.sft.job import TrainProgress
from leyden.algorithm.sft.report import Board
from leyden.algorithm.sft.settings import SFTConfig
from leyden.algorithm.sft.summary import print_summary
from leyden.errors import LeaseLost
from leyden.server.sqlstore import SQLStore
from leyden.types import FailureKind, Generation, NewRollout, RolloutConfig

intervals = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda pair: (pair[0], pair[0] + pair[1])), max_size=12)


@given(intervals, st.integers(0, 40), st.integers(0, 40))
def test_a_moment_counts_once_however_many_calls_cover_it_and_only_within_the_step(calls, begin, length):
    end = begin + length
    moments = {moment for start, stop in calls for moment in range(start, stop) if begin <= moment < end}
    assert seconds_covered(calls, begin, end) == pytest.approx(len(moments) / 1e6)


# -- the lines of a run's metrics ----------------------------------------------------------------------------------------------


def lines(*told):
    """(seconds, step, fields …) as lines of ``metrics.jsonl``; a step of iteration 1."""
    return [{"time": round(at * 1e6), "step": step, "iteration": 1, **fields} for at, step, fields in told]


STARTED = {"started": True}

WHOLE = lines(
    (100, "driver", {}),
    (139, "import", {"seconds": 30}),
    (140, "serve-version_0", STARTED),
    (148, "serve-version_0", {"seconds": 8, "generation": 0}),
    (148, "collect", STARTED),
    (198, "collect", {"passed": 3}),
    (200, "collect", {"seconds": 52, "generation": 47.5}),
    (202, "stop", {"seconds": 2}),
    (203, "train", STARTED),
    (211, "train", {"train_step": 0, "loss": None}),
    (221, "train", {"train_step": 1, "loss": 0.5}),
    (231, "train", {"train_step": 2, "loss": 0.4}),
    (236, "train", {"seconds": 33, "generation": 0}),
    (236, "verify", STARTED),
    (248, "verify", {"seconds": 12, "generation": 0}),
    (250, "end", {}),
)


def test_each_step_says_how_much_of_it_was_generation_training_and_neither():
    cost = Cost.read(WHOLE)
    steps_of = {step["step"]: step for step in cost.as_dict()["steps"]}
    assert steps_of["collect"] == {"iteration": 1, "step": "collect", "seconds": 52, "generation": 47.5, "training": 0, "own": 4.5}
    assert steps_of["train"] == {"iteration": 1, "step": "train", "seconds": 33, "generation": 0, "training": 20, "own": 13}
    assert (steps_of["serve-version_0"]["own"], steps_of["verify"]["own"]) == (8, 12)
    assert cost.own == {
        "importing the model": 30, "serving and switching": 12, "verifying": 12, "starting store and runners": 10,
        "loading the trainer": 8, "saving and merging": 5, "rollouts while no call was at an engine": 4.5, "between steps": 1,
    }  # fmt: skip
    assert (cost.total, cost.unknown, cost.share) == (150, 0, 82.5 / 150)
    assert str(cost) == (
        "own cost: 55 % of 2 min 30 s: 30 s importing the model, 12 s serving and switching, 12 s verifying, 10 s starting store and "
        "runners, 8 s loading the trainer, 5 s saving and merging, 4 s rollouts while no call was at an engine, 1 s between steps"
    )


def test_the_time_between_two_drivers_is_nobodys():
    assert Cost.read(lines((0, "driver", {}), (10, "end", {}), (1000, "driver", {}), (1005, "end", {}), (1020, "end", {}))).total == 30


def test_of_a_step_that_was_cut_off_it_is_said_that_nobody_knows():
    killed = lines((0, "driver", {}), (5, "collect", STARTED), (15, "collect", {"passed": 1}))
    cost = Cost.read([*killed, *WHOLE])
    assert (cost.total, cost.unknown, cost.share) == (165, 10, None)
    unknown = {"generation": None, "training": None, "own": None}
    assert cost.as_dict()["steps"][1] == {"iteration": 1, "step": "collect", "seconds": 10} | unknown
    assert str(cost).startswith("own cost: 53 to 59 % of 2 min 45 s: 30 s importing")
    assert str(cost).endswith("; 10 s in steps that were cut off or not timed: into what is not known")


@pytest.mark.parametrize("untimed", ["collect", "train"])
def test_what_a_step_did_not_measure_is_not_guessed(untimed):
    """An older Leyden did not say how long calls were at an engine; a training child may end without a word of its progress."""
    if untimed == "collect":
        told = [{name: line[name] for name in line if name != "generation"} for line in WHOLE]
    else:
        told = [line for line in WHOLE if "train_step" not in line]
    cost = Cost.read(told)
    assert cost.share is None
    assert cost.unknown == {"collect": 52, "train": 33}[untimed]


KINDS = st.sampled_from(["serve-v", "collect", "train", "train-control", "stop", "evaluate-v", "cut off"])


@st.composite
def histories(draw):
    """Lines of one to three drivers: whole steps, steps that were cut off, things timed that are no step, and pauses between them."""
    now, told = 0, []

    def later(most=50):
        nonlocal now
        now += draw(st.integers(0, most))
        return now

    for _ in range(draw(st.integers(1, 3))):
        told.append((later(), "driver", {}))
        for kind in draw(st.lists(KINDS, max_size=6)):
            if kind == "stop":
                before = now
                told.append((later(), "stop", {"seconds": draw(st.integers(0, now - before))}))
                continue
            begin = later()
            told.append((begin, kind, STARTED))
            if kind == "cut off":
                break
            told += [(later(9), "train", {"train_step": step}) for step in range(draw(st.integers(0, 3))) if kind.startswith("train")]
            took = later() - begin
            told.append((now, kind, {"seconds": took, "generation": draw(st.integers(0, took))}))
    return lines(*told)


@given(histories())
def test_the_parts_of_any_history_add_up_to_the_time_that_its_drivers_took(history):
    cost = Cost.read(history)
    beginnings = [place for place, line in enumerate(history) if line["step"] == "driver"]
    drivers = [history[begin:end] for begin, end in zip(beginnings, [*beginnings[1:], None], strict=True)]
    assert cost.total == pytest.approx(sum(driver[-1]["time"] - driver[0]["time"] for driver in drivers) / 1e6)
    told = cost.as_dict()
    spent = told["seconds"] + told["generation_seconds"] + told["training_seconds"] + told["unknown_seconds"]
    assert spent == pytest.approx(told["total_seconds"], abs=0.002)
    assert all(seconds >= 0 for seconds in told["parts"].values())
    for step in told["steps"]:
        if step["own"] is not None:
            assert step["own"] + step["generation"] + step["training"] == pytest.approx(step["seconds"], abs=0.002)


# -- runs ----------------------------------------------------------------------------------------------------------------------


def two_calls(rollout, version):
    """Two calls that overlap, and were there a moment ago."""
    now = time.time_ns() // 1000
    (made,) = instant_loop.one_call(rollout, version)
    return [made | {"started_at": now - 2000, "latency": 0.002}, made | {"started_at": now - 1500, "latency": 0.0005}]


def rewards(version, task, mode):
    return int(task.split()[1]) % 2


async def training(job, *, on_progress, **rest):
    on_progress(TrainProgress(step=0, steps=1))
    await asyncio.sleep(0.02)  # what a step takes
    on_progress(TrainProgress(step=1, steps=1, loss=1.0))
    return await untold(job, on_progress=on_progress, **rest)


untold = instant_loop._train


@pytest.fixture
def told(monkeypatch):
    """A training that says how far it is, as a real one does."""
    monkeypatch.setattr(instant_loop, "_train", training)


def test_a_whole_runs_parts_add_up_to_its_wall_time(told, tmp_path, monkeypatch):
    played = play(tmp_path, monkeypatch, rewards, SFTConfig(selection=SMALL, random_control=True), calls=two_calls)
    summary = json.loads((played.run.path / "summary.json").read_text())
    cost, times = summary["own_cost"], [line["time"] for line in played.run.metrics()]
    assert cost["total_seconds"] == pytest.approx((times[-1] - times[0]) / 1e6, abs=0.01)
    assert cost["seconds"] + cost["generation_seconds"] + cost["training_seconds"] == pytest.approx(cost["total_seconds"], abs=0.01)
    assert cost["unknown_seconds"] == 0
    assert 0 < cost["share"] < 1
    assert sum(cost["parts"].values()) == pytest.approx(cost["seconds"], abs=0.01)
    assert sum(step["seconds"] for step in cost["steps"]) == pytest.approx(cost["total_seconds"], abs=0.1)
    by_step = {step["step"]: step for step in cost["steps"]}
    assert by_step["train"]["training"] >= 0.02
    assert by_step["train-control"]["training"] >= 0.02
    for step in ("collect", "evaluate-version_0", "evaluate-version_1"):
        assert 0 < by_step[step]["generation"] <= by_step[step]["seconds"]
    assert all(step["own"] >= 0 for step in cost["steps"])

    out = io.StringIO()
    print_summary(played.summary, Console(file=out, width=400), Board(Console(file=io.StringIO())))
    assert f"{played.summary.cost}\n" in out.getvalue()
    assert "own cost: " in out.getvalue()


def test_a_run_that_goes_on_says_what_its_first_driver_took_with_it(told, tmp_path, monkeypatch):
    def die(name):
        if name == "1/collect:done":
            raise LeaseLost("the driver died")

    config = SFTConfig(selection=SMALL)
    with monkeypatch.context() as dying:
        dying.setattr(steps, "failpoint", die)
        with pytest.raises(LeaseLost):
            play(tmp_path, monkeypatch, rewards, config, calls=two_calls)
    cost = play(tmp_path, monkeypatch, rewards, config, calls=two_calls).summary.cost
    cut_off = [stretch for stretch in cost.stretches if not stretch.known]
    assert [stretch.step for stretch in cut_off] == ["collect"]
    assert cost.share is None
    evaluated = [stretch for stretch in cost.stretches if stretch.step == "evaluate-version_0"]
    assert len(evaluated) == 1  # by the first driver, which timed it
    assert evaluated[0].generation > 0
    assert "into what is not known" in str(cost)


def test_calls_of_attempts_that_failed_were_at_an_engine_too():
    async def scenario():
        async with await SQLStore.open(None) as store:
            await store.register_worker("w1", "w", 1)
            (rollout,) = await store.enqueue([NewRollout(input=1, config=RolloutConfig(retry_delay=0))])
            for attempt in (1, 2):
                (lease,) = await store.claim("w1", limit=1, wait=5)
                call = {"id": f"g{attempt}", "call_id": f"g{attempt}", "rollout_id": rollout.id, "attempt": attempt, "model": "m"}
                await store.add_generations(lease.ref, [Generation(**call, started_at=attempt * 10_000_000, latency=0.25)])
                if attempt == 1:
                    await store.fail(lease.ref, FailureKind.INFRASTRUCTURE, "it broke")
                else:
                    await store.complete(lease.ref, [])
            generations, _ = await read_captured(store, [rollout.id])
            return await read_call_times(store, await read_ended(store, [rollout.id]), generations)

    assert sorted(asyncio.run(scenario())) == [(10_000_000, 10_250_000), (20_000_000, 20_250_000)]
