import asyncio
import io
import json

import pytest
from rich.console import Console

from leyden.algorithm.sft.driver import driving
from leyden.algorithm.sft.report import Board
from leyden.algorithm.sft.rundir import RunDir
from leyden.algorithm.sft.steps import Steps, fingerprint
from leyden.errors import LeaseLost, UsageError
from leyden.server.sqlstore import SQLStore


def drive(run, work, said=None):
    """``work(steps, store)`` under a driver of its own."""

    async def scenario():
        async with await SQLStore.open(run.path / "store.db") as store, driving(store, run.id, {}, take_over=True) as driver:
            return await work(Steps(run, Board(Console(file=said or io.StringIO(), width=200)), driver), store)

    return asyncio.run(scenario())


async def one_step(steps, store):
    async with steps.open(1, "evaluate-version_0", "evaluate", {"tasks": 4, "seed": 0}) as step:
        step.outputs = {"passed": 2}
        step.view.update(note="2 of 4")


@pytest.fixture
def run(tmp_path):
    return RunDir.create(tmp_path, "one", {})


def test_a_finished_step_leaves_a_manifest_and_its_time(run):
    async def work(steps, store):
        await one_step(steps, store)
        return steps.seconds

    seconds = drive(run, work)
    manifest = json.loads((run.path / "iteration_1" / "evaluate-version_0.json").read_text())
    assert (manifest["run"], manifest["epoch"], manifest["outputs"]) == ("one", 1, {"passed": 2})
    assert manifest["inputs"] == {"tasks": 4, "seed": 0}
    assert manifest["fingerprint"] == fingerprint({"seed": 0, "tasks": 4})
    assert set(seconds) == {"evaluate"}


def test_a_step_that_fails_leaves_no_manifest(run):
    async def work(steps, store):
        async with steps.open(1, "train", "train", {}):
            1 / 0  # noqa: B018

    with pytest.raises(ZeroDivisionError):
        drive(run, work)
    assert not (run.path / "iteration_1").exists()


def test_a_finished_step_gives_a_later_driver_what_it_gave(run):
    drive(run, one_step)
    said = io.StringIO()

    async def work(steps, store):
        unknown = steps.finished(1, "train", {})
        return unknown, steps.finished(1, "evaluate-version_0", {"seed": 0, "tasks": 4}), steps.seconds

    unknown, outputs, seconds = drive(run, work, said)
    assert unknown is None
    assert outputs == {"passed": 2}
    assert set(seconds) == {"evaluate"}  # the time it took counts once more
    assert "✓ evaluate: 2 of 4, done before" in said.getvalue()


def test_a_finished_step_that_was_given_something_else_is_refused_by_the_name_of_what_changed(run):
    drive(run, one_step)

    async def work(steps, store):
        steps.finished(1, "evaluate-version_0", {"tasks": 5, "seed": 0})

    with pytest.raises(UsageError, match=r"evaluate-version_0 of iteration 1 of run one .* tasks changed") as caught:
        drive(run, work)
    assert "--fork one" in caught.value.hint
    assert "--new" in caught.value.hint


def test_a_driver_whose_run_was_taken_over_writes_nothing_down(run):
    async def work(steps, store):
        async with steps.open(1, "collect", "collect", {}):
            await store.start_run(run.id, {}, take_over=True)

    with pytest.raises(LeaseLost):
        drive(run, work)
    assert not (run.path / "iteration_1").exists()
