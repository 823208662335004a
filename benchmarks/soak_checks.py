"""What ``soak.py`` holds the store to: its memory, its descriptors, and each rollout in its database."""

from __future__ import annotations

import sqlite3
import statistics
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

SLOPE = 1.0  # MB an hour
FLAT = 2  # descriptors and threads more at the end than after warm-up
LONG = 1200.0  # seconds after warm-up, below which a slope says nothing
REWARDS = 2  # of an attempt
MB = 1e6


@dataclass
class Life:
    """One process from its start to its end, or the soak's. Samples: seconds since the soak began, bytes, descriptors, threads."""

    part: str
    pid: int
    began: float
    samples: list[tuple[float, int, int, int]] = field(default_factory=list)

    def look(self, now: float) -> None:
        """Once more, if it is there."""
        try:
            process = psutil.Process(self.pid)
            with process.oneshot():
                self.samples.append((now, process.memory_info().rss, process.num_fds(), process.num_threads()))
        except (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
            return

    def sum_up(self, warm_up: float) -> dict[str, Any]:
        """``slope``: MB an hour by least squares over the samples after ``warm_up``; None where they are too few, or too short a time."""
        rest = [sample for sample in self.samples if sample[0] >= self.began + warm_up]
        found: dict[str, Any] = {"part": self.part, "pid": self.pid, "from": round(self.began), "slope": None, "fitted_seconds": 0}
        if self.samples:
            found |= {"to": round(self.samples[-1][0]), "first_mb": self.samples[0][1] / MB, "last_mb": self.samples[-1][1] / MB}
        if len(rest) < 10 or rest[-1][0] - rest[0][0] < LONG:
            return found
        slope = statistics.linear_regression([sample[0] / 3600 for sample in rest], [sample[1] / MB for sample in rest]).slope
        quarter = len(rest) // 4
        for number, name in ((2, "descriptors"), (3, "threads")):
            values = [sample[number] for sample in rest]
            found[name] = [statistics.median(values[:quarter]), statistics.median(values[-quarter:])]
        return found | {"slope": slope, "fitted_seconds": round(rest[-1][0] - rest[0][0]), "warm_mb": rest[0][1] / MB}


def judge_lives(lives: Sequence[Mapping[str, Any]]) -> list[tuple[str, bool | None, str]]:
    """Promise, whether it was kept (None: too short a time to say), in words."""
    verdicts: list[tuple[str, bool | None, str]] = []
    for part in dict.fromkeys(life["part"] for life in lives):
        judged = [life for life in lives if life["part"] == part and life["slope"] is not None]
        if not judged:
            verdicts.append((f"memory of {part}", None, f"no life of it was measured for {LONG:.0f} s after its warm-up"))
            continue
        worst = max(judged, key=lambda life: life["slope"])
        told = f"{worst['slope']:+.2f} MB/h over {worst['fitted_seconds']} s, at {worst['last_mb']:.0f} MB; allowed: {SLOPE:g}"
        verdicts.append((f"memory of {part}", worst["slope"] < SLOPE, told))
        for name in ("descriptors", "threads"):
            first, last = max((life[name] for life in judged), key=lambda pair: pair[1] - pair[0])
            verdicts.append((f"{name} of {part}", last <= first + FLAT, f"{first:g} after warm-up, {last:g} at the end"))
    return verdicts


def check_database(
    path: Path, queued: Mapping[str, Mapping[str, int]], pruned: Mapping[str, int], pruned_from: str
) -> list[tuple[str, bool | None, str]]:
    """Of a store that has been stopped: ``queued`` holds what it acknowledged (run → rollout → number)."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:

        def one(sql: str, *values: Any) -> int:
            return int(db.execute(sql, values).fetchone()[0] or 0)

        verdicts: list[tuple[str, bool | None, str]] = []
        for run, made in queued.items():
            ids = {row[0] for row in db.execute("SELECT id FROM rollouts WHERE run_id = ?", (run,))}
            gone = pruned.get("rollouts", 0) if run == pruned_from else 0
            kept = len(ids) + gone == len(made) and ids <= made.keys()
            verdicts.append((f"no rollout of {run} is lost or doubled", kept, f"{len(made)} queued, {len(ids)} rows, {gone} pruned"))
        rows = one("SELECT count(*) FROM rollouts")
        well = one("SELECT count(*) FROM rollouts WHERE state = 'succeeded'")
        verdicts.append(("every rollout has ended well", well == rows, f"{well} of {rows}"))
        ended = one(
            "SELECT count(*) FROM rollouts r WHERE (SELECT group_concat(number) FROM attempts a WHERE a.rollout_id = r.id"
            " AND a.state = 'succeeded') IS NOT CAST(r.attempt AS TEXT)"
        )
        verdicts.append(("each by exactly one attempt, its last", ended == 0, f"{ended} are not"))
        open_ = one("SELECT count(*) FROM attempts WHERE state = 'running'") + one("SELECT count(*) FROM leases")
        verdicts.append(("no attempt and no lease is left over", open_ == 0, f"{open_} are"))
        counted = one("SELECT sum(n) FROM counters WHERE state = 'succeeded'")
        verdicts.append(("the store's own counts agree", counted == rows, f"{counted} counted, {rows} rows"))
        verdicts.append(_check_rewards(db, {rollout: number for made in queued.values() for rollout, number in made.items()}))
        spans = db.execute(
            "SELECT min(n), max(n) FROM (SELECT count(s.seq) n FROM attempts a LEFT JOIN spans s ON s.rollout_id = a.rollout_id"
            " AND s.attempt = a.number WHERE a.state = 'succeeded' GROUP BY a.rollout_id, a.number)"
        ).fetchone()
        verdicts.append(("no span of an attempt that counts is lost", spans[0] == spans[1], f"between {spans[0]} and {spans[1]} each"))
        sound = db.execute("PRAGMA quick_check").fetchone()[0]
        return [*verdicts, ("the file is sound", sound == "ok", sound)]


def _check_rewards(db: sqlite3.Connection, numbers: Mapping[str, int]) -> tuple[str, bool | None, str]:
    """Two of each attempt that counts, with the values that its agent gave, and none of any other."""
    wrong = attempts = 0
    for rollout, state, names, values in db.execute(
        "SELECT a.rollout_id, a.state, group_concat(r.name), group_concat(r.value) FROM attempts a"
        " LEFT JOIN (SELECT * FROM rewards ORDER BY name) r ON r.rollout_id = a.rollout_id AND r.attempt = a.number"
        " GROUP BY a.rollout_id, a.number"
    ):
        given = dict(zip((names or "").split(","), map(float, (values or "nan").split(",")), strict=True))
        if state == "succeeded":
            attempts += 1
            wrong += len((names or "").split(",")) != REWARDS or given != {"reward": float(numbers[rollout]), "steps": 3.0}
        else:
            wrong += names is not None
    return "no reward is lost, doubled or another's", wrong == 0, f"{wrong} wrong of {attempts} attempts' {attempts * REWARDS}"


def lost_attempts(path: Path) -> dict[str, int]:
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
        return dict(db.execute("SELECT state, count(*) FROM attempts GROUP BY state").fetchall())
