"""What the loop's fault tests share: the command as a process, what it leaves behind, and when a moment has come."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
from loop_agent import GATES

from leyden.algorithm.sft.rundir import RunDir
from leyden.failpoint import VARIABLE
from leyden.models.registry import Registry
from leyden.process import MARKER, find_by_marker, new_marker
from leyden.server.sqlstore import SQLStore

COMMAND = Path(__file__).with_name("loop_command.py")
PATIENCE = 600.0  # seconds: bounds a hang, and measures nothing


class Command:
    """One start of the loop's command on a directory of its own, with all it starts found by a marker."""

    def __init__(self, directory: Path, model: Path, *options: str, failpoint: str = "", talk: str = "talk.log") -> None:
        self.directory = directory
        self.gates = directory / "gates"
        self.gates.mkdir(parents=True, exist_ok=True)
        self.marker = new_marker()
        self.talk = directory / talk
        self.code: int | None = None
        one_thread = {"OMP_NUM_THREADS": "1"}  # a tiny model gains nothing from more, and several commands share the cores
        env = os.environ | one_thread | {MARKER: self.marker, GATES: str(self.gates), VARIABLE: failpoint}
        with self.talk.open("w") as out:
            command = [sys.executable, str(COMMAND), str(model), str(directory / "runs"), *options]
            self.process = subprocess.Popen(command, env=env, stdout=out, stderr=out)

    @property
    def run(self) -> RunDir:
        return RunDir.find(self.directory / "runs", "@latest")

    @property
    def said(self) -> str:
        return self.talk.read_text()

    def wait(self) -> int:
        """Its exit status, once nothing is left of it."""
        try:
            code = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"it hangs: {self.said}") from None
        until(lambda: not find_by_marker(self.marker), "no process is left")
        self.code = code
        return code

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        assert self.wait() == -signal.SIGKILL

    def children(self, *words: str) -> list[psutil.Process]:
        """Live processes below this one whose command line holds all the words."""
        found = []
        for process in find_by_marker(self.marker):
            try:
                line = " ".join(process.cmdline())
            except psutil.Error:
                continue
            if process.pid != self.process.pid and all(word in line for word in words):
                found.append(process)
        return found


def until(condition: Callable[[], object], what: str, command: Command | None = None) -> None:
    """Wait for a condition on what can be seen from outside; fails where it never comes true."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}\n{command.said if command else ''}"
        assert command is None or command.process.poll() is None or condition(), f"it ended before: {what}\n{command.said}"
        time.sleep(0.02)


def ended(run: RunDir, iteration: int, step: str) -> int:
    """How many rollouts of a step have ended well, as the running store says."""
    rollouts = ask(run, "POST", "/v1/rollouts/query", {"run_id": run.id, "iteration": iteration, "state": "succeeded"})
    return sum(rollout["metadata"]["step"] == step for rollout in rollouts or ())


def lent(run: RunDir) -> str | None:
    """The id of the resources that were lent last: a new one whenever an engine is ready."""
    resources = ask(run, "GET", "/v1/resources")
    return resources["id"] if resources else None


def ask(run: RunDir, method: str, path: str, body: Any = None) -> Any:
    """The running store's answer; None where there is no store, or none yet."""
    try:
        url = json.loads((run.path / "store.json").read_text())["url"]
        return httpx.request(method, f"{url}{path}", json=body, trust_env=False, timeout=10).raise_for_status().json()
    except (OSError, ValueError, httpx.HTTPError):
        return None


def counted(run: RunDir) -> dict[tuple[int, str, str, int], tuple[str, float | None, int]]:
    """Every rollout of a run by what names it in any run → its state, its reward, and how many of its attempts counted."""

    async def read():
        async with await SQLStore.open(run.path / "store.db", sweep_every=None) as store:
            rollouts = await store.list_rollouts(run_id=run.id)
            rewards = await store.list_rewards([rollout.id for rollout in rollouts])
            return rollouts, {reward.rollout_id: reward.value for reward in rewards}

    rollouts, rewards = asyncio.run(read())
    return {
        (r.iteration, r.metadata["step"], r.group, r.metadata["k"]): (r.state.value, rewards.get(r.id), r.attempt - r.released)
        for r in rollouts
    }


def manifests(run: RunDir) -> dict[str, bytes]:
    """Of the finished steps that last: what an engine serves is gone with its driver."""
    paths = run.path.glob("iteration_*/[!.]*.json")
    return {str(path.relative_to(run.path)): path.read_bytes() for path in paths if not path.name.startswith("serve-")}


def registry_is_whole(run: RunDir) -> list[str]:
    """Checks every version's files against its manifest, and returns the names."""
    registry = Registry(run.models)
    for version in registry.list():
        assert registry.verify_files(version) == []
    return [version.name for version in registry.list()]


def copy(source: Path, target: Path) -> Path:
    """A directory as a crash left it."""
    return Path(shutil.copytree(source, target, symlinks=True))
