"""Saved results: whole or not there, the same when read again, and read line by line where there are many."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from run_room import result, scored

from leyden.environments import EnvironmentRunResult, RunOutput, Score, Task, TaskResult, ToolCall, ToolOutcome, open_saved
from leyden.errors import DiskError, NotFound, UsageError


def full() -> EnvironmentRunResult:
    run = RunOutput(
        content={"a": [1, None, "é\u2028\U0001f600", "half \ud83d"]}, messages=({"role": "user", "content": "q"},),
        tools=(ToolCall("t", {"x": 1}, ToolOutcome.ERROR, "r", "c1"),),
        tool_schemas=({"type": "function"},), generation_ids=("g1", "g2"), metrics={"m": 0.5}, cost=0.1, input_tokens=3,
    )  # fmt: skip
    made = result({"a": [1.0, None, 0.25], "b": [0.0]}, k=4)
    a, b = made.task_results
    rich = replace(
        scored(0.75, 0), run=run, score=Score(0.75, True, "why", {"raw": 8}, {"safety": 0.5}), rollout_id="ro-1", attempt=2, seed=7
    )
    empty = TaskResult(Task("nothing", {"e": 1}, "c", {"tag": "x"}), (), planned=0)
    return replace(made, task_results=(replace(a, attempts=(rich, *a.attempts[1:])), b, empty), stopped_early="error-storm")


def same(one: EnvironmentRunResult, other: EnvironmentRunResult) -> bool:
    def plain(found: EnvironmentRunResult) -> Any:
        tasks = [(task.task.input, task.task.expected, task.task.id, dict(task.task.metadata)) for task in found.task_results]
        return tasks, [(one.attempts, one.planned) for one in found.task_results], found.summary(), found.env_fingerprint

    return bool(plain(one) == plain(other))


def test_what_is_loaded_is_what_was_saved(tmp_path: Path) -> None:
    made, path = full(), tmp_path / "deep" / "er" / "result.jsonl"
    made.save(path)
    loaded = EnvironmentRunResult.load(path)
    assert same(loaded, made) and loaded.task_results[0].attempts == made.task_results[0].attempts
    loaded.save(tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == path.read_bytes()

    async def in_a_loop() -> EnvironmentRunResult:
        await made.asave(tmp_path / "async.jsonl")
        return await EnvironmentRunResult.aload(tmp_path / "async.jsonl")

    assert same(asyncio.run(in_a_loop()), made)


def test_it_is_a_line_an_attempt_under_a_head(tmp_path: Path) -> None:
    made = full()
    made.save(tmp_path / "r.jsonl")
    head, *rows = map(json.loads, (tmp_path / "r.jsonl").read_bytes().decode().split("\n")[:-1])
    assert (head["format"], head["kind"], head["tasks"], head["k"]) == (1, "leyden.environment-run", 3, 4)
    assert head["env_fingerprint"]["components"] == {"tasks": "e", "scorer": "s"}
    assert [(row["task"], "input" in row, row["attempt"] and row["attempt"]["index"]) for row in rows] == [
        ("a", True, 0), ("a", False, 1), ("a", False, 2), ("b", True, 0), ("c", True, None),
    ]  # fmt: skip
    with open_saved(tmp_path / "r.jsonl") as saved:
        assert saved.header.stopped_early == "error-storm"
        assert [(task.id, attempt.index) for task, attempt in saved] == [("a", 0), ("a", 1), ("a", 2), ("b", 0)]


def test_a_save_that_fails_names_the_field_and_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    full().save(path)
    before = path.read_bytes()
    made = result({"good": [1.0], "bad": [1.0, 1.0]})
    good, bad = made.task_results
    odd = {
        "task 'bad', expected": replace(bad, task=replace(bad.task, expected={"x": object()})),
        "task 'bad', metadata": replace(bad, task=replace(bad.task, metadata={"x": object()})),
        "task 'bad', attempt 1: run.content.0": replace(
            bad, attempts=(bad.attempts[0], replace(bad.attempts[1], run=RunOutput([object()])))
        ),
    }
    for name, one in odd.items():
        with pytest.raises(UsageError, match=name):
            replace(made, task_results=(good, one)).save(path)
        assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path], name


def test_a_disk_that_takes_no_more_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError, match="cannot write to"):
        full().save(tmp_path / "file" / "r.jsonl")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: "", "r.jsonl:1: not JSON"),
        (lambda text: text.replace('"format":1', '"format":99', 1), "format 99"),
        (lambda text: text.replace("leyden.environment-run", "other", 1), "does not begin with"),
        (lambda text: text.replace('"k":4', '"k":"four"', 1), "'k': 'four'"),
        (lambda text: "\n".join(text.split("\n")[:3]) + "\n", "ends after 1 of 3 tasks"),
        (lambda text: text[:-30], "r.jsonl:6: not JSON"),
        (lambda text: "".join(text.splitlines(True)[place] for place in (0, 1, 2, 2, 3, 4, 5)), "r.jsonl:4: attempt 1 of task 'a'"),
        (lambda text: "".join(text.splitlines(True)[place] for place in (0, 1, 2, 4, 5)), "ends after 3 of 4 attempts"),
        (lambda text: text.replace('"index":0', '"index":"0"', 1), "r.jsonl:2: this is no attempt"),
        (lambda text: text.replace('"stop_reason":"completed"', '"stop_reason":"odd"', 1), "r.jsonl:2: this is no attempt"),
        (lambda text: text.replace('"value":0.75', '"value":7', 1), "r.jsonl:2: this is no attempt"),
    ],
)  # fmt: skip
def test_what_is_no_saved_result_is_told_by_its_line(tmp_path: Path, damage: Any, said: str) -> None:
    path = tmp_path / "r.jsonl"
    full().save(path)
    path.write_bytes(damage(path.read_bytes().decode()).encode())
    with pytest.raises(UsageError, match=said):
        EnvironmentRunResult.load(path)
    with pytest.raises(NotFound):
        EnvironmentRunResult.load(tmp_path / "none.jsonl")
