"""SIGKILL of ``leyden eval``, at random moments and at the commit itself: resumed, it comes to what an undisturbed one comes to."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from leyden.environments import EnvironmentRunResult
from leyden.environments.evaldir import EvalDir
from leyden.failpoint import VARIABLE

AGENT = Path(__file__).parent / "eval_agent.py"
TASKS, K = 30, 5
EVALS, KILLS = 5, 4  # each eval is killed so often: 20 moments
AT_ONCE = 3
PATIENCE = 60.0  # seconds
SEED = 20

Key = tuple[str, int]


class Eval:
    """One eval in a directory of its own, run by one process after the other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = path / "asked.log"
        path.mkdir()
        self.log.touch()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def directory(self) -> EvalDir | None:
        found = EvalDir.all(self.path / "evals")
        assert len(found) <= 1, "it was begun twice"
        return found[0] if found else None

    @property
    def asked(self) -> list[Key]:
        return [(task, int(index)) for task, index in map(str.split, self.log.read_text().splitlines())]

    def start(self, failpoint: str = "") -> None:
        begun = self.directory
        what = ["--resume", begun.id] if begun else [f"{AGENT}:env", "-k", str(K)]
        command = [sys.executable, "-m", "leyden", "eval", *what, "--evals", str(self.path / "evals")]
        env = {**os.environ, "EVAL_LOG": str(self.log), VARIABLE: failpoint}
        with (self.path / "said.log").open("ab") as said:
            self._process = subprocess.Popen(command, stdout=said, stderr=said, env=env, cwd=self.path)

    def end(self) -> int:
        assert self._process is not None
        return self._process.wait(PATIENCE)

    def kill_after(self, asked: int, seconds: float) -> None:
        """Once the agent has been asked so often in all, and ``seconds`` later; the end of the process is a moment too."""
        assert self._process is not None
        deadline = time.monotonic() + PATIENCE
        while self._process.poll() is None and self.log.read_bytes().count(b"\n") < asked:
            assert time.monotonic() < deadline, (self.path / "said.log").read_text()
            time.sleep(0.002)
        time.sleep(seconds)
        self._process.kill()
        self._process.wait(PATIENCE)

    def committed(self) -> set[Key]:
        """What the store of the dead process holds as ended."""
        directory = self.directory
        if directory is None or not directory.store.exists():
            return set()
        with sqlite3.connect(f"file:{directory.store}?mode=ro", uri=True) as conn:
            if not conn.execute("SELECT 1 FROM sqlite_schema WHERE name = 'rollouts'").fetchone():
                return set()
            rows = conn.execute("SELECT group_key, idempotency_key FROM rollouts WHERE finished_at IS NOT NULL").fetchall()
        return {(f"q{group[1:]}", int(key.rsplit("/", 1)[1])) for group, key in rows}

    def result(self) -> EnvironmentRunResult:
        assert self.directory is not None
        return EnvironmentRunResult.load(self.directory.result)


def told(result: EnvironmentRunResult) -> list[Any]:
    return [
        (
            task.id,
            attempt.index,
            attempt.run and attempt.run.content,
            attempt.score,
            str(attempt.stop_reason),
            attempt.error,
            attempt.scorer,
        )
        for task, attempt in result.attempts()
    ]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> EnvironmentRunResult:
    one = Eval(tmp_path_factory.mktemp("eval") / "undisturbed")
    one.start()
    assert one.end() == 0, (one.path / "said.log").read_text()
    assert Counter(one.asked) == Counter((f"q{n}", index) for n in range(TASKS) for index in range(K))
    return one.result()


def check(one: Eval, undisturbed: EnvironmentRunResult) -> None:
    """After its end: the same attempts with the same scores, each of them once."""
    assert told(one.result()) == told(undisturbed)
    assert {key: value for key, value in one.result().summary().items() if key not in ("run_id", "duration_seconds")} == {
        key: value for key, value in undisturbed.summary().items() if key not in ("run_id", "duration_seconds")
    }
    assert one.directory is not None
    with sqlite3.connect(f"file:{one.directory.store}?mode=ro", uri=True) as conn:
        assert conn.execute("SELECT count(*), count(DISTINCT idempotency_key) FROM rollouts").fetchone() == (TASKS * K, TASKS * K)
        records = conn.execute("SELECT rollout_id, count(*) FROM spans WHERE name = 'leyden.attempt' GROUP BY rollout_id").fetchall()
        assert len(records) == TASKS * K and {n for _, n in records} == {1}
        assert conn.execute("SELECT count(*) FROM rewards WHERE name = 'reward'").fetchone() == (undisturbed.n_scored,)
        assert conn.execute("SELECT count(*) FROM leases").fetchone() == (0,)


def test_killed_at_random_moments_it_comes_to_the_same_end(tmp_path: Path, undisturbed: EnvironmentRunResult) -> None:
    def killed(number: int) -> int:
        """How often there was something to lose."""
        rng, kept = random.Random(SEED + number), 0
        one = Eval(tmp_path / str(number))
        for _ in range(KILLS):
            committed, before = one.committed(), len(one.asked)
            one.start()
            if rng.random() < 0.25:
                one.kill_after(0, rng.uniform(0.0, 2.0))  # somewhere in its start, before it asks the agent
            else:
                one.kill_after(before + rng.randint(1, TASKS * K // KILLS), rng.uniform(0.0, 0.02))
            assert committed.isdisjoint(one.asked[before:]), "what had ended was tried again"
            assert committed <= one.committed(), "what had ended was lost"
            kept += bool(one.committed())
        committed, before = one.committed(), len(one.asked)
        one.start()
        assert one.end() == 0, (one.path / "said.log").read_text()
        assert committed.isdisjoint(one.asked[before:])
        check(one, undisturbed)
        return kept

    with ThreadPoolExecutor(AT_ONCE) as pool:
        assert sum(pool.map(killed, range(EVALS))) >= EVALS * KILLS // 2


@pytest.mark.parametrize("moment", ["before-commit", "after-commit"])
def test_killed_at_a_commit_it_has_all_of_it_or_nothing(tmp_path: Path, undisturbed: EnvironmentRunResult, moment: str) -> None:
    one = Eval(tmp_path / "one")
    for time_of_it in (1, 2):
        committed, before = one.committed(), len(one.asked)
        one.start(f"attempts.end_many:{moment}#{time_of_it}")
        assert one.end() == -9, (one.path / "said.log").read_text()
        new = one.committed() - committed
        assert bool(new) == (moment == "after-commit" or time_of_it == 2)
        assert committed.isdisjoint(one.asked[before:])
    one.start()
    assert one.end() == 0, (one.path / "said.log").read_text()
    check(one, undisturbed)
