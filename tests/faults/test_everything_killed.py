"""Store, runners and algorithm, started as the README's three terminals start them, all killed at once in the middle and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from store_process import free_port
from tinymodel import make_tiny_model

from leyden.process import MARKER, end_leftovers, find_by_marker, new_marker

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).parents[2]
AGENT = f"{Path(__file__).with_name('everything_agent.py')}:agent"
TRAIN, HELDOUT = 120, 8  # a fifth of a random model's answers end by themselves: enough to train on
PATIENCE = 600.0  # seconds: bounds a hang, and measures nothing


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.02)


class Terminals:
    """The three commands in a directory. With two ports there are two stores, and the runners use the second."""

    def __init__(self, directory: Path, model: Path, database: str, stores: int) -> None:
        self.directory = directory
        directory.mkdir()
        self.model = model
        self.database = database
        self.ports = [free_port() for _ in range(stores)]
        self.gate = directory / "gate"
        self.marker = ""
        self.algorithm: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.marker = new_marker()
        for port in self.ports:
            self._start("store", "-m", "leyden", "store", "--port", str(port), "--database", self.database)
        until(lambda: all(self._answers(port) for port in self.ports), "the stores listen")
        self._start("runners", "-m", "leyden", "runners", AGENT, "-n", "2", "--lease", "5", "--store", self.url(self.ports[-1]))
        driver = (str(ROOT / "examples/math/sft_algorithm.py"), "--store", self.url(self.ports[0]))
        options = f"--model {self.model} --train {TRAIN} --heldout {HELDOUT} --max-tokens 200 --engine embedded"
        self.algorithm = self._start("algorithm", *driver, *options.split())

    @contextmanager
    def running(self) -> Iterator[None]:
        self.start()
        try:
            yield
        finally:
            self.end()

    def kill(self) -> None:
        """SIGKILL to all of it in one moment, engine and runners' children included."""
        for process in find_by_marker(self.marker):
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)

    def end(self) -> None:
        end_leftovers(self.marker)
        until(lambda: not find_by_marker(self.marker), "no process is left")

    def finish(self) -> None:
        assert self.algorithm is not None
        assert self.algorithm.wait(PATIENCE) == 0, self.said()

    def said(self) -> str:
        return "\n".join(log.read_text() for log in sorted(self.directory.glob("*.log")))

    def query(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Rollouts, as the running store says; none while it is not there."""
        try:
            answer = httpx.post(f"{self.url(self.ports[-1])}/v1/rollouts/query", json=body, trust_env=False, timeout=10)
            return list(answer.raise_for_status().json())
        except httpx.HTTPError:
            return []

    def _answers(self, port: int) -> bool:
        try:
            return httpx.get(f"{self.url(port)}/health", trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    def url(self, port: int) -> str:
        return f"http://127.0.0.1:{port}"

    def _start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        env = os.environ | {MARKER: self.marker, "LEYDEN_TEST_GATE": str(self.gate), "OMP_NUM_THREADS": "1"}
        with (self.directory / f"{name}.log").open("ab") as out:
            return subprocess.Popen([sys.executable, *command], env=env, cwd=self.directory, stdout=out, stderr=out, start_new_session=True)


def story(terminals: Terminals) -> dict[str, Any]:
    """What a run came to, but for what chance and time decide."""
    summary = json.loads((terminals.directory / "runs" / "latest" / "summary.json").read_text())
    rollouts = terminals.query({"limit": 10_000})
    counted = Counter((f"{r['iteration']}/{r['metadata']['step']}", r["state"]) for r in rollouts)
    names = Counter((r["iteration"], r["metadata"]["step"], r["group"], r["metadata"]["k"]) for r in rollouts)
    assert set(names.values()) == {1}, "each task counts once in each step"
    assert {r["failures"] for r in rollouts} == {0}, "nobody's death is a failure of the agent"
    rewards = httpx.post(
        f"{terminals.url(terminals.ports[0])}/v1/rewards/query", json={"rollout_ids": [r["id"] for r in rollouts]}, trust_env=False
    ).json()
    step = {r["id"]: r["metadata"]["step"] for r in rollouts}
    (iteration,) = summary["iterations"]
    return {
        "rollouts": counted,
        "rewards": Counter((step[reward["rollout_id"]], reward["value"]) for reward in rewards),
        "versions": summary["versions"],
        "scored": iteration["collection"]["scored"],
        "failed": iteration["collection"]["failed"],
        "trained": iteration["training"] is not None,
    }


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def undisturbed(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    terminals = Terminals(tmp_path_factory.mktemp("undisturbed") / "room", model, "store.db", stores=1)
    with terminals.running():
        terminals.finish()
        return story(terminals)


def test_undisturbed_the_loop_trains(undisturbed: dict[str, Any]) -> None:
    assert undisturbed["trained"] and [version["version"] for version in undisturbed["versions"]] == ["version_0", "version_1"]
    assert undisturbed["rollouts"]["1/collect", "succeeded"] == TRAIN


@pytest.mark.parametrize("kind", ["sqlite", "postgres with two stores"], indirect=False)
def test_killed_at_once_and_started_again_it_ends_as_if_nothing_had_happened(
    kind: str, undisturbed: dict[str, Any], model: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    on_file = kind == "sqlite"
    database = "store.db" if on_file else request.getfixturevalue("postgres").new_database()
    killed = Terminals(tmp_path / "killed", model, database, stores=1 if on_file else 2)
    killed.gate.touch()
    with killed.running():
        until(lambda: len(killed.query({"state": "succeeded", "iteration": 1, "mode": "train"})) >= TRAIN // 4, "a quarter is collected")
        killed.kill()
    killed.gate.unlink()
    with killed.running():
        killed.finish()
        assert "goes on" in killed.said()
        assert story(killed) == undisturbed
