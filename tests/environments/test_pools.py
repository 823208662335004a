import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from leyden.environments.leakage import LeakKind
from leyden.environments.pools import PoolName, Pools
from leyden.environments.task import Task
from leyden.errors import Conflict, NotFound, UsageError

FIRST = {"train": 0, "dev": 10, "frozen": 20, "blind": 30}  # other numbers are other tasks


def tasks(name, n):
    return [Task(f"question {FIRST[name] + i} of {name}", i, f"{name}{i}", {"level": i}) for i in range(n)]


@pytest.fixture
def pools(tmp_path):
    return Pools.make(tmp_path / "pools", {name: tasks(name, 3) for name in PoolName}, {"source": "written by hand"})


def test_a_pool_comes_back_with_its_manifest(pools):
    again = Pools.read(pools.directory)
    assert [(task.id, task.input, task.expected, task.metadata) for task in again["dev"].tasks] == [
        (task.id, task.input, task.expected, task.metadata) for task in tasks("dev", 3)
    ]
    manifest = json.loads((pools.directory / "dev.json").read_text())
    assert (manifest["pool"], manifest["n"], manifest["provenance"]) == ("dev", 3, {"source": "written by hand"})
    assert [task["id"] for task in manifest["tasks"]] == ["dev0", "dev1", "dev2"] and manifest["sha256"] == again["dev"].sha256
    assert set(again.evaluation) == {"dev", "frozen", "blind"} and again.check().n_train == 3


def test_a_failed_dev_task_that_is_trained_on_leaves_dev_and_that_is_recorded(pools):
    pools.moved_to_training(["dev1"], "it failed 8 of 8 times").write()
    again = Pools.read(pools.directory)
    assert [task.id for task in again["dev"].tasks] == ["dev0", "dev2"]
    assert [task.id for task in again["train"].tasks] == ["train0", "train1", "train2", "dev1"]
    (move,) = again["train"].moves
    assert (move.task, move.source, move.reason) == ("dev1", "dev", "it failed 8 of 8 times")
    assert again.check().ok and len(list(pools.directory.glob("*.jsonl"))) == 4


def test_moves_at_the_same_time_all_happen(tmp_path):
    Pools.make(tmp_path, {"dev": tasks("dev", 8)})
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: Pools.move(tmp_path, [f"dev{n}"], "it failed"), range(8)))
    after = Pools.read(tmp_path)
    assert {task.id for task in after["train"].tasks} == {f"dev{n}" for n in range(8)} and not after["dev"].tasks
    with pytest.raises(UsageError, match="the dev pool has no task 'dev1'"):
        Pools.move(tmp_path, ["dev1"], "again")
    with pytest.raises(NotFound, match="no pools in"):
        Pools.move(tmp_path / "nowhere", ["dev1"], "again")


def test_a_move_that_was_cut_short_has_happened(pools, monkeypatch):
    written = []

    def write(self, pool, real=Pools._write):
        written.append(pool.name)
        if len(written) == 2:
            raise KeyboardInterrupt
        real(self, pool)

    monkeypatch.setattr(Pools, "_write", write)
    with pytest.raises(KeyboardInterrupt):
        pools.moved_to_training(["dev1"], "it failed").write()
    again = Pools.read(pools.directory)
    assert [task.id for task in again["dev"].tasks] == ["dev0", "dev2"] and again["train"].tasks[-1].id == "dev1"


def test_what_measures_is_not_moved(pools):
    for wanted in ("frozen1", "train1", "nothing"):
        with pytest.raises(UsageError, match=f"the dev pool has no task '{wanted}'"):
            pools.moved_to_training([wanted], "why not")


def test_a_task_in_two_pools_is_refused(tmp_path):
    with pytest.raises(Conflict, match="'same' is train's 'train0'"):
        Pools.make(tmp_path, {"train": tasks("train", 1), "dev": [Task("question 0 of train", 0, "same")]})
    assert not list(tmp_path.iterdir())
    Pools.make(tmp_path, {"train": tasks("train", 1)})
    with pytest.raises(Conflict, match="holds pools already"):
        Pools.make(tmp_path, {"dev": tasks("dev", 1)})


def test_a_pool_that_was_changed_by_hand_is_refused(pools):
    (file,) = pools.directory.glob("frozen-*.jsonl")
    file.write_text(file.read_text().replace("question 21", "question 29"))
    with pytest.raises(UsageError, match="is not what frozen"):
        Pools.read(pools.directory)
    file.write_text(file.read_text().replace("question 29", "question 21").replace("frozen1", "frozen9"))
    with pytest.raises(UsageError, match="is not what frozen"):  # by its ids tasks are moved, and results found again
        Pools.read(pools.directory)
    (pools.directory / "frozen.json").write_text("{}")
    with pytest.raises(UsageError, match="frozen"):
        Pools.read(pools.directory)
    (pools.directory / "frozen.json").unlink()
    with pytest.raises(UsageError, match=r"frozen\.json is gone"):
        Pools.read(pools.directory)
    with pytest.raises(NotFound, match="no pools in"):
        Pools.read(pools.directory / "elsewhere")


def test_the_check_names_what_leaked(tmp_path):
    pools = Pools.make(tmp_path, {"train": [Task("QUESTION 11 of dev!", id="leaked")], "dev": tasks("dev", 2)})
    (leak,) = pools.check().leaks
    assert (leak.kind, leak.pool, leak.train_id, leak.eval_id) == (LeakKind.EQUAL, "dev", "leaked", "dev1")
