"""A training that runs out of memory, or is ended from outside, is reported as that, and no version appears."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "training")]

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from backend_suite import CONFIG, make_job, make_row, run_training  # noqa: E402

from leyden.algorithm.rows import IGNORED, Row  # noqa: E402
from leyden.algorithm.sft import child as training_child  # noqa: E402
from leyden.errors import LeydenError, Unavailable  # noqa: E402
from leyden.models.registry import Registry  # noqa: E402
from leyden.process import find_by_marker, new_marker  # noqa: E402

ENOUGH_TO_START = 4_000_000  # kB of address space: the libraries load, 64 rows of 4,000 tokens at once do not fit


@pytest.fixture
def registry(tmp_path):
    from tinymodel import make_tiny_model

    registry = Registry(tmp_path / "models")
    registry.import_version(make_tiny_model(tmp_path / "tiny"))
    return registry


def fails(registry: Registry, tmp_path: Path, config, rows=None, on_progress=lambda progress: None, marker=None) -> LeydenError:
    draft = registry.new_draft(registry.get("version_0"))
    job = make_job(draft.parent.path, draft.path, *([rows] if rows else []), config=config)
    with pytest.raises(LeydenError) as failure:
        run_training(job, tmp_path / "train.log", on_progress, marker)
    draft.discard()
    assert [version.name for version in registry.list()] == ["version_0"] and registry.sweep_drafts() == []
    assert registry.verify_files(registry.get("version_0")) == []
    return failure.value


def large_rows() -> list[Row]:
    rows = [make_row(number, length=4000) for number in range(64)]
    return [Row(**{**vars(row), "labels": [IGNORED, *row.input_ids[1:]]}) for row in rows]


@pytest.mark.skipif(sys.platform != "linux", reason="ulimit -v is Linux's")
def test_out_of_memory_is_reported_as_such_with_what_to_change(registry, tmp_path):
    limited = tmp_path / "python"
    limited.write_text(f'#!/bin/sh\nulimit -v {ENOUGH_TO_START}\nexec {sys.executable} "$@"\n')
    limited.chmod(0o755)
    config = CONFIG.model_copy(update={"python": str(limited), "share_prefix": False, "batch_size": 64, "max_steps": 1})
    error = fails(registry, tmp_path, config, large_rows())
    assert isinstance(error, Unavailable) and error.message.startswith("the training failed: out of memory: ")
    assert error.hint.startswith("train with less memory: train.batch_size 32 with train.accumulation 2, or shorter rows")
    assert f"last lines of {tmp_path / 'train.log'}" in error.hint and "can't allocate memory" in error.hint


@pytest.mark.parametrize(
    "error",
    [MemoryError(), torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), OSError(12, "Cannot allocate memory")],
)
def test_every_way_to_say_out_of_memory_is_understood(registry, tmp_path, monkeypatch, error):
    from leyden.algorithm.sft import fit

    def raise_it(*args) -> None:
        raise error

    monkeypatch.setattr(fit, "fit", raise_it)
    job = make_job(registry.get("version_0").path, tmp_path / "out")
    with pytest.raises(Unavailable, match=r"^out of memory: ") as failure:
        training_child.run(job, lambda event: None)
    assert failure.value.hint.startswith("train with less memory")


@pytest.mark.parametrize("when", ["at the first step", "before it"])
def test_a_child_that_the_system_kills_for_memory_is_reported_as_such(registry, tmp_path, when):
    """The kernel's out-of-memory killer sends SIGKILL, to the child alone, and leaves no word."""
    marker = new_marker()

    def kill(progress) -> None:
        if progress.step == (1 if when == "at the first step" else 0):
            for process in find_by_marker(marker):
                os.kill(process.pid, signal.SIGKILL)

    error = fails(registry, tmp_path, CONFIG.model_copy(update={"max_steps": 10_000}), on_progress=kill, marker=marker)
    assert "killed from outside (SIGKILL), as the system does when memory runs out" in error.message
    assert error.hint.startswith("train with less memory: ") and "train.log" in error.hint
    assert find_by_marker(marker) == []


def test_a_loss_that_is_no_number_ends_the_training(registry, tmp_path):
    error = fails(registry, tmp_path, CONFIG.model_copy(update={"lr": 1e30, "max_steps": 50}))
    assert "the training diverged: the loss is nan" in error.message and "train with a lower lr" in error.hint
