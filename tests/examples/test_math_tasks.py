import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tasks import EXAMPLES, MIXES, PHRASINGS, Component, Mix, load_tasks, make_tasks, split_of

from leyden.errors import UsageError

components = st.builds(
    Component,
    ops=st.sampled_from(["+", "-", "*", "/", "+-", "+-*", "+-*/"]),
    terms=st.integers(2, 4),
    digits=st.sampled_from([(1, 2), (2, 2), (2, 4), (3, 3)]),
    phrasing=st.sampled_from(sorted(PHRASINGS)),
)
mixes = st.lists(components, min_size=1, max_size=3).map(lambda parts: Mix(tuple(parts)))


def _expression(question: str) -> str:
    found = re.search(r"\d[\d +*/-]*", question)
    assert found
    return found[0].strip()


def _problem(question: str) -> object:
    """The expression; a plain sum or product in whatever order is one problem."""
    expression = _expression(question)
    ops = set(re.findall(r"[+*/-]", expression))
    return (ops.pop(), tuple(sorted(re.findall(r"\d+", expression)))) if ops in ({"+"}, {"*"}) else expression


@given(mixes, mixes, st.integers(0, 2**32), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_train_and_test_never_share_a_problem_whatever_mix_and_seed(mix: Mix, other_mix: Mix, seed: int, other_seed: int) -> None:
    train = {_problem(task["input"]) for task in make_tasks(mix, 12, seed, "train")}
    test = {_problem(task["input"]) for task in make_tasks(other_mix, 12, other_seed, "test")}
    assert not train & test


@given(mixes, st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_every_target_is_the_value_of_its_expression(mix: Mix, seed: int) -> None:
    for task in make_tasks(mix, 10, seed, "train"):
        assert eval(_expression(task["input"])) == task["target"]  # the text holds digits and operators only


@pytest.mark.parametrize("name", MIXES)
def test_a_named_mix_has_enough_different_problems_for_a_run(name: str) -> None:
    train, test = make_tasks(name, 512, 1, "train"), make_tasks(name, 128, 1, "test")
    assert len({task["input"] for task in train}) == 512
    assert not {task["input"] for task in train} & {task["input"] for task in test}
    assert not {question for question, _, _ in EXAMPLES} & {task["input"] for task in train + test}


def test_the_same_seed_makes_the_same_tasks_and_another_seed_others() -> None:
    assert make_tasks("three-ops", 20, 7, "train") == make_tasks("three-ops", 20, 7, "train")
    assert make_tasks("three-ops", 20, 7, "train") != make_tasks("three-ops", 20, 8, "train")


def test_a_problem_and_its_mirror_image_are_one() -> None:
    mix = Mix((Component("+", digits=(1, 1)),))
    sums = [frozenset(re.findall(r"\d+", task["input"])) for task in make_tasks(mix, 15, 0, "train")]
    assert len(set(sums)) == 15


def test_the_worked_examples_are_right() -> None:
    for question, expression, value in EXAMPLES:
        assert expression in question and eval(expression) == value


def test_a_mix_that_is_too_small_or_unknown_is_refused() -> None:
    with pytest.raises(UsageError, match="too few problems"):
        make_tasks(Mix((Component("+", digits=(1, 1)),)), 200, 0, "test")
    with pytest.raises(UsageError, match="unknown mix 'hard'"):
        make_tasks("hard", 1, 0, "test")


def test_a_file_is_read_row_by_row_and_other_fields_stay_out(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    rows = [{"input": f"How much is {i}?", "target": i * 1.5, "code": "def solution(): …"} for i in range(100)]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    tasks = load_tasks(path)
    assert tasks == [{"input": row["input"], "target": row["target"]} for row in rows]
    train, test = load_tasks(path, "train"), load_tasks(path, "test")
    assert len(train) + len(test) == 100 and 10 < len(test) < 45
    assert all(split_of(task["input"]) == "test" for task in test)
    assert load_tasks(path, "train", limit=5) == train[:5]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{broken", "not JSON"),
        ("[1, 2]", "not an object"),
        ('{"target": 3}', "`input`"),
        ('{"input": "  ", "target": 3}', "`input`"),
        ('{"input": "What?", "target": "3"}', "`target`"),
        ('{"input": "What?", "target": true}', "`target`"),
        ('{"input": "What?", "target": NaN}', "`target`"),
        pytest.param('{"input": "What?", "target": 1' + "0" * 400 + "}", "`target`", id="beyond a float"),
        pytest.param("[" * 100_000, "not JSON", id="too deep"),
        ('{"input": "What?"}', "`target`"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_text('{"input": "What is 1 + 1?", "target": 2}\n\n' + line + "\n")
    with pytest.raises(UsageError, match=message) as raised:
        load_tasks(path)
    assert str(raised.value).startswith(f"{path}:3: ") and raised.value.hint


def test_an_empty_or_missing_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(UsageError, match="no tasks"):
        load_tasks(tmp_path / "empty.jsonl")
    with pytest.raises(UsageError, match="cannot be read"):
        load_tasks(tmp_path / "missing.jsonl")
    (tmp_path / "latin.jsonl").write_bytes(b'{"input": "\xe9", "target": 1}\n')
    with pytest.raises(UsageError, match="cannot be read"):
        load_tasks(tmp_path / "latin.jsonl")
