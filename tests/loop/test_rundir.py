import io
import json

import pytest
from rich.console import Console

from leyden.algorithm.sft.report import Board, StepView, clock
from leyden.algorithm.sft.rundir import RunDir, new_run_id
from leyden.algorithm.sft.steps import fingerprint
from leyden.algorithm.sft.tasks import check_disjoint, leave_out_leaks, number_tasks
from leyden.errors import UsageError


def test_latest_points_at_the_newest_run(tmp_path):
    first, second = (RunDir.create(tmp_path / "runs", new_run_id(), {"x": 1}) for _ in range(2))
    latest = tmp_path / "runs" / "latest"
    assert latest.resolve() == second.path.resolve() != first.path.resolve()
    assert not latest.readlink().is_absolute()
    assert json.loads((latest / "config.json").read_text()) == {"x": 1}
    assert "python" in json.loads((latest / "environment.json").read_text())


def test_a_run_is_never_written_into_another(tmp_path):
    RunDir.create(tmp_path, "one", {})
    with pytest.raises(UsageError, match="already exists"):
        RunDir.create(tmp_path, "one", {})


def test_a_directory_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(UsageError, match=r"cannot write|already exists"):
        RunDir.create(tmp_path / "runs", "one", {})


def test_fingerprints_do_not_depend_on_the_order_of_keys():
    assert fingerprint({"a": 1, "b": [2]}) == fingerprint({"b": [2], "a": 1}) != fingerprint({"a": 1, "b": [3]})


def test_without_a_terminal_a_step_is_a_line_at_its_start_and_its_end():
    out = io.StringIO()
    with Board(Console(file=out, width=200)).step("collect", total=4) as view:
        view.update(done=4, note="3 of 4 passed")
    assert out.getvalue().splitlines() == ["… collect", "✓ collect: 3 of 4 passed, 0 s"]


def test_on_a_terminal_the_board_is_drawn_and_ends_in_the_same_line():
    out = io.StringIO()
    board = Board(Console(file=out, width=200, force_terminal=True, color_system=None))
    with board.step("collect", total=4) as view:
        view.update(done=2, note="reward 0.50")
    assert "reward 0.50" in out.getvalue()
    assert "✓ collect: reward 0.50" in out.getvalue()


def test_progress_tells_how_much_is_left():
    view = StepView("collect", 100)
    assert view.left is None
    view.update(done=9)
    assert view.left is None, "the first ones say nothing about the pace"
    view.update(done=50, note="reward 0.40")
    assert "50/100, reward 0.40" in view.line()
    assert "about 0 s left" in view.line()
    view.update(done=51, left=90.0)
    assert "about 1 min 30 s left" in view.line()


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59, "59 s"), (61, "1 min 01 s"), (3720, "1 h 02 min")])
def test_durations_read_well(seconds, text):
    assert clock(seconds) == text


def test_task_ids_are_the_contents_digest_and_never_twice_the_same():
    tasks = number_tasks([{"input": "a"}, {"input": "b"}, {"input": "a"}])
    assert len({task.id for task in tasks}) == 3
    assert tasks[0].id == number_tasks([{"input": "a"}])[0].id


def test_a_task_that_is_nearly_a_held_out_one_is_not_learnt_from_and_named():
    train = number_tasks(
        [{"input": "What is the sum of 12 and 34?"}, {"input": "what is  the SUM of 12 and 34"}, {"input": "What is the sum of 9 and 3?"}]
    )
    heldout = number_tasks([{"input": "What is the exact sum of 12 and 34?"}])
    kept, leakage = leave_out_leaks(train, heldout)
    assert kept == train[2:]  # other numbers are another task
    assert [leak.train_id for leak in leakage.leaks] == [task.id for task in train[:2]]
    with pytest.raises(UsageError, match="every task to learn from is nearly a held-out one"):
        leave_out_leaks(train[:2], heldout)


def test_a_task_in_both_sets_is_refused():
    with pytest.raises(UsageError, match="1 tasks are both"):
        check_disjoint(number_tasks([1, 2]), number_tasks([2, 3]))
