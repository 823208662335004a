"""Two results side by side: refused where they cannot be compared, with numbers that say what chance would do."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from run_room import result

from leyden.environments import Fingerprint, MismatchError
from leyden.environments.compare import compare_clustered


def test_other_environments_are_refused_and_what_changed_is_named() -> None:
    now = result({"a": [1.0]})
    with pytest.raises(MismatchError, match=r"environment: tasks differ"):
        now.diff(result({"a": [1.0]}, env="other"))
    unknown = replace(now, env_fingerprint=Fingerprint(None, {"tasks": "e", "scorer": None}))
    for one, other in ((unknown, now), (now, unknown), (unknown, unknown)):
        with pytest.raises(MismatchError, match="scorer"):
            one.diff(other)


def test_each_task_in_both_has_a_row_and_none_is_dropped_in_silence() -> None:
    before = result({"same": [1.0, 0.0], "up": [0.0, 0.0], "down": [1.0, 1.0], "unscored": [None, None], "gone": [1.0, 1.0]})
    now = result({"up": [1.0, 0.0], "down": [0.0, 1.0], "same": [0.0, 1.0], "unscored": [1.0, None], "new": [1.0, 1.0]}, policy="q")
    found = now.diff(before)
    assert [(row.id, row.delta, str(row.direction)) for row in found.rows] == [
        ("up", 0.5, "improved"), ("down", -0.5, "regressed"), ("same", 0.0, ""), ("unscored", None, ""),
    ]  # fmt: skip
    assert (found.improved, found.regressed) == (("up",), ("down",))
    assert (found.unmatched_current, found.unmatched_baseline) == (("new",), ("gone",))
    assert found.policy_changed and found.policy_components == ("model",)
    told = found.to_dict()
    assert json.loads(json.dumps(told)) == told
    assert told["rows"][0] == {
        "id": "up", "baseline": "0/2", "current": "1/2", "baseline_rate": 0.0, "current_rate": 0.5, "delta": 0.5, "status": "improved",
    }  # fmt: skip
    text = str(found)
    assert "only in the current result: new" in text and "only in the baseline result: gone" in text
    assert "1 improved, 1 regressed" in text and "policy changed (model)" in text


def test_chance_is_told_from_change() -> None:
    def many(passing: int) -> dict[str, list[float | None]]:
        return {f"t{n}": [1.0 if n < passing else 0.0] * 2 for n in range(20)}

    before, better = result(many(4)), result(many(16))
    assert better.diff(before).verdict == "better" and before.diff(better).verdict == "worse"
    assert result(many(5)).diff(before).verdict == "no difference beyond chance"
    found = better.diff(before).comparison
    assert found == compare_clustered([([n < 4] * 2, [n < 16] * 2) for n in range(20)])
    assert found.difference == pytest.approx(0.6) and found.interval.low > 0


def test_one_lucky_task_is_no_improvement_of_the_policy() -> None:
    """7 of 8 against 1 of 1: a higher rate, and nothing is known."""
    found = result({"a": [1.0]}).diff(result({"a": [1.0] * 7 + [0.0]}))
    assert found.improved == ("a",) and found.verdict == "no difference beyond chance"
    assert "k differs: 8 in the baseline, 1 now" in str(found)


def test_rounding_is_no_change() -> None:
    thirds = [1.0, 0.0, 0.0]
    assert result({"a": thirds * 3}).diff(result({"a": thirds})).rows[0].direction == ""
