"""The training child does what the job says, on every token of it, and its parent believes nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("trl")

from leyden.algorithm.dataset import supervised_tokens, write_rows
from leyden.algorithm.rows import IGNORED, Row
from leyden.algorithm.sft import child as training_child
from leyden.algorithm.sft.config import TrainConfig
from leyden.algorithm.sft.job import RESULT_FILE, TrainJob, TrainProgress, TrainResult
from leyden.algorithm.sft.train import check_result, train
from leyden.errors import Unavailable, UsageError
from leyden.models.registry import Registry
from leyden.models.verifier import verify, verify_in_child
from leyden.process import find_by_marker, new_marker

EOS = 2
CONFIG = TrainConfig.preset("demo").model_copy(update={"r": 4, "lr": 1e-2, "epochs": 2.0, "warmup_steps": 0})


def make_row(number: int, length: int = 90, prefix: int = 48) -> Row:
    shared, own = random.Random(0), random.Random(number + 1)
    ids = [shared.randrange(3, 400) for _ in range(prefix)] + [own.randrange(3, 400) for _ in range(length - prefix - 1)] + [EOS]
    answer = length - 20
    return Row(ids, [IGNORED] * answer + ids[answer:], 1.0, f"rollout-{number}", 1, f"task-{number}", (f"gen-{number}",), "version_0")


ROWS = [*(make_row(number) for number in range(11)), make_row(11, length=1500)]


def make_job(base: Path, output: Path, rows: list[Row] = ROWS, **changes) -> TrainJob:
    dataset = output.parent / f"{output.name}.arrow"
    return TrainJob(**{
        "base_dir": base, "parent_dir": base, "dataset_path": dataset, "dataset_sha256": write_rows(dataset, rows),
        "output_dir": output, "config": CONFIG, "expected_supervised_tokens": supervised_tokens(rows),
    } | changes)  # fmt: skip


def run_training(job: TrainJob, log_path: Path, on_progress=lambda progress: None, marker: str | None = None) -> TrainResult:
    return asyncio.run(train(job, on_progress=on_progress, log_path=log_path, marker=marker or new_marker(), timeout=240))


@pytest.fixture(scope="module")
def trained(tiny_model, tmp_path_factory):
    """(registry with version_0 and a trained version_1, the result, the progress that was reported)."""
    directory = tmp_path_factory.mktemp("run")
    registry, progress = Registry(directory / "models"), []
    base = registry.import_version(tiny_model)
    with registry.new_version(base) as draft:
        job = make_job(base.path, draft.path)
        result = run_training(job, directory / "train.log", progress.append)
        draft.commit(dataset_sha256=job.dataset_sha256)
    return registry, result, progress


def test_every_sampled_token_is_trained_on_and_reported(trained):
    _, result, progress = trained
    assert result.supervised_tokens == supervised_tokens(ROWS) == 12 * 20
    assert (result.rows, result.steps, result.epochs, len(result.losses)) == (12, 4, 2.0, 4)
    assert result.losses[-1] < result.losses[0]
    assert [p.step for p in progress] == [0, 1, 2, 3, 4]
    assert progress[-1] == TrainProgress(step=4, steps=4, loss=result.losses[-1], tokens=2 * 12 * 20, seconds_left=0.0)


def test_a_row_of_1500_tokens_keeps_its_last_label(tiny_model, tmp_path):
    """TRL cuts rows at 1,024 tokens unless told otherwise: this row's only labels come after that."""
    job = make_job(tiny_model, tmp_path / "out", [ROWS[-1]] * 2, config=CONFIG.model_copy(update={"max_steps": 1}))
    assert len(ROWS[-1].input_ids) == 1500 and ROWS[-1].labels[-1] == EOS and set(ROWS[-1].labels[:1480]) == {IGNORED}
    job.output_dir.mkdir()
    training_child.run(job, lambda event: None)
    assert check_result(job).supervised_tokens == 40


def test_what_was_saved_passes_the_verifier(trained, tmp_path):
    registry, _, _ = trained
    base, version = registry.get("version_0"), registry.get("version_1")
    report = asyncio.run(
        verify_in_child(version.path, base.path, version.adapter_dir, parent_dir=base.path, marker=new_marker(), log_path=tmp_path / "log")
    )
    assert report.ok, report.failures
    assert {"chat_template", "tokenizer", "weights", "changed", "logits"} <= {check.name for check in report.checks}


def test_the_next_iteration_trains_the_adapter_on_and_merges_it_into_the_base(trained, tmp_path):
    from safetensors.torch import load_file

    registry, _, _ = trained
    base, parent = registry.get("version_0"), registry.get("version_1")
    job = make_job(
        base.path, tmp_path / "out", parent_dir=parent.path, parent_adapter_dir=parent.adapter_dir,
        config=CONFIG.model_copy(update={"lr": 1e-9, "max_steps": 1}),
    )  # fmt: skip
    job.output_dir.mkdir()
    training_child.run(job, lambda event: None)
    report = verify(job.output_dir, base.path, job.output_dir / "adapter", parent_dir=parent.path)
    assert [check for check in report.checks if check.name == "weights" and check.ok], report.failures
    before, after = (load_file(directory / "adapter_model.safetensors") for directory in (parent.adapter_dir, job.output_dir / "adapter"))
    assert before.keys() == after.keys() and all((after[name] - before[name]).abs().max() < 1e-6 for name in before)
    settings = json.loads((job.output_dir / "adapter" / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == "version_0", "a path of this machine was saved"


def test_an_adapter_is_not_trained_on_with_another_shape(trained, tmp_path):
    registry, _, _ = trained
    parent = registry.get("version_1")
    job = make_job(registry.get("version_0").path, tmp_path / "out", parent_adapter_dir=parent.adapter_dir, config=TrainConfig())
    job.output_dir.mkdir()
    with pytest.raises(UsageError, match="r=4, alpha=32; the training config asks for r=32"):
        training_child.run(job, lambda event: None)


def test_sharing_the_prefix_and_accumulating_train_the_same_adapter(tiny_model, tmp_path):
    from safetensors.torch import load_file

    rows = [make_row(number, length=70 + 3 * number) for number in range(8)]  # unequal lengths, so that wrong weighting would show
    rows = [replace(row, labels=[IGNORED] * (60 - 2 * i) + row.input_ids[60 - 2 * i :]) for i, row in enumerate(rows)]
    adapters = []
    for name, changes in {
        "shared": {"share_prefix": True, "batch_size": 4, "accumulation": 2},
        "padded": {"share_prefix": False, "batch_size": 4, "accumulation": 2},
        "at-once": {"share_prefix": False, "batch_size": 8, "accumulation": 1},
    }.items():
        job = make_job(tiny_model, tmp_path / name, rows, config=CONFIG.model_copy(update={**changes, "lr": 1e-3}))
        job.output_dir.mkdir()
        training_child.run(job, lambda event: None)
        assert check_result(job).shared_prefix == changes["share_prefix"]
        adapters.append(load_file(job.output_dir / "adapter" / "adapter_model.safetensors"))
    for other in adapters[1:]:
        assert max(float((adapters[0][name] - other[name]).abs().max()) for name in other) < 1e-4


def test_shifted_labels_never_reach_the_optimizer(tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr("leyden.algorithm.dataset.check_rows", lambda rows: None)  # a writer that does not look
    shifted = [replace(row, labels=[*row.labels[1:], IGNORED]) for row in ROWS]
    job = make_job(tiny_model, tmp_path / "out", shifted)
    with pytest.raises(UsageError, match="are the labels shifted"):
        training_child.run(job, lambda event: None)
    assert not job.output_dir.exists()


def test_a_failing_child_is_reported_with_the_end_of_its_log(tiny_model, tmp_path):
    job = make_job(tiny_model, tmp_path / "out", dataset_sha256="0" * 64)
    with pytest.raises(Unavailable, match=r"training failed: .*has changed") as failure:
        run_training(job, tmp_path / "train.log")
    assert failure.value.hint.startswith("select its rows again\n")
    assert "Traceback" in failure.value.hint and "train.log" in failure.value.hint
    assert not (job.output_dir / RESULT_FILE).exists()


def test_a_child_killed_in_the_middle_leaves_nothing_that_looks_whole(tiny_model, tmp_path):
    registry, marker = Registry(tmp_path / "models"), new_marker()
    base = registry.import_version(tiny_model)

    def kill_at_the_first_step(progress: TrainProgress) -> None:
        if progress.step == 1:
            for process in find_by_marker(marker):
                os.kill(process.pid, signal.SIGKILL)

    with pytest.raises(Unavailable, match="training failed: exit status -9"), registry.new_version(base) as draft:
        job = make_job(base.path, draft.path, config=CONFIG.model_copy(update={"max_steps": 10_000}))
        run_training(job, tmp_path / "train.log", kill_at_the_first_step, marker)
    assert [version.name for version in registry.list()] == ["version_0"]
    assert sorted(path.name for path in registry.directory.iterdir() if path.is_dir()) == ["version_0"]
    with pytest.raises(Unavailable, match="left no result"):
        check_result(job)


def test_cancelling_ends_the_child(tiny_model, tmp_path):
    marker = new_marker()
    job = make_job(tiny_model, tmp_path / "out", config=CONFIG.model_copy(update={"max_steps": 10_000}))

    async def cancel_at_the_first_step() -> None:
        def cancel(progress: TrainProgress) -> None:
            assert find_by_marker(marker)
            task.cancel()

        task = asyncio.ensure_future(train(job, on_progress=cancel, log_path=tmp_path / "train.log", marker=marker))
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel_at_the_first_step())
    assert not find_by_marker(marker)
    assert not (job.output_dir / RESULT_FILE).exists()


def finished(tmp_path: Path, **changes) -> TrainJob:
    """A job over an output directory that says it is done."""
    output = tmp_path / "out"
    output.mkdir()
    (output / "model.safetensors").write_bytes(b"12345")
    result = {
        "supervised_tokens": 240, "rows": 12, "steps": 4, "epochs": 1.0, "losses": [1.0], "seconds": 1.0, "device": "cpu",
        "dtype": "float32", "shared_prefix": True, "files": {"model.safetensors": 5},
    } | changes  # fmt: skip
    (output / RESULT_FILE).write_text(TrainResult(**result).model_dump_json())
    return TrainJob(
        base_dir=tmp_path, parent_dir=tmp_path, dataset_path=tmp_path / "rows", dataset_sha256="", output_dir=output,
        expected_supervised_tokens=240,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"supervised_tokens": 239}, "saw 239 labelled tokens in one pass over the rows, but 240 were selected"),
        ({"supervised_tokens": 300, "epochs": 0.5}, "saw 300"),
        ({"files": {"model.safetensors": 6}}, "names model.safetensors with 6 bytes"),
        ({"files": {"adapter/adapter_model.safetensors": 5}}, "names adapter/adapter_model.safetensors"),
    ],
)
def test_a_result_that_does_not_hold_is_refused(tmp_path, changes, message):
    with pytest.raises(Unavailable, match=message):
        check_result(finished(tmp_path, **changes))


def test_stopping_within_the_first_pass_may_leave_tokens_unseen(tmp_path):
    assert check_result(finished(tmp_path, supervised_tokens=100, epochs=0.5)).supervised_tokens == 100


def test_epochs_follow_the_size_of_the_data():
    config = TrainConfig()
    assert [config.passes(rows) for rows in (8, 96, 200, 480, 5000)] == [3, 3, 2, 1, 1]
    assert (config.steps(96), config.steps(97), config.steps(4)) == (36, 39, 3)
    assert config.model_copy(update={"epochs": 1.5}).steps(96) == 18
    assert config.model_copy(update={"max_steps": 60}).steps(96) == 60
    with pytest.raises(UsageError) as failure:
        TrainConfig.preset("demos")
    assert failure.value.hint == "choose one of recipe, demo"
