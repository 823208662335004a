"""``leyden export``, ``leyden rescore`` and ``leyden pools`` on an eval that was really run."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import sums_room

import leyden.cli
from leyden.environments.evaldir import EvalDir
from leyden.environments.exports.sidecar import read_sidecar
from leyden.environments.pools import Pools
from leyden.environments.rescore import arescore, record, rescore, result_path, store_of
from leyden.environments.results import EnvironmentRunResult, TaskResult
from leyden.environments.run import run_rollouts
from leyden.environments.task import Task
from leyden.errors import Conflict

ROOM = str(Path(sums_room.__file__))


@pytest.fixture(scope="module")
def evals(tmp_path_factory):
    evals = tmp_path_factory.mktemp("evals") / "evals"
    sums_room._turns.clear()
    run_rollouts(sums_room.env, k=4, concurrency=1, evals=evals, quiet=True)
    return evals


@pytest.fixture
def leyden_(evals, capsys, monkeypatch):
    """Run one line in the directory of the evals: (status, stdout, stderr)."""
    monkeypatch.chdir(evals.parent)

    def call(*args):
        status = leyden.cli.run([str(arg) for arg in args])
        out, err = capsys.readouterr()
        return status, out, err

    return call


def test_export_prints_the_path_and_counts_the_rest(leyden_, evals, tmp_path):
    status, out, err = leyden_("export", "@latest", "--learning-zone", "--out", tmp_path / "t.jsonl")
    assert (status, out) == (0, f"{tmp_path / 't.jsonl'}\n")
    assert "2 rows of 2 of 4 scored attempts" in err and "2 skipped failed" in err and "2 redacted: email" in err
    told = read_sidecar(tmp_path / "t.jsonl")
    assert [line["task_id"] for line in told["lines"]] == ["mixed", "mixed"] and told["env"]["selection"] == "learning_zone"
    (run,) = EvalDir.all(evals)

    async def find():
        async with store_of(run) as store:
            return [await store.get_rollout(line["rollout_id"]) for line in told["lines"]]

    assert {rollout.group for rollout in asyncio.run(find())} == {"mixed"}


def test_export_says_all_of_it_in_json_and_writes_beside_the_eval_by_default(leyden_, evals):
    status, out, _ = leyden_("export", "latest", "--format", "kto", "--json")
    told = json.loads(out)
    (run,) = EvalDir.all(evals)
    assert status == 0 and Path(told["path"]).resolve() == (run.path / "kto.jsonl").resolve()
    assert (told["rows"], told["n_candidates"], told["n_unscored"], told["unscored"]) == (12, 12, 4, {"error": 4})
    assert sum(value for name, value in told.items() if name.startswith("n_") and name not in ("n_candidates", "n_unscored")) == 12
    (run.path / "kto.jsonl").unlink()


def test_a_dry_run_and_an_empty_export_leave_no_file(leyden_, tmp_path):
    assert leyden_("export", "@latest", "--dry-run", "--out", tmp_path / "t.jsonl")[0:2] == (0, "")
    status, out, err = leyden_("export", "@latest", "--min-value", "1.0", "--exclude-pool", "evals", "--out", tmp_path / "t.jsonl")
    assert status == 2 and "no pools in evals" in err
    (tmp_path / "held.jsonl").write_text(json.dumps({"input": "AN EASY SUM"}) + "\n" + json.dumps({"input": "a mixed sum!"}) + "\n")
    status, out, err = leyden_("export", "@latest", "--exclude-pool", tmp_path / "held.jsonl", "--out", tmp_path / "t.jsonl")
    assert (status, out) == (0, "") and "nothing written" in err and "6 skipped leaked" in err
    assert not (tmp_path / "t.jsonl").exists()


@pytest.mark.parametrize(
    "args, message",
    [
        (("nothing",), "no eval 'nothing'"),
        (("@latest", "--format", "alpaca"), "no format 'alpaca'"),
        (("@latest", "--profile", "tinkr"), "no profile 'tinkr'"),
        (("@latest", "--limit", "0"), "limit is 0"),
        (("@latest", "--format", "tokens", "--out", "t.jsonl"), "neither .parquet nor .arrow"),
        (("@latest", "--scored-by", "nobody"), "has no result scored by nobody"),
        (("evals/latest/result.jsonl", "--scored-by", "nobody"), "is a file, with the scores that it has"),
    ],
)
def test_bad_use_is_two_lines(leyden_, args, message):
    status, out, err = leyden_("export", *args)
    assert status == 2 and out == "" and message in err and "hint:" in err and "Traceback" not in err


def test_token_rows_come_from_the_evals_store(leyden_, tmp_path):
    pytest.importorskip("pyarrow")
    status, _, err = leyden_("export", "@latest", "--format", "tokens", "--out", tmp_path / "t.parquet")
    assert status == 0 and "6 because: the store has no call of it" in err  # there was no model


def test_a_rescore_keeps_both_verdicts(leyden_, evals):
    (run,) = EvalDir.all(evals)
    before = run.result.read_bytes()
    status, out, err = leyden_("rescore", "@latest", "--scorer", f"{ROOM}:passes_all")
    path = Path(out.strip())
    assert status == 0 and "6 now pass, 0 no longer do, 6 as before" in err and "4 have no answer to judge" in err
    assert run.result.read_bytes() == before
    new = EnvironmentRunResult.load(path)
    source = sums_room.passes_all.digest()
    assert (new.n_passed, new.n_scored) == (12, 12) and {a.scorer for _, a in new.attempts() if a.score} == {source}
    as_if = sums_room.Environment("sums", sums_room.env.tasks, sums_room.passes_all, sums_room.agent).env_fingerprint()
    assert new.env_fingerprint.matches(as_if)  # it judges as that environment would have
    _, first = next(EnvironmentRunResult.load(run.result).attempts())

    async def rewards():
        async with store_of(run) as store:
            return await store.list_rewards([first.rollout_id])

    kept = [(reward.name, reward.source) for reward in asyncio.run(rewards())]
    assert kept == [(name, one) for one in (first.scorer, source) for name in ("reward", "passed")]
    assert result_path(run, source[:5]) == result_path(run, source) == run.path / path.name
    assert leyden_("rescore", "@latest", "--scorer", f"{ROOM}:passes_all")[0] == 0  # the same again changes nothing
    status, out, _ = leyden_("export", "@latest", "--scored-by", source[:8], "--json", "--dry-run")
    assert json.loads(out)["n_written"] == 12


def test_only_what_failed_of_one_task_and_a_dry_run_records_nothing(leyden_, evals):
    (run,) = EvalDir.all(evals)
    files = sorted(path.name for path in run.path.iterdir())
    status, out, _ = leyden_("rescore", "@latest", "--scorer", f"{ROOM}:nameless", "--as", "x", "--only", "failed", "--task", "mixed",
                             "--dry-run", "--json")  # fmt: skip
    told = json.loads(out)
    assert (status, told["n_asked"], told["n_now_passing"], told["result"]) == (0, 2, 2, None)
    assert sorted(path.name for path in run.path.iterdir()) == files


def test_a_scorer_that_varies_needs_a_name_for_each_round(leyden_):
    assert leyden_("rescore", "@latest", "--scorer", f"{ROOM}:moody")[0] == 0
    status, _, err = leyden_("rescore", "@latest", "--scorer", f"{ROOM}:moody")
    assert status == 5 and "is already" in err and "--as NAME" in err
    assert leyden_("rescore", "@latest", "--scorer", f"{ROOM}:moody", "--as", "round-2")[0] == 0


@pytest.mark.parametrize(
    "args, message",
    [
        ((f"{ROOM}:nameless",), "has no digest"),
        ((f"{ROOM}:env",), "is no scorer but a Environment"),
        ((f"{ROOM}:moody", "--only", "bad"), "--only 'bad' says nothing"),
        ((f"{ROOM}:moody", "--task", "none"), "there is no task 'none'"),
        ((f"{ROOM}:typed",), "the scorer raised at every attempt"),
        ((f"{ROOM}:passes_all", "--as", "agent"), "no scores can be recorded under 'agent'"),
        ((f"{ROOM}:passes_all", "--as", "x" * 129), "no scores can be recorded under"),
        ((f"{ROOM}:passes_all", "--as", ""), "no scores can be recorded under"),
    ],
)
def test_a_scorer_that_is_none_is_refused(leyden_, args, message):
    status, out, err = leyden_("rescore", "@latest", "--scorer", *args)
    assert status == 2 and out == "" and message in err


def test_an_attempt_that_has_not_ended_is_not_scored_again(tmp_path):
    from leyden.server.interface import open_store
    from leyden.types import NewRollout, Reward

    async def go():
        store = await open_store(tmp_path / "store.db")
        try:
            await store.enqueue([NewRollout(input="a"), NewRollout(input="b")])
            first, second = [(await store.claim("w"))[0] for _ in range(2)]
            await store.complete(first.ref, [Reward(value=1.0, source="v1")])
            places = [(first.ref.rollout_id, 1), (first.ref.rollout_id, None), (None, None), (second.ref.rollout_id, 1)]
            made = [replace(answered, index=n, rollout_id=rollout, attempt=number) for n, (rollout, number) in enumerate(places)]
            tried = replace(EnvironmentRunResult.load(result), task_results=(TaskResult(Task("a", None, "t"), tuple(made)),))
            found = await arescore(tried, sums_room.passes_all)
            with pytest.raises(Conflict, match=r"t/3: attempt 1 of .* has not ended") as refused:
                await record(store, found)
            assert "--as" not in refused.value.hint
            return [reward.source for reward in await store.list_rewards([first.ref.rollout_id]) if reward.name == "reward"]
        finally:
            await store.close()

    result = tmp_path / "result.jsonl"
    run_rollouts(sums_room.env, k=1, concurrency=1, evals=tmp_path / "evals", quiet=True).save(result)
    answered = next(one for _, one in EnvironmentRunResult.load(result).attempts() if one.score)
    assert asyncio.run(go()) == ["v1", sums_room.passes_all.digest()]


def test_typed_answers_are_judged_as_what_they_were(evals, tmp_path):
    (run,) = EvalDir.all(evals)
    task, made = next(EnvironmentRunResult.load(run.result).attempts())
    typed = replace(made, run=replace(made.run, content=sums_room.Answer(number=7)))
    one = replace(EnvironmentRunResult.load(run.result), task_results=(TaskResult(Task(task.input, 7, task.id), (typed,)),))
    one.save(tmp_path / "typed.jsonl")
    found = rescore(EnvironmentRunResult.load(tmp_path / "typed.jsonl", sums_room.Answer), sums_room.typed)
    assert (found.result.n_passed, found.errors) == (1, {})
    plain = rescore(EnvironmentRunResult.load(tmp_path / "typed.jsonl"), sums_room.typed)
    assert "AssertionError" in plain.errors[f"{task.id}/0"] and plain.result.n_scored == 0


def test_pools_check_answers_with_its_exit_status(leyden_, tmp_path):
    held, train = tmp_path / "eval.jsonl", tmp_path / "train.jsonl"
    held.write_text('{"input": "What is the sum of 12 and 34?", "id": "e"}\n')
    train.write_text('{"input": "What is the sum of 12 and 35?", "id": "near"}\n')
    status, out, err = leyden_("pools", "check", "--train", train, "--eval", held)
    assert (status, out) == (0, "") and "1 more are one with other numbers" in err
    train.write_text('{"input": "what is the TOTAL of 12 and 34", "id": "leak"}\n')
    status, out, err = leyden_("pools", "check", "--train", train, "--eval", held)
    assert status == 1 and out.split("\t")[:4] == ["leak", "reworded", str(held), "e"] and "1 of 1 training tasks" in err
    status, out, _ = leyden_("pools", "check", "--train", train, "--eval", held, "--json")
    assert status == 1 and json.loads(out)["leaks"][0]["eval_text"] == "What is the sum of 12 and 34?"
    status, _, err = leyden_("pools", "check")
    assert status == 2 and "which pools?" in err
    held.write_text("")
    status, _, err = leyden_("pools", "check", "--train", train, "--eval", held)
    assert status == 2 and "holds no evaluation task" in err
    assert leyden_("pools", "make", tmp_path / "only", "--train", train)[0] == 0
    status, _, err = leyden_("pools", "check", tmp_path / "only")
    assert status == 2 and "nothing to check against" in err


def test_pools_are_listed_and_a_dev_task_moves(leyden_, tmp_path):
    (tmp_path / "train.jsonl").write_text('{"input": "one", "id": "t"}\n')
    (tmp_path / "dev.jsonl").write_text('{"input": "two words here 5", "id": "d"}\n{"input": "three", "id": "e"}\n')
    files = ("--train", tmp_path / "train.jsonl", "--dev", tmp_path / "dev.jsonl")
    status, out, _ = leyden_("pools", "make", tmp_path / "p", *files, "--source", "by hand", "--json")
    told = json.loads(out)["pools"]
    assert status == 0 and [pool["n"] for pool in told] == [1, 2, 0, 0] and told[0]["provenance"]["source"] == "by hand"
    assert leyden_("pools", "make", tmp_path / "p", *files)[0] == 5
    assert leyden_("pools", "list", tmp_path / "p")[1].splitlines()[1].startswith("dev\t2\t")
    assert leyden_("pools", "move", tmp_path / "p", "d", "--reason", "it failed", "--dry-run")[0] == 0
    assert len(Pools.read(tmp_path / "p")["dev"].tasks) == 2
    status, _, err = leyden_("pools", "move", tmp_path / "p", "d", "--reason", "it failed")
    assert status == 0 and "moved 1: train 2, dev 1" in err
    assert leyden_("pools", "check", tmp_path / "p")[0] == 0
    assert Pools.read(tmp_path / "p")["train"].moves[0].reason == "it failed"
