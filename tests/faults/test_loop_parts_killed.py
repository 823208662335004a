"""SIGKILL of whatever the loop works with: it goes on, or it stops with one line and the same command goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from loop_room import Command, counted, ended, lent, registry_is_whole, until
from tinymodel import make_tiny_model

pytestmark = pytest.mark.timeout(900)

ENGINE, RUNNER, STORE = ("leyden.models.embedded.server",), ("leyden.runners.process",), ("leyden", "store", "--database")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


def kill(command: Command, *words: str) -> None:
    """SIGKILL the part with these words in its command line."""
    (process,) = command.children(*words)
    process.kill()


def pause(command: Command, iteration: int, step: str, seen: int) -> None:
    """Until so many rollouts of the step have ended, and the gated half of them waits."""
    latest = command.directory / "runs" / "latest"
    until(lambda: latest.exists() and ended(command.run, iteration, step) == seen, f"half of {step}", command)


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory) -> tuple[Command, Command]:
    """A run that loses its store and its engine while it collects, its engine (and the next one, while it starts) and a runner while it
    evaluates; and a second command."""
    command = Command(tmp_path_factory.mktemp("survivor"), model)
    gates = [command.gates / step for step in ("collect", "evaluate-t1")]
    for gate in gates:
        gate.touch()
    try:
        pause(command, 0, "evaluate-t1", 3)
        kill(command, *ENGINE)
        until(lambda: "starting it again (1 of 2)" in command.said, "the engine's death is told", command)
        until(lambda: command.children(*ENGINE), "the next engine loads its model", command)
        kill(command, *ENGINE)
        until(lambda: "starting it again (2 of 2)" in command.said, "its death is told too", command)
        gates[1].unlink()

        pause(command, 1, "collect", 4)
        second = Command(command.directory, model, "--resume", "@latest", talk="second.log")
        second.wait()
        gates[1].touch()
        kill(command, *STORE)
        until(lambda: "the store died" in command.said, "the store's death is told", command)
        kill(command, *ENGINE)
        until(lambda: command.said.count("starting it again (1 of 2)") == 2, "an engine's death in collect is told", command)
        gates[0].unlink()

        pause(command, 1, "evaluate-t1", 3)
        kill(command, *RUNNER)
        gates[1].unlink()
        command.wait()
    finally:
        if command.process.poll() is None:
            command.kill()
    return command, second


@pytest.fixture(scope="module")
def survivor(whole) -> Command:
    return whole[0]


def test_a_second_command_is_refused_by_the_pid_of_the_first(whole):
    first, second = whole
    assert second.code == 2
    assert f"error: run {first.run.id} is being driven by process {first.process.pid}" in second.said


def test_the_loop_outlives_its_engine_its_store_and_a_runner(survivor):
    assert survivor.code == 0, survivor.said
    summary = json.loads((survivor.run.path / "summary.json").read_text())
    assert summary["champion"] == "version_1"
    assert [version["pass_rate"] for version in summary["versions"]] == [pytest.approx(1 / 6, abs=1e-3), 1.0]
    assert registry_is_whole(survivor.run) == ["version_0", "version_1"]


def test_every_rollout_counts_once_and_only_a_runners_death_costs_an_attempt(survivor):
    outcomes = counted(survivor.run)
    assert len(outcomes) == 8 + 4 * 6
    for (iteration, step, _, _), (state, reward, attempts) in outcomes.items():
        assert (state, reward is not None) == ("succeeded", True)
        if (iteration, step) != (1, "evaluate-t1"):
            assert attempts == 1, f"{step} of iteration {iteration}"


def test_each_death_is_one_line(survivor):
    deaths = [line for line in survivor.said.splitlines() if "starting it again" in line]
    assert len(deaths) == 4, survivor.said
    assert sum("the engine for" in line and "SIGKILL" in line for line in deaths) == 3
    assert "Traceback" not in survivor.said


def test_an_engine_that_keeps_dying_stops_the_run_and_the_same_command_goes_on(model, tmp_path):
    command = Command(tmp_path, model)
    gate = command.gates / "collect"
    gate.touch()
    pause(command, 1, "collect", 4)
    last = None
    for _ in range(3):
        until(lambda last=last: lent(command.run) not in (None, last), "an engine serves", command)
        last = lent(command.run)
        kill(command, *ENGINE)
    assert command.wait() == 3
    error, *hint = command.said.partition("error: ")[2].splitlines()
    assert error.startswith("the engine for")
    assert hint[0].startswith("hint: last lines of")
    assert f"--resume {command.run.id}" in command.said
    assert not command.run.has_ended
    before = counted(command.run)
    assert {state for state, _, _ in before.values()} == {"succeeded", "queued"}
    assert all(attempts == 0 for state, _, attempts in before.values() if state == "queued")

    gate.unlink()
    again = Command(tmp_path, model)
    assert again.wait() == 0, again.said
    assert {(state, attempts) for state, _, attempts in counted(again.run).values()} == {("succeeded", 1)}


def test_a_training_child_that_is_killed_is_told_with_its_log_and_leaves_no_version(model, tmp_path):
    command = Command(tmp_path, model)
    until(lambda: command.children("leyden.algorithm.sft.child"), "it trains", command)
    kill(command, "leyden.algorithm.sft.child")
    assert command.wait() == 3
    said = command.said.splitlines()
    assert any(line.startswith("error: the training failed") for line in said)
    assert any("last lines of" in line and "train-version_1.log" in line for line in said)
    assert f"--resume {command.run.id}" in command.said
    assert "Traceback" not in command.said
    assert registry_is_whole(command.run) == ["version_0"]
    assert list(command.run.models.glob(".version_*")) == []

    again = Command(tmp_path, model)
    assert again.wait() == 0, again.said
    assert "collect with version_0: 4 of 8 passed, 8 rows, done before" in again.said
    assert registry_is_whole(again.run) == ["version_0", "version_1"]
