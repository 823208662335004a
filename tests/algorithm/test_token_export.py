import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

import sys

sys.path.insert(0, str(Path(__file__).parents[1] / "environments"))

from attempts_for_tests import attempt, result

from leyden.algorithm.dataset import check_rows
from leyden.algorithm.rows import IGNORED, Row
from leyden.algorithm.token_export import _batches, export_tokens
from leyden.environments.exports.options import ExportOptions
from leyden.environments.exports.outcome import Outcome
from leyden.environments.exports.sidecar import read_sidecar
from leyden.environments.exports.source import as_source
from leyden.errors import UsageError
from leyden.server.interface import open_store
from leyden.types import Generation, NewRollout

EOS = 9


def call(lease, number, prompt, response, finish="stop"):
    name = f"{lease.rollout.input}-{number}"
    return Generation(
        id=name, call_id=name, rollout_id=lease.ref.rollout_id, attempt=lease.ref.attempt, model="m", checkpoint="version_1",
        prompt_token_ids=prompt, response_token_ids=response, logprobs=[-0.5] * len(response), finish_reason=finish, started_at=number,
        latency=0.1,
    )  # fmt: skip


CALLS = {
    "two_turns": [([1, 2], [3, EOS], "stop"), ([1, 2, 3, EOS, 4], [5, EOS], "stop")],
    "one_turn": [([1, 2], [7, EOS], "stop")],
    "failed": [([1, 2], [8, EOS], "stop")],
    "cut": [([1, 2], [3, 4], "length")],
    "nothing": [],
    "again": [([1, 2], [7, EOS], "stop")],
    "no_eos": [([1, 2], [6, 6], "stop")],
}


async def export(tmp_path, name="tokens.parquet", **options):
    """Everything above is one task's attempts, all but "failed" passed."""
    store = await open_store(tmp_path / "store.db")
    eos_ids = options.pop("eos_ids", None)
    try:
        if not await store.list_rollouts():
            await store.enqueue([NewRollout(input=kind, priority=place) for place, kind in enumerate(CALLS)])
            for lease in await store.claim("w", len(CALLS)):
                made = [call(lease, number, *one) for number, one in enumerate(CALLS[lease.rollout.input])]
                await store.add_generations(lease.ref, made)
                await store.complete(lease.ref)
        ids = {rollout.input: rollout.id for rollout in await store.list_rollouts()}
        tried = [attempt(place, kind != "failed", rollout_id=ids[kind], attempt=1) for place, kind in enumerate(CALLS)]
        tried.append(attempt(len(tried), None))
        return await export_tokens(as_source(result(tried)), store, tmp_path / name, ExportOptions(**options), eos_ids)
    finally:
        await store.close()


def records(path):
    return [record for batch in _batches(path, path.suffix) for record in batch.to_pylist()]


@pytest.mark.parametrize("name", ["tokens.parquet", "tokens.arrow"])
def test_rows_are_what_was_read_and_sampled_with_log_probabilities(tmp_path, name):
    report = asyncio.run(export(tmp_path, name))
    rows = records(tmp_path / name)
    assert rows[0]["input_ids"] == [1, 2, 3, EOS, 4, 5, EOS]
    assert rows[0]["labels"] == [IGNORED, IGNORED, 3, EOS, IGNORED, 5, EOS]
    assert rows[0]["logprobs"] == [None, None, -0.5, -0.5, None, -0.5, -0.5]
    assert (rows[0]["generation_ids"], rows[0]["checkpoint"], rows[0]["reward"], rows[0]["task_key"]) == (
        ["two_turns-0", "two_turns-1"], "version_1", 1.0, "t1",
    )  # fmt: skip
    fields = ("input_ids", "labels", "reward", "rollout_id", "attempt")
    check_rows([Row(**{field: row[field] for field in fields}, task="t1", generation_ids=()) for row in rows])
    assert (report.rows, report.n_written, report.n_skipped_failed, report.n_unscored) == (4, 4, 1, 1)
    assert report.counts[Outcome.SKIPPED_TRUNCATED] == 1 and report.refused == {"the store has no call of it": 1}
    assert report.n_candidates == len(CALLS) and report.duplicate_rows == 1


def test_the_sidecar_leads_from_a_row_to_its_rollout_and_calls_and_a_second_export_is_the_same(tmp_path):
    asyncio.run(export(tmp_path))
    path = tmp_path / "tokens.parquet"
    told, rows = read_sidecar(path), records(path)
    assert [line["row_id"] for line in told["lines"]] == [row["row_id"] for row in rows]
    assert [line["rollout_id"] for line in told["lines"]] == [row["rollout_id"] for row in rows]
    assert told["lines"][0]["generation_ids"] == ["two_turns-0", "two_turns-1"] and told["lines"][0]["attempt_index"] == 0
    assert told["options"]["redact"] is False and "not redacted" in told["report"]["warnings"][0]
    before = {file.name: file.read_bytes() for file in tmp_path.glob("tokens*")}
    asyncio.run(export(tmp_path))
    assert {file.name: file.read_bytes() for file in tmp_path.glob("tokens*")} == before and len(before) == 2


def test_options_hold_for_token_rows_too(tmp_path):
    assert asyncio.run(export(tmp_path, dedupe=True)).counts[Outcome.SKIPPED_DUPLICATE] == 1
    assert asyncio.run(export(tmp_path, limit=2)).counts[Outcome.DROPPED_OVER_LIMIT] == 2
    assert asyncio.run(export(tmp_path, only_passed=False)).n_written == 5
    assert asyncio.run(export(tmp_path, eos_ids=[EOS])).refused["no_eos"] == 1
    before = (tmp_path / "tokens.parquet").read_bytes()
    assert asyncio.run(export(tmp_path, dry_run=True, limit=1)).rows == 1 and (tmp_path / "tokens.parquet").read_bytes() == before
    assert asyncio.run(export(tmp_path, min_value=1.0, limit=1)).rows == 1
    for name, options in {"tokens.jsonl": {}, "tokens.arrow": {"profile": "tinker"}}.items():
        with pytest.raises(UsageError):
            asyncio.run(export(tmp_path, name, **options))


def test_without_rows_nothing_is_left(tmp_path):
    asyncio.run(export(tmp_path))
    assert json.loads((tmp_path / "tokens.parquet.meta.json").read_text())["dataset"]["rows"] == 4

    async def empty():
        store = await open_store(tmp_path / "store.db")
        try:
            nothing = result([replace(attempt(0, True), rollout_id="unknown")])
            return await export_tokens(as_source(nothing), store, tmp_path / "tokens.parquet", ExportOptions())
        finally:
            await store.close()

    assert asyncio.run(empty()).path is None
    assert not list(tmp_path.glob("tokens*"))


def test_what_a_run_collected_is_exported_from_its_store(tmp_path):
    from leyden.algorithm.run_source import source_of_run
    from leyden.errors import NotFound
    from leyden.types import FailureKind, Mode, Reward

    async def collected(rewards):
        store = await open_store(tmp_path / f"{len(rewards)}.db")
        new = [NewRollout(input=kind, run_id="run", group=f"task{n % 2}", priority=n) for n, kind in enumerate(CALLS)]
        try:
            await store.enqueue([*new, NewRollout(input="measured", run_id="run", mode=Mode.TEST)])
            for lease in await store.claim("w", len(CALLS) + 1):
                kind = lease.rollout.input
                await store.add_generations(lease.ref, [call(lease, n, *one) for n, one in enumerate(CALLS.get(kind, []))])
                if kind == "cut":
                    await store.fail(lease.ref, FailureKind.AGENT, "broken")
                else:
                    await store.complete(lease.ref, [Reward(value=rewards[kind])] if kind in rewards else [])
            with pytest.raises(NotFound, match="no rollout that succeeded for run other"):
                await source_of_run(store, "other")
            return await export_tokens(await source_of_run(store, "run"), store, tmp_path / "run.parquet", ExportOptions())
        finally:
            await store.close()

    report = asyncio.run(collected({"two_turns": 1.0, "one_turn": 0.75, "failed": 0.25, "again": 0.5}))
    assert (report.rows, report.n_skipped_failed, report.unscored) == (3, 1, {"scorer": 2})
    assert [(row["task_key"], row["reward"]) for row in records(tmp_path / "run.parquet")] == [
        ("task0", 1.0), ("task1", 0.75), ("task1", 0.5),
    ]  # fmt: skip
    with pytest.raises(UsageError, match="has reward 2"):
        asyncio.run(collected({"two_turns": 2.0}))
