import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from attempts_for_tests import CALCULATOR, answers, attempt, result, text_run, tool_run

from leyden.environments.exports.chat import to_chat_jsonl
from leyden.environments.exports.grouped import to_grouped_jsonl
from leyden.environments.exports.kto import to_kto_jsonl
from leyden.environments.exports.options import ExportOptions
from leyden.environments.exports.outcome import Outcome
from leyden.environments.exports.preference import to_preference_jsonl
from leyden.environments.exports.registry import FORMATS, format_named
from leyden.environments.exports.sharegpt import to_sharegpt_jsonl
from leyden.environments.exports.sidecar import read_sidecar
from leyden.environments.exports.writer import write_export
from leyden.environments.output import RunStatus, ToolCall
from leyden.errors import UsageError


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def with_messages(run, change):
    messages = [dict(message) for message in run.messages]
    change(messages)
    return replace(run, messages=tuple(messages))


def test_chat_rows_hold_calls_results_and_the_tools_on_offer(tmp_path):
    to_chat_jsonl(result([attempt(run=tool_run()), attempt(1)]), tmp_path / "t.jsonl")
    with_tools, without = rows(tmp_path / "t.jsonl")
    assert with_tools["tools"] == [CALCULATOR] and "tools" not in without
    assert [message["role"] for message in with_tools["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    call = {"id": "c1", "type": "function", "function": {"name": "calculate", "arguments": '{"expression": "12 * 34"}'}}
    assert with_tools["messages"][2] == {"role": "assistant", "content": "", "tool_calls": [call]}
    assert with_tools["messages"][3] == {"role": "tool", "tool_call_id": "c1", "content": "408"}


OTHER = {"type": "function", "function": {"name": "other"}}
AMBIGUOUS = {
    "the tools on offer are not known": lambda run: replace(run, tool_schemas=()),
    "a tool was called that was not on offer": lambda run: replace(run, tool_schemas=(OTHER,)),
    "a tool on offer is no function with a name": lambda run: replace(run, tool_schemas=({"type": "web_search"}, CALCULATOR)),
    "a call without its result": lambda run: with_messages(run, lambda messages: messages.pop(3)),
    "a result without its call": lambda run: with_messages(run, lambda messages: messages[3].update(tool_call_id="c9")),
    "a result names no call": lambda run: with_messages(run, lambda messages: messages[3].pop("tool_call_id")),
    "two calls with one id": lambda run: with_messages(run, lambda messages: messages.extend(messages[2:])),
    "it ends in a tool call": lambda run: with_messages(run, lambda messages: messages.pop()),
    "a call has no id or no name": lambda run: with_messages(run, lambda m: m[2].update(tool_calls=[{"function": {"name": "calculate"}}])),
    "a tool ran of which no message tells": lambda run: replace(run, tools=(*run.tools, ToolCall("calculate", {}, call_id="c7"))),
    "it waits for an approval": lambda run: replace(run, status=RunStatus.PAUSED),
    "a message is no object": lambda run: replace(run, messages=("hello", *run.messages)),
    "its tool calls are no list": lambda run: with_messages(run, lambda m: m[2].update(tool_calls="calculate")),
    "a call's arguments are no JSON object": lambda run: with_messages(
        run, lambda m: m[2].update(tool_calls=[{"id": "c1", "function": {"name": "calculate", "arguments": "12 * 34"}}])
    ),
}


@pytest.mark.parametrize("reason", AMBIGUOUS)
def test_an_ambiguous_trace_is_refused_with_a_reason(tmp_path, reason):
    run = AMBIGUOUS[reason](tool_run())
    report = to_chat_jsonl(result([attempt(run=run), attempt(1, run=tool_run())]), tmp_path / "t.jsonl")
    assert report.refused == {reason: 1} and report.counts[Outcome.SKIPPED_AMBIGUOUS] == 1
    assert read_sidecar(tmp_path / "t.jsonl")["report"]["refused"] == {reason: 1}
    assert reason in str(report)


def test_arguments_stay_json_when_something_in_them_is_redacted(tmp_path):
    def change(messages):
        arguments = ' {"card": 4111111111111111, "n": 1e400, "ann@example.org": 1.10}'
        messages[2]["tool_calls"] = [{"id": "c1", "type": "function", "function": {"name": "calculate", "arguments": arguments}}]

    report = to_chat_jsonl(result([attempt(run=with_messages(tool_run(), change))]), tmp_path / "t.jsonl")
    (row,) = rows(tmp_path / "t.jsonl")
    assert row["messages"][2]["tool_calls"][0]["function"]["arguments"] == ' {"card": "[CARD]", "n": 1e400, "[EMAIL]": 1.10}'
    assert report.redacted == {"card": 1, "email": 1}


@pytest.mark.parametrize("arguments", ["{" + '"a": {' * 5000 + "}" * 5001, '{"a": NaN}', "[1]", None])
def test_arguments_that_are_no_object_for_every_reader_are_refused(tmp_path, arguments):
    call = {"id": "c1", "type": "function", "function": {"name": "calculate", "arguments": arguments}}
    broken = with_messages(tool_run(), lambda messages: messages[2].update(tool_calls=[call]))
    no_call = with_messages(tool_run(), lambda messages: messages[2].update(tool_calls=[None]))
    for make in (to_chat_jsonl, to_sharegpt_jsonl):
        report = make(result([attempt(run=broken), attempt(1, run=no_call), attempt(2)]), tmp_path / "t.jsonl")
        assert (report.rows, report.counts[Outcome.SKIPPED_AMBIGUOUS]) == (1, 2)


@pytest.mark.parametrize("name", ["chat", "kto", "sharegpt"])
def test_a_tool_on_offer_that_is_no_function_is_a_counted_skip_even_if_nobody_calls_it(tmp_path, name):
    tried = result([attempt(run=text_run(tool_schemas=({"type": "web_search"},))), attempt(1)])
    assert write_export(tried, tmp_path / "t.jsonl", FORMATS[name], ExportOptions()).refused == {
        "a tool on offer is no function with a name": 1
    }


def test_two_answers_that_redaction_makes_one_are_a_counted_skip(tmp_path):
    same = [attempt(0, True, text_run(answer="ask ann@example.org")), attempt(1, False, text_run(answer="ask bob@example.org"))]
    report = to_preference_jsonl(result(same, answers(True, False)), tmp_path / "t.jsonl")
    assert report.rows == 1 and report.refused == {"after redaction: nothing is preferred": 2} and report.n_candidates == 4


def test_a_pair_is_a_pass_and_a_failure_at_one_prompt_and_each_is_used_once(tmp_path):
    tried = result(answers(True, False, True, False, True), answers(True, True, question="always"), answers(None, False))
    report = to_preference_jsonl(tried, tmp_path / "t.jsonl")
    assert report.rows == 2 and report.n_written == 4 and report.counts[Outcome.SKIPPED_UNPAIRED] == 4
    first = rows(tmp_path / "t.jsonl")[0]
    assert [message["role"] for message in first["prompt"]] == ["system", "user"]
    assert first["chosen"] == [{"role": "assistant", "content": "answer 0, right"}]
    assert first["rejected"] == [{"role": "assistant", "content": "answer 1, wrong"}]
    line = read_sidecar(tmp_path / "t.jsonl")["lines"][0]
    told = [(made["part"], made["attempt_index"], made["passed"]) for made in line["attempts"]]
    assert told == [
        ("chosen", 0, True),
        ("rejected", 1, False),
    ]


def test_attempts_that_were_asked_otherwise_are_no_pair(tmp_path):
    tried = result([attempt(0, True, text_run("What is 1 + 1?", "2")), attempt(1, False, text_run("What was 1 + 1?", "3"))])
    assert to_preference_jsonl(tried, tmp_path / "t.jsonl").counts[Outcome.SKIPPED_UNPAIRED] == 2
    same = result([attempt(0, True, text_run(answer="2")), attempt(1, False, text_run(answer="2"))])
    assert to_preference_jsonl(same, tmp_path / "t.jsonl").refused == {"the same answer passed and failed": 2}


def test_a_few_worked_examples_belong_to_the_prompt(tmp_path):
    example = list(tool_run("What is 1 * 2?", "2", call_id="e1").messages)
    run = tool_run()
    run = replace(run, messages=(*example, *run.messages[1:]))
    to_kto_jsonl(result([attempt(run=run)]), tmp_path / "t.jsonl")
    (row,) = rows(tmp_path / "t.jsonl")
    assert len(row["prompt"]) == 6 and [message["role"] for message in row["completion"]] == ["assistant", "tool", "assistant"]


def test_kto_labels_both_sides(tmp_path):
    report = to_kto_jsonl(result(answers(True, False, None)), tmp_path / "t.jsonl")
    assert [row["label"] for row in rows(tmp_path / "t.jsonl")] == [True, False] and report.n_skipped_failed == 0
    with pytest.raises(UsageError, match="min_value chooses among what passed"):
        to_kto_jsonl(result(answers(True)), tmp_path / "t.jsonl", min_value=0.5)


def test_a_group_holds_all_answers_to_one_prompt_with_their_advantages(tmp_path):
    tried = result(answers(True, False, False, None, True), answers(True, question="once"), answers(True, True, question="always"))
    report = to_grouped_jsonl(tried, tmp_path / "t.jsonl")
    mixed, always = rows(tmp_path / "t.jsonl")
    assert mixed["rewards"] == [1.0, 0.0, 0.0, 1.0] and mixed["advantages"] == [1.0, -1.0, -1.0, 1.0]
    assert always["advantages"] == [0.0, 0.0] and mixed["task"] == "t1"
    assert report.counts[Outcome.SKIPPED_UNPAIRED] == 1 and report.n_written == 6


def test_sharegpt_turns_alternate_or_are_refused(tmp_path):
    parallel = with_messages(
        tool_run(),
        lambda messages: (
            messages[2]["tool_calls"].append({**messages[2]["tool_calls"][0], "id": "c2"}),
            messages.insert(4, {**messages[3], "tool_call_id": "c2"}),
        ),
    )
    report = to_sharegpt_jsonl(result([attempt(run=tool_run()), attempt(1), attempt(2, run=parallel)]), tmp_path / "t.jsonl")
    assert report.refused == {"it calls several tools at once": 1}
    tools, text = rows(tmp_path / "t.jsonl")
    assert [turn["from"] for turn in tools["conversations"]] == ["system", "human", "function_call", "observation", "gpt"]
    assert json.loads(tools["conversations"][2]["value"]) == {"name": "calculate", "arguments": {"expression": "12 * 34"}}
    assert json.loads(tools["tools"])[0]["name"] == "calculate" and "tools" not in text


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_the_validator_refuses_what_its_format_is_not(tmp_path, name):
    for row in ({}, {"messages": []}, {"messages": [{"role": "user", "content": "hi"}]}, {"prompt": [], "completion": [], "label": 1}):
        assert isinstance(FORMATS[name].check(row), str)


def test_an_unknown_format_is_named():
    with pytest.raises(UsageError, match="no format 'alpaca'"):
        format_named("alpaca")
