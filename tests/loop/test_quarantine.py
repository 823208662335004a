"""What a run collected and did not make rows of is listed with its reason, adds up, and can be tried again under other settings."""

from __future__ import annotations

import json
from hashlib import sha256

import pytest
from instant_loop import END, SMALL, play

import leyden.cli
from leyden.algorithm.dataset import read_rows
from leyden.algorithm.quarantine import read_quarantine
from leyden.algorithm.refusals import by_reason
from leyden.algorithm.rows import IGNORED, RowsConfig
from leyden.algorithm.sft.settings import SFTConfig
from leyden.audit import Audit, Finding
from leyden.cli import progress
from leyden.environments.exports.sidecar import read_sidecar
from leyden.types import Mode

NEWLINE = 10
CONFIG = SFTConfig(selection=SMALL, rows=RowsConfig(any_template=True))  # the played model has no tokenizer
MESSAGES = [{"role": "user", "content": "a question"}]


def said(prompt, response, finish="stop", **more):
    answer = {"role": "assistant", "content": "an answer"}
    return {"prompt_token_ids": prompt, "response_token_ids": response, "finish_reason": finish, "request": {"messages": MESSAGES},
            "response": answer} | more  # fmt: skip


def calls(rollout, version):
    """Task by task: something of every kind."""
    unique = [3 + ord(character) % 50 for character in rollout.id]
    number = int(rollout.input.split()[1]) if rollout.mode is Mode.TRAIN else 0
    first = said([1, 5], [*unique, END], "tool_calls")
    history = [1, 5, *unique, END, NEWLINE, 30]
    match number % 8:
        case 0 | 1 | 2:  # two turns, one row
            return [first, said(history, [7, END])]
        case 3:  # the second stopped at its limit, and the agent went on: the template closed the turn
            cut = said(history, [8, 9], "length")
            return [first, cut, said([*history, 8, 9, END, NEWLINE, 31], [6, END])]
        case 4:  # an engine that lost its ids, once
            return [first, said(history, None)]
        case 5:  # its audit found something
            return [first | {"audit": Audit(findings=(Finding.COUNT_MISMATCH,))}]
        case 6:  # nobody scored it
            return [first]
        case _:  # the agent asked another model
            return [first, said([1, 9], [9, END], checkpoint=None), said([1, 2], None, None, status="error", error="refused")]


def rewards(version, task, mode):
    number = int(task.split()[1])
    return {} if mode is Mode.TRAIN and number % 8 == 6 else number % 2


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        return play(tmp_path_factory.mktemp("quarantine"), patch, rewards, CONFIG, train=16, calls=calls)


def ask(played, capsys, *args, status=0):
    found = leyden.cli.run(["quarantine", *map(str, args), "--runs", str(played.run.path.parent)])
    out, err = capsys.readouterr()
    assert found == status, err
    return out, err


def as_json(played, capsys, *args):
    return json.loads(ask(played, capsys, *args, "--json")[0])


def digests(directory):
    return {
        path.relative_to(directory): sha256(path.read_bytes()).hexdigest()
        for path in directory.rglob("*")
        if path.is_file() and not path.name.startswith("store.db")
    }


def test_every_call_is_in_a_row_or_in_quarantine(played):
    outputs = played.run.read_manifest(1, "collect")["outputs"]
    quarantine = read_quarantine(played.run, 1)
    assert outputs["calls"] == 2 * (3 * 2 + 3 + 2 + 1 + 1 + 3)
    assert outputs["calls"] == outputs["rows"]["rows"] + outputs["rows"]["merged_calls"] + outputs["quarantine"]["calls"]
    assert by_reason(quarantine.entries) == outputs["quarantine"]["reasons"] == {
        "count_mismatch": 2, "error": 2, "no_ids": 2, "no_reward": 2, "other_checkpoint": 2, "truncated": 6,
    }  # fmt: skip
    calls = [call for entry in quarantine.entries for call in entry.generation_ids]
    assert len(calls) == len(set(calls)) == outputs["quarantine"]["calls"]
    (iteration,) = json.loads((played.run.path / "summary.json").read_text())["iterations"]
    told = iteration["collection"]
    assert told["calls"] == told["rows"] + told["merged_calls"] + told["quarantined"]["calls"]


def test_the_quarantine_holds_references_only(played):
    text = (played.run.path / "iteration_1" / "quarantine.jsonl").read_text()
    assert "an answer" not in text and "token_ids" not in text
    tasks = {entry.task for entry in read_quarantine(played.run, 1).entries}
    assert None not in tasks and len(tasks) == 2 * 5


def test_a_person_can_list_it_whole_and_by_reason(played, capsys):
    out, err = ask(played, capsys, "run-1")
    lines = [line.split("\t") for line in out.splitlines()]
    assert len(lines) == 12 and ["truncated", "3"] in [line[1:3] for line in lines]
    assert "call 2 of 3 ended by length" in out
    assert err.startswith("iteration 1: 32 calls, 16 in 10 rows, 16 in quarantine: 6 truncated")
    assert len(ask(played, capsys, "--reason", "no_ids")[0].splitlines()) == 2
    told = as_json(played, capsys, "@latest", "--iteration", 1, "--reason", "error")
    assert [entry["detail"] for entry in told["iterations"][0]["entries"]] == ["refused"] * 2
    assert told["iterations"][0]["quarantined_calls"] == 16
    assert "did you mean truncated?" in ask(played, capsys, "--reason", "truncate", status=2)[1]
    assert "there are: 1" in ask(played, capsys, "--iteration", 7, status=2)[1]


def test_what_was_said_is_exported_with_its_ids(played, capsys, tmp_path):
    path = tmp_path / "calls.jsonl"
    assert ask(played, capsys, "--export", path)[0] == f"{path}\n"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == 16 and not any(line["missing"] for line in lines)
    cut = next(line for line in lines if line["finish_reason"] == "length")
    assert cut["messages"] == [*MESSAGES, {"role": "assistant", "content": "an answer"}]
    assert cut["response_token_ids"] == [8, 9] and cut["reason"] == "truncated"
    assert next(line for line in lines if line["reason"] == "count_mismatch")["audit"]["findings"] == ["count_mismatch"]


def test_length_stopped_turns_can_be_replayed_and_the_token_that_closed_them_is_not_trained(played, capsys, tmp_path):
    before, path = digests(played.run.path), tmp_path / "again.arrow"
    told = as_json(played, capsys, "replay", "run-1", "--keep-truncated", "--output", path)
    assert (told["calls"], told["released_calls"], told["repeated_calls"], told["missing_calls"]) == (16, 6, 0, 0)
    assert told["calls"] == told["released_calls"] + sum(len(entry["generation_ids"]) for entry in told["still"])
    first, second = read_rows(path)
    assert len(first.generation_ids) == len(second.generation_ids) == 3
    closed = [8, 9, END, NEWLINE, 31]  # an 8 alone may stand in a rollout's id too
    cut = next(at for at in range(len(first.input_ids)) if first.input_ids[at : at + 5] == closed)
    assert first.labels[cut : cut + 5] == [8, 9, IGNORED, IGNORED, IGNORED] and first.labels[-1] == END
    sidecar = read_sidecar(path)
    assert [line["row_id"] for line in sidecar["lines"]] == [row["row_id"] for row in told["rows"]]
    assert set(sidecar["lines"][0]["were"].values()) == {"truncated"} and sidecar["options"]["rows"] == {"keep_truncated": True}
    assert digests(played.run.path) == before


def test_a_replay_that_releases_nothing_leaves_no_file(played, capsys, tmp_path):
    path = tmp_path / "again.arrow"
    ask(played, capsys, "replay", "--keep-truncated", "--output", path)
    out, err = ask(played, capsys, "replay", "--output", path)
    assert out == "" and "0 of 16 calls in quarantine pass now" in err and "nothing written" in err
    assert list(tmp_path.iterdir()) == []


def test_a_replay_that_takes_long_says_how_far_it_is(played, capsys, monkeypatch):
    monkeypatch.setattr(progress, "EVERY", -1.0)
    said = [line for line in ask(played, capsys, "replay", "--keep-truncated")[1].splitlines() if line.endswith("attempts read")]
    attempts = int(said[0].split()[2])
    assert said == [f"{n} of {attempts} attempts read" for n in range(1, attempts + 1)]


def test_a_replay_may_also_leave_more_out(played, capsys):
    told = as_json(played, capsys, "replay", "--keep-truncated", "--max-tokens", 60, "--reason", "truncated")
    whole = as_json(played, capsys, "replay", "--keep-truncated", "--reason", "truncated")["rows"][0]["tokens"]
    assert whole <= 60 and told["released_calls"] == 6
    turns = as_json(played, capsys, "replay", "--keep-truncated", "--max-tokens", whole - 1, "--truncate", "turns", "--reason", "truncated")
    assert turns["released_calls"] == 4 and [entry["reason"] for entry in turns["still"]] == ["too_long"] * 2
    refused = as_json(played, capsys, "replay", "--keep-truncated", "--max-tokens", whole - 1, "--reason", "truncated")
    assert refused["released_calls"] == 0


def test_what_cannot_be_asked_of_a_replay_is_said_in_two_lines_before_it_begins(played, capsys, tmp_path):
    inside = played.run.path / "again.arrow"
    for args, hint in (
        (("--reward-policy", "discount"), "did you mean discounted?"),
        (("--output", tmp_path / "rows.parquet"), "for instance"),
        (("--output", inside), "name a file elsewhere"),
        (("--output", "."), "name a file in it"),
    ):
        err = ask(played, capsys, "replay", *args, "--store", "http://127.0.0.1:1", status=2)[1]
        assert err.startswith("error: ") and hint in err
    assert not inside.exists()


def test_an_export_replaces_nothing_of_the_run(played, capsys):
    before = digests(played.run.path), (played.run.path / "store.db").stat().st_ino
    for path in (played.run.path / "store.db", played.run.path / "iteration_1" / "quarantine.jsonl"):
        assert "name a file elsewhere" in ask(played, capsys, "--export", path, status=2)[1]
    assert "name a file in it" in ask(played, capsys, "--export", ".", status=2)[1]
    assert (digests(played.run.path), (played.run.path / "store.db").stat().st_ino) == before


def test_attempts_that_no_one_answer_can_hold_are_read_in_several(played, capsys, monkeypatch):
    from leyden.server.operations import generations

    whole = as_json(played, capsys, "replay", "--keep-truncated")
    monkeypatch.setattr(generations, "MAX_ANSWER", 3000)
    assert as_json(played, capsys, "replay", "--keep-truncated") == whole
    monkeypatch.setattr(generations, "MAX_ANSWER", 10)
    assert "hold more than" in ask(played, capsys, "replay", status=2)[1]


def test_a_quarantine_that_was_changed_is_refused(played, capsys):
    path = played.run.path / "iteration_1" / "quarantine.jsonl"
    kept = path.read_bytes()
    path.write_bytes(kept.splitlines(keepends=True)[0])
    try:
        assert "its sha256 is another" in ask(played, capsys, "run-1", status=2)[1]
    finally:
        path.write_bytes(kept)


def test_a_driver_that_goes_on_leaves_the_quarantine_as_it_was(played, monkeypatch):
    path = played.run.path / "iteration_1" / "quarantine.jsonl"
    before = path.read_bytes(), path.stat().st_mtime_ns
    play(played.run.path.parents[1], monkeypatch, rewards, CONFIG, train=16, calls=calls)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
