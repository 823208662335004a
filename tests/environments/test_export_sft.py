import asyncio
import hashlib
import json
import os
import sys
import weakref
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from attempts_for_tests import answers, attempt, result, said, text_run, tool_run
from hypothesis import given, settings
from hypothesis import strategies as st

from leyden.environments.exports.options import ExportOptions
from leyden.environments.exports.outcome import Outcome
from leyden.environments.exports.profile import PROFILES
from leyden.environments.exports.registry import FORMATS
from leyden.environments.exports.sft import SFT, ato_sft_jsonl, to_sft_jsonl
from leyden.environments.exports.sidecar import attempts_of, read_sidecar
from leyden.environments.exports.source import Source
from leyden.environments.exports.validate import InvalidDataset, validate
from leyden.environments.exports.writer import write_export
from leyden.environments.leakage import LeakageGuard
from leyden.environments.output import RunOutput, RunStatus, ToolCall, ToolOutcome
from leyden.environments.task import Task
from leyden.errors import DiskError, NotFound, UsageError


def rows(path):
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def nonzero(report):
    return {str(outcome): number for outcome, number in report.counts.items() if number}


def test_a_row_is_the_strict_core_byte_for_byte(tmp_path):
    answer = "Zwölf — 十二\n\n### 12 "
    report = to_sft_jsonl(result([attempt(run=text_run("Was ist 5 + 7?", answer))]), tmp_path / "deep" / "train.jsonl")
    expected = (
        '{"messages": [{"role": "system", "content": "Be exact."}, {"role": "user", "content": "Was ist 5 + 7?"}, '
        '{"role": "assistant", "content": "Zwölf — 十二\\n\\n### 12 "}]}\n'
    )
    assert (tmp_path / "deep" / "train.jsonl").read_bytes() == expected.encode()
    assert (report.path, report.rows, report.bytes) == (tmp_path / "deep" / "train.jsonl", 1, len(expected.encode()))
    assert validate(report.path, SFT, PROFILES["tinker"]) == 1


def test_failures_are_left_out_unless_asked_for_and_the_unscored_never_get_in(tmp_path):
    tried = result(answers(True, False, None, True))
    report = to_sft_jsonl(tried, tmp_path / "a.jsonl")
    assert (report.n_written, report.n_skipped_failed, report.n_candidates, report.unscored) == (2, 1, 3, {"error": 1})
    everything = to_sft_jsonl(tried, tmp_path / "b.jsonl", only_passed=False)
    assert (everything.n_written, everything.n_skipped_failed, everything.n_unscored) == (3, 0, 1)
    assert [line["passed"] for line in read_sidecar(tmp_path / "b.jsonl")["lines"]] == [True, False, True]


def test_each_attempt_is_counted_by_the_first_rule_that_holds(tmp_path):
    refused = ToolCall("calculate", {}, ToolOutcome.REFUSED)
    limited = replace(tool_run(), tools=(*tool_run().tools, refused))
    cases = {
        Outcome.SKIPPED_FAILED: attempt(0, False, limited),  # it failed, was limited and used tools
        Outcome.SKIPPED_LIMIT_HIT: attempt(1, True, limited),
        Outcome.SKIPPED_TOOL_RUNS: attempt(2, True, tool_run()),
        Outcome.SKIPPED_TRUNCATED: attempt(3, True, text_run(status=RunStatus.TRUNCATED)),
        Outcome.SKIPPED_NO_TEXT: attempt(4, True, RunOutput({"value": 12}, tuple(said("5 + 7?", "")))),
        Outcome.WRITTEN: attempt(5),
    }
    report = to_sft_jsonl(result(list(cases.values())), tmp_path / "t.jsonl")
    assert nonzero(report) == {str(outcome): 1 for outcome in cases}
    assert report.n_candidates == len(cases)


@pytest.mark.parametrize(
    "messages, outcome",
    [
        (said("hi", "  \n"), Outcome.SKIPPED_NO_TEXT),
        (said("hi", "first", "again", ""), Outcome.SKIPPED_NO_TEXT),  # an earlier turn is not the answer
        ([{"role": "assistant", "content": "nobody asked"}], Outcome.SKIPPED_NO_TEXT),
        ([{"role": "user", "content": "hi"}], Outcome.SKIPPED_NO_TEXT),
        ([{"role": "developer", "content": "obey"}, *said("hi", "yes")], Outcome.SKIPPED_UNKNOWN_ROLE),
        ([*said("hi"), {"role": "tool", "content": "408"}, {"role": "assistant", "content": "408"}], Outcome.SKIPPED_TOOL_RUNS),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}, *said("hi", "cat")], Outcome.SKIPPED_MEDIA),
        (said("hi", "broken \ud83d"), Outcome.SKIPPED_SURROGATE),
    ],
)
def test_what_would_be_lost_in_silence_is_a_counted_skip(tmp_path, messages, outcome):
    report = to_sft_jsonl(result([attempt(0, True, text_run(messages=tuple(messages))), attempt(1)]), tmp_path / "t.jsonl")
    assert nonzero(report) == {str(outcome): 1, "written": 1}


def test_what_comes_after_the_answer_is_cut_and_blank_messages_go(tmp_path):
    messages = [
        {"role": "system", "content": " "},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        *said("and?", "yes", system=""),
    ]
    to_sft_jsonl(result([attempt(run=text_run(messages=(*messages, {"role": "user", "content": "thanks"})))]), tmp_path / "t.jsonl")
    assert [message["content"] for message in rows(tmp_path / "t.jsonl")[0]["messages"]] == ["hi", "and?", "yes"]


def test_the_profile_caps_rows_and_bytes_and_one_giant_drops_nothing_else(tmp_path):
    many = result(*[answers(*[True] * 40, question=f"question {task}") for task in range(10)])
    report = to_sft_jsonl(many, tmp_path / "rows.jsonl")
    assert (report.n_written, report.n_dropped_over_cap) == (320, 80)
    assert to_sft_jsonl(many, tmp_path / "all.jsonl", profile="none").n_written == 400
    large = result([attempt(i, True, text_run(f"q{i}", "x" * 300_000)) for i in range(5)])
    report = to_sft_jsonl(large, tmp_path / "bytes.jsonl")
    assert (report.n_written, report.n_dropped_over_cap) == (3, 2)
    giant = result([attempt(0, True, text_run("q", "x" * (1 << 20))), attempt(1), attempt(2, True, text_run("other", "answer"))])
    report = to_sft_jsonl(giant, tmp_path / "giant.jsonl")
    assert nonzero(report) == {"skipped_oversized": 1, "written": 2}
    assert [line["attempt_index"] for line in read_sidecar(tmp_path / "giant.jsonl")["lines"]] == [1, 2]


def test_duplicates_are_counted_and_left_out_on_request(tmp_path):
    tried = result([attempt(0), attempt(1), attempt(2, True, text_run(answer="two"))], [attempt(0)])
    report = to_sft_jsonl(tried, tmp_path / "t.jsonl")
    assert (report.n_written, report.duplicate_rows) == (4, 2)
    report = to_sft_jsonl(tried, tmp_path / "t.jsonl", dedupe=True)
    assert nonzero(report) == {"skipped_duplicate": 2, "written": 2}
    report = to_sft_jsonl(tried, tmp_path / "t.jsonl", limit=1)
    assert nonzero(report) == {"dropped_over_limit": 3, "written": 1}


def test_readers_that_split_lines_as_python_does_see_the_rows(tmp_path):
    to_sft_jsonl(result([attempt(run=text_run("a\u2028b", "c\u2029d\x85e\x1cf"))]), tmp_path / "t.jsonl")
    (line,) = (tmp_path / "t.jsonl").read_text().splitlines()
    assert [message["content"] for message in json.loads(line)["messages"]][1:] == ["a\u2028b", "c\u2029d\x85e\x1cf"]


def test_a_second_run_is_byte_identical_whatever_the_order_of_completion(tmp_path):
    tried = result(answers(True, True, False), answers(True, None, True, question="other"))
    first = to_sft_jsonl(tried, tmp_path / "t.jsonl")
    before = [(tmp_path / name).read_bytes() for name in ("t.jsonl", "t.jsonl.meta.json")]
    second = asyncio.run(ato_sft_jsonl(tried, tmp_path / "t.jsonl"))
    assert [(tmp_path / name).read_bytes() for name in ("t.jsonl", "t.jsonl.meta.json")] == before
    assert first == second
    order = [(line["task_id"], line["attempt_index"]) for line in read_sidecar(tmp_path / "t.jsonl")["lines"]]
    assert order == [("t1", 0), ("t1", 1), ("t2", 0), ("t2", 2)]


def test_the_sidecar_says_where_every_row_came_from(tmp_path):
    run = text_run(generation_ids=("g1", "g2"))
    tried = result([attempt(0, True, run, 0.75, rollout_id="r7", attempt=2), attempt(1, False)])
    report = to_sft_jsonl(tried, tmp_path / "t.jsonl")
    told = read_sidecar(tmp_path / "t.jsonl")
    data = (tmp_path / "t.jsonl").read_bytes()
    assert told["dataset"] == {"file": "t.jsonl", "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data), "rows": 1}
    assert told["lines"] == [{
        "task_id": "t1", "sha256": hashlib.sha256(data.rstrip(b"\n")).hexdigest(), "attempt_index": 0, "score": 0.75, "passed": True,
        "rollout_id": "r7", "store_attempt": 2, "generation_ids": ["g1", "g2"],
    }]  # fmt: skip
    assert list(attempts_of(told["lines"][0])) == told["lines"]
    assert (told["env_fingerprint"], told["policy_fingerprint"]) == ("env1:aa", "policy1:bb")
    assert told["fingerprints"]["env"]["components"] == {"scorer": "22", "tasks": "11"}
    assert told["report"] == report.as_dict() and told["report"]["n_skipped_failed"] == 1
    assert told["options"]["only_passed"] is True and told["options"]["profile"] == "tinker"
    assert (told["format"], told["exporter"]["format"], told["env"]["k"]) == (1, "sft", 2)
    (tmp_path / "t.jsonl").write_text("{}\n")
    with pytest.raises(UsageError, match="is not the dataset"):
        read_sidecar(tmp_path / "t.jsonl")


def test_an_empty_export_leaves_nothing_not_even_what_lay_there(tmp_path):
    path = tmp_path / "t.jsonl"
    to_sft_jsonl(result([attempt()]), path)
    report = to_sft_jsonl(result([attempt(0, False)]), path)
    assert (report.path, report.rows, report.sha256) == (None, 0, None)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(NotFound):
        read_sidecar(path)


def test_an_empty_export_leaves_a_file_that_is_nobody_s_export_alone(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    report = to_sft_jsonl(result([attempt(0, False)]), path)
    assert path.read_text() == "mine" and "lies there still" in report.warnings[0] and list(tmp_path.iterdir()) == [path]


def test_links_and_devices_are_not_renamed_over(tmp_path):
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "else.jsonl")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link.jsonl", "pipe"):
        for passed in (True, False):
            with pytest.raises(UsageError, match="is a link or a device"):
                to_sft_jsonl(result([attempt(0, passed)]), tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.jsonl", "pipe"]


def test_a_dry_run_counts_and_touches_nothing(tmp_path):
    path = tmp_path / "t.jsonl"
    to_sft_jsonl(result([attempt()]), path)
    before = path.read_bytes()
    assert to_sft_jsonl(result(answers(True, True)), path, dry_run=True).n_written == 2
    assert to_sft_jsonl(result([attempt(0, False)]), path, dry_run=True).rows == 0
    assert to_sft_jsonl(result([attempt()]), tmp_path / "elsewhere" / "t.jsonl", dry_run=True).n_written == 1
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 2


def test_an_export_that_fails_leaves_the_old_pair_and_no_temporary_file(tmp_path):
    path = tmp_path / "t.jsonl"
    to_sft_jsonl(result([attempt()]), path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    broken = replace(SFT, check=lambda row: "no good")
    with pytest.raises(InvalidDataset, match="line 1: no good"):
        write_export(result([attempt(run=text_run("new"))]), path, broken, ExportOptions())
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_bad_input_is_said_in_one_line(tmp_path):
    tried = result([attempt()])
    with pytest.raises(UsageError, match="is a directory"):
        to_sft_jsonl(tried, tmp_path)
    with pytest.raises(UsageError, match="no profile 'tinkr'"):
        to_sft_jsonl(tried, tmp_path / "t.jsonl", profile="tinkr")
    with pytest.raises(UsageError, match="limit is 0"):
        to_sft_jsonl(tried, tmp_path / "t.jsonl", limit=0)
    with pytest.raises(UsageError, match="min_value is nan"):
        to_sft_jsonl(tried, tmp_path / "t.jsonl", min_value=float("nan"))
    with pytest.raises(NotFound, match="no result at"):
        to_sft_jsonl(tmp_path / "none.jsonl", tmp_path / "t.jsonl")
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError):
        to_sft_jsonl(tried, tmp_path / "file" / "t.jsonl")


def test_a_saved_result_gives_the_same_bytes_as_the_one_in_memory(tmp_path):
    tried = result(answers(True, False), answers(True, True, question="easy"), answers(None, True, False, question="hard"))
    saved = tmp_path / "result.jsonl"
    tried.save(saved)
    for name, one in {"memory": tried, "file": saved}.items():
        to_sft_jsonl(one, tmp_path / name / "t.jsonl")
    for name in ("t.jsonl", "t.jsonl.meta.json"):
        assert (tmp_path / "memory" / name).read_bytes() == (tmp_path / "file" / name).read_bytes()
    with pytest.raises(UsageError, match="is the result itself"):
        to_sft_jsonl(saved, saved)


def test_evaluation_tasks_stay_out(tmp_path):
    tried = result(("a", [attempt()]), ("b", [attempt(run=text_run(answer="two"))]))
    guard = LeakageGuard({"dev": [Task("Question  B?")]})
    report = to_sft_jsonl(tried, tmp_path / "t.jsonl", exclude=guard)
    assert nonzero(report) == {"skipped_leaked": 1, "written": 1}
    assert read_sidecar(tmp_path / "t.jsonl")["options"]["exclude"]["pools"] == ["dev"]


def test_personal_data_is_replaced_and_counted(tmp_path):
    run = text_run("My card is 4111 1111 1111 1111, mail bob.smith@acme.org", "I wrote to bob.smith@acme.org")
    report = to_sft_jsonl(result([attempt(run=run)]), tmp_path / "t.jsonl")
    (row,) = rows(tmp_path / "t.jsonl")
    assert [message["content"] for message in row["messages"]][1:] == ["My card is [CARD], mail [EMAIL]", "I wrote to [EMAIL]"]
    assert report.redacted == {"card": 1, "email": 2} == read_sidecar(tmp_path / "t.jsonl")["report"]["redacted"]
    assert to_sft_jsonl(result([attempt(run=run)]), tmp_path / "t.jsonl", redact=False).redacted == {}


def test_no_more_than_one_task_is_held_at_a_time(tmp_path):
    alive = most = 0

    def gone():
        nonlocal alive
        alive -= 1

    def walk():
        nonlocal alive, most
        for task in range(300):
            asked = Task(f"question {task}", id=f"t{task}")
            for index in range(4):
                made = attempt(index, True, text_run(f"question {task}", "x" * 1000 + str(index)))
                alive += 1
                most = max(most, alive)
                weakref.finalize(made.run, gone)
                yield asked, made

    source = Source("sums", 4, result().env_fingerprint, result().policy_fingerprint, walk)
    report = to_sft_jsonl(source, tmp_path / "t.jsonl", profile="none")
    assert report.n_written == 1200 and most <= 12


VERDICT = st.sampled_from(["right", "wrong", "unscored", "tool", "limit", "blank", "media", "surrogate", "truncated", "big", "twice"])


def made(kind, index):
    runs = {
        "tool": tool_run(call_id=f"c{index}"),
        "limit": replace(tool_run(), tools=(ToolCall("calculate", {}, ToolOutcome.REFUSED),)),
        "blank": text_run(answer=""),
        "media": text_run(messages=({"role": "user", "content": [{"type": "image_url"}]}, {"role": "assistant", "content": "a"})),
        "surrogate": text_run(answer="\udc80"),
        "truncated": text_run(status=RunStatus.TRUNCATED),
        "big": text_run(answer="x" * 400_000),
        "twice": text_run(answer="again"),
    }
    return attempt(index, None if kind == "unscored" else kind != "wrong", runs.get(kind, text_run(answer=f"answer {index}")))


@settings(max_examples=30, deadline=None)
@given(
    tasks=st.lists(st.lists(VERDICT, max_size=6), max_size=3), name=st.sampled_from(sorted(FORMATS)), dedupe=st.booleans(),
    only_passed=st.booleans(), limit=st.none() | st.integers(1, 5), profile=st.sampled_from([None, "tinker"]),
)  # fmt: skip
def test_whatever_comes_in_the_counters_sum_to_the_candidates(tmp_path_factory, tasks, name, dedupe, only_passed, limit, profile):
    tried = result(*[[made(kind, index) for index, kind in enumerate(kinds)] for kinds in tasks])
    path = tmp_path_factory.mktemp("sum") / "t.jsonl"
    options = ExportOptions(dedupe=dedupe, only_passed=only_passed, limit=limit, profile=profile)
    report = write_export(tried, path, FORMATS[name], options)
    scored = sum(kind != "unscored" for kinds in tasks for kind in kinds)
    assert report.n_candidates == scored and report.n_unscored == sum(map(len, tasks)) - scored
    assert report.n_written == sum(len(list(attempts_of(line))) for line in (read_sidecar(path)["lines"] if report.rows else []))
    assert path.exists() == (report.rows > 0) == path.with_name("t.jsonl.meta.json").exists()
    if report.rows:
        assert validate(path, FORMATS[name]) == report.rows == len(read_sidecar(path)["lines"])
