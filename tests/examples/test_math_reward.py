import pytest
from hypothesis import given
from hypothesis import strategies as st
from reward import compute_reward, read_answer

TABLE = [
    ("### 12 ###", 12),
    ("###12###", 12),
    ("### 12", 12),
    ("#### 12", 12),
    ("### 1 ### no, wait: ### 2 ###", 2),
    ("### 1 ###\nthe answer is above ###", 1),
    ("### the sum is 12 ###", 12),
    ("### 12 ### for 5 men", 12),
    ("### 1\n### 2", 2),
    ("I used 52 + 17. ### 69 ###", 69),
    ("### 1,234 ###", 1234),
    ("### 1,234,567.5 ###", 1234567.5),
    ("### $5 ###", 5),
    ("### -3 ###", -3),
    ("### \u22123 ###", -3),
    ("### -$5 ###", -5),
    ("### $-5 ###", -5),
    ("### 5.0 ###", 5),
    ("### 12. ###", 12),
    ("### .5 ###", 0.5),
    ("### 1e6 ###", 1_000_000),
    ("### 2.5E-3 ###", 0.0025),
    ("### 3/4 ###", 0.75),
    ("### -3 / 4 ###", -0.75),
    ("### 3/0 ###", None),
    ("### nan ###", None),
    ("### inf ###", None),
    ("### 1e999 ###", None),
    ("12", None),
    ("# 12", None),
    ("12 ###", None),
    ("### ###", None),
    ("###", None),
    ("", None),
    (None, None),
]


@pytest.mark.parametrize(("text", "number"), TABLE)
def test_an_answer_is_read_as_the_table_says(text: str | None, number: float | None) -> None:
    assert read_answer(text) == number
    if number is not None:
        assert compute_reward(text, number) == 1.0
    assert compute_reward(text, 4321.5) == 0.0


@given(st.text())
def test_no_answer_whatever_breaks_the_reward(text: str) -> None:
    assert compute_reward("### " + text, 7) in (0.0, 1.0)


@given(st.integers(-(10**12), 10**12))
def test_every_integer_written_with_or_without_commas_is_read(number: int) -> None:
    assert compute_reward(f"### {number} ###", number) == 1.0
    assert compute_reward(f"### {number:,} ###", number) == 1.0
    if abs(number) < 10**6:  # beyond, one more or less is within the tolerance
        assert compute_reward(f"### {number + 1} ###", number) == 0.0


def test_the_tolerance_is_relative_and_around_zero_absolute() -> None:
    assert compute_reward("### 1000000.9 ###", 1_000_000) == 1.0
    assert compute_reward("### 1000002 ###", 1_000_000) == 0.0
    assert compute_reward("### 0.0000000001 ###", 0) == 1.0
    assert compute_reward("### 0.0001 ###", 0) == 0.0
