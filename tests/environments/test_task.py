from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import pytest

from leyden.environments import Task
from leyden.environments.task import resolve_ids
from leyden.errors import UsageError


def write(path: Path, *lines: str) -> Path:
    path.write_bytes("\n".join(lines).encode())
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tasks.jsonl"


def test_30_from_jsonl_round_trips_every_field_and_passes_over_blank_lines(file: Path) -> None:
    rows = [
        {"input": "2 + 2", "expected": "4", "id": "sum", "metadata": {"level": 1}},
        {"input": ""},
        {"input": {"question": "é \u2028", "numbers": [1, 2.5, None]}, "expected": {"any": ["value"]}, "id": None},
    ]
    write(file, json.dumps(rows[0]), "", "   ", json.dumps(rows[1], ensure_ascii=False), json.dumps(rows[2], ensure_ascii=False), "")
    tasks = Task.from_jsonl(file)
    assert [(task.input, task.expected, task.id, dict(task.metadata)) for task in tasks] == [
        (row["input"], row.get("expected"), row.get("id"), row.get("metadata", {})) for row in rows
    ]


def test_30_the_async_twin_reads_the_same(file: Path) -> None:
    write(file, '{"input": "a"}', '{"input": "b", "id": "x"}')
    twins = asyncio.run(Task.afrom_jsonl(file))
    assert [(task.input, task.id) for task in twins] == [(task.input, task.id) for task in Task.from_jsonl(str(file))]


def test_an_empty_file_holds_no_task_and_carriage_returns_do_no_harm(file: Path) -> None:
    assert Task.from_jsonl(write(file, "")) == ()
    assert [task.input for task in Task.from_jsonl(write(file, '{"input": "a"}\r', '{"input": "b"}\r'))] == ["a", "b"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"input": "a", "z": 1, "expected_output": "b"}', "unknown key 'expected_output'"),
        ('{"input": "a", "input": "b"}', "'input' is given twice"),
        ('{"input": {"x": 1, "x": 2}}', "'x' is given twice"),
        ('{"expected": "b"}', "no `input`"),
        ('{"input": "a", "metadata": null}', "`metadata` is null"),
        ('{"input": "a", "metadata": [1]}', "`metadata` is"),
        ('{"input": "a", "id": 7}', "`id` is 7"),
        ('{"input": "a", "id": ""}', "`id` is"),
        ('{"input": "a", "id": "\\ud800"}', "`id` is"),
        ('{"input": "a", "expected": NaN}', "not JSON: NaN"),
        ('["a"]', "a list, not an object"),
        ("{'input': 'a'}", "not JSON"),
        ('{"input": "a"', "not JSON"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_30_each_problem_names_the_file_and_the_line(file: Path, line: str, said: str) -> None:
    write(file, '{"input": "fine"}', "", line)
    with pytest.raises(UsageError) as raised:
        Task.from_jsonl(file)
    assert f"{file}:3: " in raised.value.message and said in raised.value.message
    assert raised.value.hint


def test_a_byte_order_mark_other_encodings_and_missing_files_are_named(file: Path) -> None:
    file.write_bytes(b'\xef\xbb\xbf{"input": "a"}')
    with pytest.raises(UsageError, match=r"tasks\.jsonl:1: .*byte order mark"):
        Task.from_jsonl(file)
    file.write_bytes('{"input": "é"}'.encode("latin-1"))
    with pytest.raises(UsageError, match="not UTF-8"):
        Task.from_jsonl(file)
    with pytest.raises(UsageError, match="No such file"):
        Task.from_jsonl(file.parent / "none.jsonl")


def test_39_ids_are_filled_by_the_place_in_the_environment_and_declared_tasks_stay_the_same_objects() -> None:
    tasks = (Task("a"), Task("b", id="own"), Task("c"))
    resolved = resolve_ids(tasks)
    assert [task.id for task in resolved] == ["t1", "own", "t3"]
    assert resolved[1] is tasks[1] and tasks[0].id is None


@pytest.mark.parametrize(("tasks", "name"), [((Task("a", id="x"), Task("b", id="x")), "x"), ((Task("a", id="t2"), Task("b")), "t2")])
def test_28_two_tasks_of_one_id_are_refused_by_name(tasks: tuple[Task, ...], name: str) -> None:
    with pytest.raises(UsageError, match=f"tasks 1 and 2 are both called '{name}'"):
        resolve_ids(tasks)


def test_29_tasks_are_equal_by_identity_and_hashable() -> None:
    one, other = Task("a", metadata={"x": []}), Task("a", metadata={"x": []})
    assert one != other and len({one, other, one}) == 2


def test_a_fresh_task_shares_nothing_with_the_first() -> None:
    task = Task([{"role": "user", "content": "a"}], expected={"x": [1]}, id="t", metadata={"m": [1]})
    fresh = task.fresh()
    fresh.input[0]["content"] = "written"
    fresh.expected["x"].append(2)
    fresh.metadata["m"].append(2)
    assert (task.input, task.expected, dict(task.metadata)) == ([{"role": "user", "content": "a"}], {"x": [1]}, {"m": [1]})


def test_a_task_that_cannot_be_copied_says_so() -> None:
    with pytest.raises(UsageError, match="task 't' cannot be copied"):
        Task(threading.Lock(), id="t").fresh()
