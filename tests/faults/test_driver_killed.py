"""SIGKILL of the driver at three moments in each of the seven steps: the same command goes on and comes to the same end.

One run is killed at each moment in turn. What it leaves is copied, and the same command goes on with the copy to the end, while the
original goes on to its next death: what comes before a step is waited for once, not 21 times.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from loop_room import Command, copy, counted, ended, manifests, registry_is_whole, until
from tinymodel import make_tiny_model

from leyden.algorithm.sft.rundir import RunDir
from leyden.models.registry import Registry
from leyden.process import find_by_marker

pytestmark = pytest.mark.timeout(1500)  # the first test waits for all of the deaths


@dataclass(frozen=True)
class Moment:
    """``failpoint``: where the driver kills itself, for a moment too short to hit. Else it is killed once ``seen`` is true."""

    name: str
    failpoint: str = ""
    seen: Callable[[Command], object] | None = None
    gate: str = ""  # the step in which half of the rollouts do not end


def half(step: str, tasks: int) -> Callable[[Command], object]:
    return lambda command: ended(command.run, 1, step) == tasks // 2


def trains(command: Command) -> object:
    return any(line.get("train_step") == 1 for line in command.run.metrics())


MOMENTS = [
    Moment("serve: begun", "0/serve-version_0:started"),
    Moment("serve: the engine loads its model", seen=lambda command: command.children("leyden.models.embedded.server")),
    Moment("serve: done", "0/serve-version_0:written"),
    Moment("collect: begun", "1/collect:started"),
    Moment("collect: half of the rollouts have ended", seen=half("collect", 8), gate="collect"),
    Moment("collect: not written down yet", "1/collect:done"),
    Moment("select: begun", "1/select:started"),
    Moment("select: not written down yet", "1/select:done"),
    Moment("select: done", "1/select:written"),
    Moment("train: in the middle of it", seen=trains),
    Moment("train: not written down yet", "1/train:done"),
    Moment("train: done", "1/train:written"),
    Moment("verify: begun", "1/verify:started"),
    Moment("verify: in the middle of it", seen=lambda command: command.children("leyden.models.verifier")),
    Moment("verify: the version is in the registry, which is not written down yet", "1/verify:done"),
    Moment("evaluate: begun", "1/evaluate-version_1:started"),
    Moment("evaluate: half of the rollouts have ended", seen=half("evaluate-t1", 6), gate="evaluate-t1"),
    Moment("evaluate: not written down yet", "1/evaluate-version_1:done"),
    Moment("promote: begun", "1/promote:started"),
    Moment("promote: promoted, which is not written down yet", "1/promote:done"),
    Moment("promote: done, without a summary yet", "1/promote:written"),
]


@dataclass(frozen=True)
class Outcome:
    run: RunDir
    before: dict[str, bytes]  # manifests of the steps finished when it was killed
    versions: list[str]  # when it was killed
    code: int
    said: str
    left: int  # processes


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def undisturbed(model, tmp_path_factory) -> RunDir:
    command = Command(tmp_path_factory.mktemp("undisturbed"), model)
    assert command.wait() == 0, command.said
    return command.run


@pytest.fixture(scope="module")
def outcomes(model, undisturbed, tmp_path_factory):
    original = tmp_path_factory.mktemp("killed")
    copies = tmp_path_factory.mktemp("copies")
    found: dict[str, Future[Outcome]] = {}
    with ThreadPoolExecutor(2) as pool:
        for number, moment in enumerate(MOMENTS):
            kill_at(moment, original, model)
            found[moment.name] = pool.submit(go_on, copy(original, copies / str(number)), model)
        yield found


def kill_at(moment: Moment, directory: Path, model: Path) -> None:
    command = Command(directory, model, failpoint=moment.failpoint)
    gate = command.gates / moment.gate
    if moment.gate:
        gate.touch()
    if moment.seen is None:
        assert command.wait() == -9, f"{moment.name} never came: {command.said}"
        return
    seen = moment.seen
    until(lambda: (directory / "runs" / "latest").exists() and seen(command), moment.name, command)
    command.kill()
    if moment.gate:
        gate.unlink()


def go_on(directory: Path, model: Path) -> Outcome:
    run = RunDir.find(directory / "runs", "@latest")
    before, versions = manifests(run), registry_is_whole(run)
    command = Command(directory, model)
    code = command.wait()
    return Outcome(run, before, versions, code, command.said, len(find_by_marker(command.marker)))


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.name.replace(" ", "-"))
def test_the_same_command_goes_on_to_the_end_of_an_undisturbed_run(moment, outcomes, undisturbed):
    killed = outcomes[moment.name].result()
    assert killed.code == 0, killed.said
    assert f"run {killed.run.id} goes on" in killed.said
    assert killed.left == 0

    # What counts is the same: each rollout once, with its reward, and nobody's death cost an attempt.
    assert counted(killed.run) == counted(undisturbed)

    # What was finished was not done again.
    after = manifests(killed.run)
    assert killed.before.items() <= after.items()
    assert after.keys() == manifests(undisturbed).keys()

    # Versions appeared once, whole, and the pointers say what they say without a death.
    assert set(killed.versions) <= {"version_0", "version_1"}
    assert registry_is_whole(killed.run) == ["version_0", "version_1"]
    assert list(killed.run.models.glob(".version_*")) == []
    assert pointers(killed.run) == pointers(undisturbed) == ("version_1", "version_0", ["version_0", "version_1"])

    # And so does the summary, but for what chance and time decide.
    assert story(killed.run) == story(undisturbed)


def test_a_fork_begins_with_the_champion_and_is_gone_on_with_like_any_run(model, undisturbed, tmp_path):
    directory = copy(undisturbed.path.parents[1], tmp_path / "forked")
    for _ in range(2):  # the second time the same command goes on with the fork, and redoes the step that its death cut off
        command = Command(directory, model, "--fork", undisturbed.id, failpoint="0/evaluate-version_1:done")
        assert command.wait() == -9, command.said
    forks = [run for run in RunDir.in_directory(directory / "runs") if run.id != undisturbed.id]
    assert [run.config["forked_from"] for run in forks] == [undisturbed.id]
    assert registry_is_whole(forks[0]) == ["version_0", "version_1"]
    assert Registry(forks[0].models).get("@champion").manifest.run_id == undisturbed.id
    assert f"run {forks[0].id} goes on" in command.said


def pointers(run: RunDir) -> tuple[str | None, str | None, list[str]]:
    pointers = Registry(run.models).pointers
    return pointers.champion, pointers.previous, [move.champion for move in pointers.history]


def story(run: RunDir) -> dict[str, object]:
    summary = json.loads((run.path / "summary.json").read_text())
    (iteration,) = summary["iterations"]
    return {
        "champion": summary["champion"],
        "versions": summary["versions"],
        "collection": {name: iteration["collection"][name] for name in ("scored", "failed", "unscored", "mean_reward", "rows")},
        "selected": iteration["selection"]["kept"],
        "promoted": (iteration["promoted"], iteration["reason"]),
        "trained": (iteration["training"]["rows"], iteration["training"]["steps"]),
        "steps": set(summary["seconds"]),
    }
