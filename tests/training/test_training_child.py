"""What the driver makes of its training child: it follows it, ends it, and believes nothing it has not seen for itself."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("trl")

from backend_suite import CONFIG, make_job, run_training

from leyden.algorithm.sft.config import TrainConfig
from leyden.algorithm.sft.job import RESULT_FILE, TrainJob, TrainProgress, TrainResult
from leyden.algorithm.sft.train import check_result, train
from leyden.errors import DiskError, Unavailable, UsageError
from leyden.models.registry import Registry
from leyden.process import find_by_marker, new_marker


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

    draft = registry.new_draft(base)
    job = make_job(base.path, draft.path, config=CONFIG.model_copy(update={"max_steps": 10_000}))
    with pytest.raises(Unavailable, match=r"training failed: killed from outside \(SIGKILL\)") as failure:
        run_training(job, tmp_path / "train.log", kill_at_the_first_step, marker)
    assert "train.batch_size 4 with train.accumulation 2" in failure.value.hint and "train.log" in failure.value.hint
    assert [version.name for version in registry.list()] == ["version_0"]
    with pytest.raises(Unavailable, match="left no result"):
        check_result(job)


def test_nothing_is_started_where_the_result_would_not_fit(tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    job = make_job(tiny_model, tmp_path / "out")
    with pytest.raises(DiskError, match=r"no space left on the disk of .*: needs about \d+ kB, 1 kB free"):
        run_training(job, tmp_path / "train.log")
    assert not (tmp_path / "train.log").exists()


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
        "backend": "trl", "software": {}, "dtype": "float32", "shared_prefix": True, "files": {"model.safetensors": 5},
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
