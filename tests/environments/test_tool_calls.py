from __future__ import annotations

import asyncio
from typing import Any

import pytest

from leyden.environments import RunOutput, Score, ToolCall, ToolCallScorer, ToolOutcome
from leyden.errors import UsageError


def score(scorer: ToolCallScorer, *calls: ToolCall) -> Score:
    return asyncio.run(scorer.ascore(RunOutput("done", tools=calls), "ignored"))


def add(outcome: ToolOutcome = ToolOutcome.OK, **arguments: Any) -> ToolCall:
    return ToolCall("add", arguments, outcome)


@pytest.mark.parametrize(
    ("outcome", "counts"),
    [(ToolOutcome.OK, True), (ToolOutcome.ERROR, False), (ToolOutcome.REFUSED, False), (ToolOutcome.PAUSED, False)],
)
def test_64_only_a_call_that_ran_and_did_not_fail_counts(outcome: ToolOutcome, counts: bool) -> None:
    """Approved by a person or run unasked is OK here, rejected is REFUSED, waiting is PAUSED: there is no None."""
    assert score(ToolCallScorer(["add"]), add(outcome)).passed is counts


@pytest.mark.parametrize(
    ("wanted", "met"),
    [
        ({"a": 1}, True),
        ({"a": 1, "b": 2}, True),
        ({"a": 1.0}, True),
        ({"a": "1"}, False),
        ({"a": True}, False),
        ({"c": None}, False),
        ({}, True),
    ],
)
def test_64_arguments_are_a_subset_and_nothing_is_converted(wanted: dict[str, Any], met: bool) -> None:
    assert score(ToolCallScorer(arguments={"add": wanted}), add(a=1, b=2)).passed is met


def test_64_at_any_depth_true_is_not_1_and_a_tuple_is_a_list() -> None:
    scorer = ToolCallScorer(arguments={"add": {"terms": ({"n": 1}, 2)}})
    assert score(scorer, add(terms=[{"n": 1}, 2])).passed
    assert not any(score(scorer, add(terms=terms)).passed for terms in ([{"n": True}, 2], [{"n": 1}], [{"n": 1, "m": 2}, 2], 3))


def test_64_all_wanted_values_have_to_stand_in_one_call() -> None:
    scorer = ToolCallScorer(arguments={"add": {"a": 1, "b": 2}})
    assert not score(scorer, add(a=1, b=3), add(a=4, b=2)).passed


def test_64_the_value_is_the_share_of_checks_and_all_are_needed_to_pass() -> None:
    scorer = ToolCallScorer(["add", "add", "look"], arguments={"add": [{"a": 1}, {"a": 2}]})
    given = score(scorer, add(a=1))
    assert given.value == 0.5 and not given.passed
    assert given.reason == "no clean call of look; no clean call of add with a=2"
    assert score(scorer, add(a=1), add(a=2), ToolCall("look", {})) == Score(1.0, True)


def test_64_strict_mode_fails_on_any_other_tool_but_not_on_one_that_only_failed_nor_on_a_second_call() -> None:
    scorer = ToolCallScorer(["add"], arguments={"look": {}}, allow_additional=False)
    look, drop = ToolCall("look", {}), ToolCall("drop", {})
    assert score(scorer, add(), look).passed and score(scorer, add(), add(), look).passed
    assert score(scorer, add(), look, ToolCall("drop", {}, ToolOutcome.ERROR)).passed
    given = score(scorer, add(), look, drop)
    assert (given.value, given.passed, given.reason) == (1.0, False, "drop was not to be called")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"expected_tools": "add"}, "is a list, not the text 'add'"),
        ({"expected_tools": []}, "nothing to check"),
        ({"expected_tools": [3]}, "a tool's name is a text"),
        ({"expected_tools": [["add"]]}, "a tool's name is a text"),
        ({"expected_tools": 3}, "a list of names, not a int"),
        ({"arguments": ["add"]}, "arguments is a dict, not a list"),
        ({"arguments": {"add": 3}}, "a dict or a list of dicts"),
        ({"arguments": {}}, "nothing to check"),
        ({"arguments": {"add": []}}, "a dict or a list of dicts"),
        ({"arguments": {"add": "a"}}, "a dict or a list of dicts"),
    ],
)
def test_64_no_checks_and_bare_texts_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ToolCallScorer(**given)


def test_64_the_digest_knows_names_arguments_and_strictness_but_no_order() -> None:
    def digest(*names: str, **more: Any) -> str:
        return ToolCallScorer(names, **more).digest()

    assert digest("a", "b") == digest("b", "a") == digest("b", "a", "a")
    different = {
        digest("a"), digest("a", "b"), digest("a", arguments={"a": {"x": 1}}), digest("a", arguments={"a": {"x": 2}}),
        digest("a", allow_additional=False),
    }  # fmt: skip
    assert len(different) == 5
